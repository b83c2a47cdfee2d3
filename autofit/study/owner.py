"""Owner of a running trial: the process that will end it, and its lease on the trial."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from dataclasses import dataclass
from typing import Self

import psutil

# A process's start is the boot time plus clock ticks, which shifts a little when the clock is adjusted.
_START_TOLERANCE_SECONDS = 2.0
_RENEWED_AT = 2 / 3  # share of the lease that is left; an earlier renewal would be a needless write

_coordinators_here: set[str] = set()  # coordinators of this process that are still active


def begin(coordinator: str) -> None:
    """Registers a coordinator (a search) of this process as active, so that its trials are waited for."""
    _coordinators_here.add(coordinator)


def end(coordinator: str) -> None:
    """Unregisters a coordinator (a search) of this process; its running trials count as abandoned."""
    _coordinators_here.discard(coordinator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Coordinator (search) that asked for a trial, with its process and its lease on the trial.

    Attributes:
        started_seconds: start of its process, in seconds of the epoch, as process ids are reused.
        lease_until_seconds: time from which other hosts may regard the trial as given up, in seconds of the
            epoch.
        coordinator: id that distinguishes the coordinators of one process.
        asked_seconds: time at which the coordinator asked for the trial, in seconds of the epoch.
        num_workers: number of trials that the coordinator could run at once then; None if unknown.
    """

    host: str
    process_id: int
    started_seconds: float
    lease_until_seconds: float
    coordinator: str = ""
    asked_seconds: float = 0.0
    num_workers: int | None = None

    @classmethod
    def this_process(
        cls, *, lease_seconds: float, coordinator: str = "", num_workers: int | None = None
    ) -> Self:
        now = time.time()
        return cls(
            host=socket.gethostname(),
            process_id=os.getpid(),
            started_seconds=psutil.Process().create_time(),
            lease_until_seconds=now + lease_seconds,
            coordinator=coordinator,
            asked_seconds=now,
            num_workers=num_workers,
        )

    def renewed(self, *, lease_seconds: float) -> Self | None:
        """Copy of the owner with a new lease; None if more than two thirds of the old one are left."""
        now = time.time()
        if self.lease_until_seconds - now > _RENEWED_AT * lease_seconds:
            return None
        return dataclasses.replace(self, lease_until_seconds=now + lease_seconds)

    def why_gone(self) -> str | None:
        """Reason why the owner can no longer end its trial; None as long as it may.

        A process on this machine is looked up, and a coordinator of this process too. Processes of other
        hosts cannot be seen, so their trials are waited for until the lease ends.
        """
        if self.host != socket.gethostname():
            late_seconds = time.time() - self.lease_until_seconds
            return None if late_seconds <= 0 else f"the lease of {self.host} expired {late_seconds:.0f} s ago"
        try:
            started_seconds = psutil.Process(self.process_id).create_time()
        except psutil.NoSuchProcess:
            return f"process {self.process_id} ended before its trial"
        if abs(started_seconds - self.started_seconds) > _START_TOLERANCE_SECONDS:
            return f"process {self.process_id} ended before its trial, and its id was used again"
        if self.process_id == os.getpid() and self.coordinator and self.coordinator not in _coordinators_here:
            return "its search ended before it, in this process"
        return None
