"""Sends heartbeats and the outcome of a trial's process over one pipe, one a line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from autofit_workers.spec.protocol import Heartbeat, TrialOutcome

BEAT_SECONDS = 0.5

Report = Callable[[Heartbeat], None]
# Sends an outcome, or the error that making it raises, for a script that is ended before it returns.
LastWord = Callable[[Callable[[], TrialOutcome]], None]


def unheard(_beat: Heartbeat) -> None:
    """Ignores a heartbeat; passed as the callback for heartbeats when no supervising process listens."""


def unsaid(_outcome: Callable[[], TrialOutcome]) -> None:
    """Ignores a result; passed as the callback for a script that is ended early if no supervisor listens."""


class Heart:
    """Sender of a trial's heartbeats to its supervisor, until the trial's answer is sent.

    The last heartbeat is repeated every half second by a thread of its own, so that heartbeats go on during a
    long operator, which releases the interpreter's lock. Lines are written whole and unbuffered: a process
    forked in between has no buffer to write a second time.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._line: str | None = None
        self._is_working = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def report(self, beat: Heartbeat) -> None:
        """Sends a heartbeat immediately, and starts to repeat it."""
        with self._lock:
            self._line = beat.to_json()
            self._say(self._line)
        self._is_working.set()

    def answer(self, line: str) -> None:
        """Sends the answer of a trial, and stops the heartbeats until the next report."""
        self._is_working.clear()
        with self._lock:
            self._line = None
            self._say(line)

    def _beat(self) -> None:
        pause = threading.Event()
        while self._is_working.wait():
            pause.wait(BEAT_SECONDS)
            with self._lock:
                if self._line is not None:
                    self._say(self._line)

    def _say(self, line: str) -> None:
        rest = memoryview(line.encode() + b"\n")
        while rest:
            rest = rest[os.write(self._pipe, rest) :]
