"""Limits the time that a script may run once enough of its steps were seen."""

from __future__ import annotations

import threading
from collections.abc import Callable

from autofit_workers.scripts.watching import StepWatch

# Seconds that an ended script may take to unwind; after that it is abandoned.
_GRACE_SECONDS = 3.0
_SECONDS_AFTER_LOOPS = 10.0  # seconds that it may run after its loops were ended


class Clock:
    """Timer that ends a script which runs on for long after its training loops were ended.

    Args:
        give_up: called in a thread if the script does not end even then; it has to end the process.
    """

    def __init__(self, watch: StepWatch, give_up: Callable[[], None]) -> None:
        self._watch = watch
        self._give_up = give_up
        self._timers: list[threading.Timer] = []
        watch.on_end = lambda: self._after(_GRACE_SECONDS, give_up)
        watch.on_loops_ended = lambda: self._after_own(_SECONDS_AFTER_LOOPS, self._hurry)

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _hurry(self) -> None:
        self._watch.is_late = True
        self._after_own(_GRACE_SECONDS, self._leave)

    def _leave(self) -> None:
        self._watch.leave()
        self._give_up()

    def _after_own(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls `call` once the script has run for so long itself, without what PyTorch's compiler takes."""
        compiled = self._watch.seconds_of_compiler()

        def passed() -> None:
            more = self._watch.seconds_of_compiler() - compiled
            if more > 0.0:
                self._after_own(more, call)
            else:
                call()

        self._after(seconds, passed)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
