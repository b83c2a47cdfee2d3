"""Runs tasks repeatedly, each in its own thread, until they are stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Log = Callable[[str], None]
"""Writes a sentence for the operator."""


class Background:
    """Runs tasks, each again and again in its own thread; if one of them fails, all end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def repeat(
        self, task: Callable[[], None], *, pause_seconds: float, at_end: Callable[[], None], name: str
    ) -> None:
        """Starts a thread that repeats a task, with a pause after each run.

        Args:
            task: function to call.
            pause_seconds: seconds from the end of a call to the next one.
            at_end: called last in the same thread, unless the task failed.
            name: name of the thread.
        """
        thread = threading.Thread(
            target=self._run, args=(task, pause_seconds, at_end), name=f"autofit-{name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        """Waits until `stop` is called or a task fails, and then raises the task's exception."""
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends every task after its current run; may be called from a signal handler."""
        self._stop.set()
        self._ended.set()

    def join(self, timeout_seconds: float) -> None:
        """Waits up to `timeout_seconds` until all tasks have ended; a task that hangs is left running."""
        until = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _run(self, task: Callable[[], None], pause_seconds: float, at_end: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                task()
                self._stop.wait(pause_seconds)
            at_end()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._failure = error
            self.stop()
