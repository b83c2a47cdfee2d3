"""Reads a storage repeatedly, and reports whether and when it could be read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge

from autofit.errors import StorageError
from autofit.serve.background import Log

_STUCK_SECONDS = 300.0  # the first read of very many trials takes minutes


class Reader(Protocol):
    """Interface of objects that read a storage, see `autofit.serve.reader`."""

    def read(self) -> None: ...


class StorageWatch:
    """Reads a storage again and again, with Prometheus metrics on whether and when it could be read.

    A storage that cannot be read is tried again for ever; the values of the last successful read stay.

    Args:
        registry: Prometheus registry for the metrics about the storage.
        on_first_read: called once, after everything has been read. Counters should be shown only from then
            on: while they still grow to their values before a restart, they would look like new trials.
        log: called with a line when the storage cannot be read any more, or again.
        clock: returns seconds that never decrease.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        registry: CollectorRegistry,
        on_first_read: Callable[[], None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._on_first_read = on_first_read
        self._log = log
        self._clock = clock
        self._is_up: bool | None = None
        self._has_read = False
        self._attempted_at = clock()
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

    def read(self) -> None:
        """Reads the storage once; logs, and does not raise, if it cannot be read now.

        Raises:
            UsageError: the storage is invalid.
            StorageError: its driver is not installed.
        """
        started = self._clock()
        try:
            self._reader.read()
        except StorageError as error:
            if isinstance(error.__cause__, ImportError):  # waiting does not install a driver
                raise
            self._show_down(error)
        else:
            self._show_up(self._clock() - started)
        self._attempted_at = self._clock()

    def why_stuck(self) -> str | None:
        """Reason to restart this process, as a read of the storage hangs; None if no read hangs."""
        seconds = self._clock() - self._attempted_at
        return None if seconds < _STUCK_SECONDS else f"the storage has not answered for {seconds:.0f} s"

    def why_not_ready(self) -> str | None:
        """Reason why the metrics are not reliable yet or now; None if they are reliable."""
        if not self._has_read:
            return "the storage has not been read yet"
        return None if self._is_up else "the storage cannot be read"

    def _show_down(self, error: StorageError) -> None:
        self._up.set(0)
        if self._is_up is not False:
            self._log(f"the storage cannot be read, trying again: {error.message}")
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
