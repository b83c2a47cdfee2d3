"""Threads beside an event loop, which do not keep the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from autofit_workers.trials.door import ended_by

_T = TypeVar("_T")


class Threads:
    """Runs calls in threads, a limited number at a time; further ones wait.

    Python waits at its end for the threads of its own executors, however long they trace; for these it does
    not.

    Args:
        most: largest number of threads at a time.
        stop: event that ends all trials that the calls run.
    """

    def __init__(self, most: int, stop: threading.Event) -> None:
        self._free = asyncio.Semaphore(most)
        self._stop = stop

    async def run(self, call: Callable[[], _T]) -> _T:
        """Runs a call in a thread, and returns or raises what it does.

        The thread counts as taken until the call ends, even if this coroutine is cancelled before.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def end(set_outcome: Callable[[Any], None], outcome: object) -> None:
            self._free.release()
            if not future.cancelled():
                set_outcome(outcome)

        def work() -> None:
            set_outcome: Callable[[Any], None] = future.set_result
            outcome: object
            try:
                with ended_by(self._stop):
                    outcome = call()
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                set_outcome, outcome = future.set_exception, error
            with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                loop.call_soon_threadsafe(end, set_outcome, outcome)

        threading.Thread(target=work, name="autofit-ui", daemon=True).start()
        return await future
