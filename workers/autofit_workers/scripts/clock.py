"""Limits the time that a script may go on once enough of its steps were seen."""

from __future__ import annotations

import threading
from collections.abc import Callable

from autofit_workers.scripts.watching import StepWatch

# So long a script may take to unwind once it was ended; one that goes on is left behind.
_GRACE_SECONDS = 3.0
_SECONDS_AFTER_LOOPS = 10.0  # that it goes on for once its loops were ended


class Clock:
    """Ends a script that takes long after its loops were ended, and gives up on one that cannot be ended.

    Args:
        give_up: see `run_script`.
    """

    def __init__(self, watch: StepWatch, give_up: Callable[[], None]) -> None:
        self._watch = watch
        self._give_up = give_up
        self._timers: list[threading.Timer] = []
        watch.on_end = lambda: self._after(_GRACE_SECONDS, give_up)
        watch.on_loops_ended = lambda: self._after(_SECONDS_AFTER_LOOPS, self._hurry)

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _hurry(self) -> None:
        self._watch.is_late = True
        self._after(_GRACE_SECONDS, self._leave)

    def _leave(self) -> None:
        self._watch.leave()
        self._give_up()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
