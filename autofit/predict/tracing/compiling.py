"""Progress of a trace while PyTorch's compiler lowers the workload's graphs, which takes minutes for some."""

from __future__ import annotations

import time
from collections.abc import Callable

from autofit.events import EventSink, Progress
from autofit_workers.spec.protocol import COMPILING, Heartbeat


class CompilingProgress:
    """Listener to the heartbeats of a trial that makes a trace; it tells which graph is being compiled.

    Args:
        stage: stage that the trial is of, such as `tracing batch 8`.
        emit: called with the progress.
        now: returns the time in seconds.
    """

    def __init__(self, stage: str, emit: EventSink, now: Callable[[], float] = time.monotonic) -> None:
        self._stage = stage
        self._emit = emit
        self._now = now
        self._phase = ""
        self._begin_seconds = 0.0
        self._seconds = 0

    def __call__(self, beat: Heartbeat) -> None:
        compiles = beat.phase.startswith(COMPILING)
        if beat.phase != self._phase:
            if not compiles and self._phase.startswith(COMPILING):
                self._emit(Progress(stage=self._stage))
            self._phase, self._begin_seconds, self._seconds = beat.phase, self._now(), 0
        seconds = int(self._now() - self._begin_seconds)
        if compiles and seconds > self._seconds:  # most graphs take less than a second
            self._seconds = seconds
            self._emit(Progress(stage=self._stage, detail=f"{beat.phase} ({seconds} s)"))
