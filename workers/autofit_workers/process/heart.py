"""Sends heartbeats and outcomes of a child process over one pipe, a line each."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from autofit_workers.spec.protocol import Heartbeat, TrialOutcome

BEAT_SECONDS = 0.5

Report = Callable[[Heartbeat], None]
# Sends an outcome, or what making it raises, for a script that goes on after it was ended.
LastWord = Callable[[Callable[[], TrialOutcome]], None]


def unheard(_beat: Heartbeat) -> None:
    """Ignores a heartbeat: the `Report` of a trial that nobody supervises."""


def unsaid(_outcome: Callable[[], TrialOutcome]) -> None:
    """Ignores an outcome: the `LastWord` of a trial that nobody supervises."""


class Heart:
    """Sender of heartbeats, which repeats the last one every half second until the answer is sent.

    The beats come from a thread of their own, so that they go on during a long operator, which
    runs without the interpreter's lock. Lines are written whole and unbuffered: a process forked
    in between has nothing to write once more.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._line: str | None = None
        self._is_working = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def report(self, beat: Heartbeat) -> None:
        """Sends a heartbeat at once, and starts to repeat it."""
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
