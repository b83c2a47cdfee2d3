"""A storage watched in the background: its metrics, and how it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge

from autofit.errors import StorageError
from autofit.service.reader import Log

_STUCK_SECONDS = 300.0  # a first read of very many trials takes minutes


class Reader(Protocol):
    """Reads a storage, see `autofit.service.reader`."""

    def read(self) -> None: ...

    def close(self) -> None: ...


class StorageWatch:
    """Reads a storage again and again, in a thread of its own.

    A storage that cannot be read is tried again for ever; what was read before stays served.

    Args:
        reader: used by that thread alone.
        registry: gets the series about the storage.
        on_first_read: called once everything has been read. What is counted is shown from then on:
            a count that is still growing to what it was before a restart would read as new trials.
        interval_seconds: between the end of a read and the next.
        log: takes a line when the storage goes or comes back.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        registry: CollectorRegistry,
        on_first_read: Callable[[], None],
        interval_seconds: float,
        log: Log,
    ) -> None:
        self._reader = reader
        self._on_first_read = on_first_read
        self._interval_seconds = interval_seconds
        self._log = log
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._is_up: bool | None = None
        self._has_read = False
        self._attempted_at = time.monotonic()
        self._up = Gauge(
            "autofit_storage_up", "Whether the last read of the storage succeeded.", registry=registry
        )
        self._read_at = Gauge(
            "autofit_storage_read_timestamp_seconds",
            "When the storage was last read whole; 0 until then.",
            registry=registry,
        )
        self._duration = Gauge(
            "autofit_storage_read_duration_seconds",
            "How long the last whole read of the storage took.",
            registry=registry,
        )
        self._thread = threading.Thread(target=self._run, name="autofit-storage", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def wait(self) -> None:
        """Returns when it was stopped; raises what ended it otherwise."""
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends it, after the read that is under way; may be called from a handler of signals."""
        self._stop.set()
        self._ended.set()

    def join(self, timeout_seconds: float) -> None:
        """Waits until the thread has released the storage, which may hang with it."""
        self._thread.join(timeout_seconds)

    def why_stuck(self) -> str | None:
        """Why the process should be started again; None where it should not."""
        seconds = time.monotonic() - self._attempted_at
        if seconds < _STUCK_SECONDS + self._interval_seconds:
            return None
        return f"the storage has not answered for {seconds:.0f} s"

    def why_not_ready(self) -> str | None:
        """Why the metrics are not to be relied on; None where they are."""
        if not self._has_read:
            return "the storage has not been read yet"
        return None if self._is_up else "the storage cannot be read"

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._read()
                self._stop.wait(self._interval_seconds)
            self._reader.close()
        except BaseException as error:  # noqa: BLE001 - whoever waits for this thread raises it
            self._failure = error
        self._ended.set()

    def _read(self) -> None:
        started = time.monotonic()
        try:
            self._reader.read()
        except StorageError as error:
            if isinstance(error.__cause__, ImportError):  # no patience installs a driver
                raise
            self._show_down(error)
        else:
            self._show_up(time.monotonic() - started)
        self._attempted_at = time.monotonic()

    def _show_down(self, error: StorageError) -> None:
        self._up.set(0)
        if self._is_up is not False:
            self._log(f"the storage cannot be read, and is tried again: {error.message}")
        self._is_up = False

    def _show_up(self, seconds: float) -> None:
        if not self._has_read:
            self._has_read = True
            self._on_first_read()
        self._duration.set(seconds)
        self._read_at.set(time.time())
        self._up.set(1)
        if self._is_up is False:
            self._log("the storage can be read again")
        self._is_up = True
