"""Owner of a running trial: the process that will end it, and its lease on the trial."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from dataclasses import dataclass

import psutil

from autofit_workers.spec.pythons import Self

# A process's start is the boot time plus clock ticks, which shifts a little when the clock is adjusted.
_START_TOLERANCE_SECONDS = 2.0
_RENEWED_AT = 2 / 3  # share of the lease that is left; an earlier renewal would be a needless write

_coordinators_here: set[str] = set()  # coordinators of this process that are still active


def begin(coordinator: str) -> None:
    """Registers a search of this process as active, so that others wait for its running trials.

    Args:
        coordinator: id of the search.
    """
    _coordinators_here.add(coordinator)


def end(coordinator: str) -> None:
    """Unregisters a search of this process, after which its running trials count as abandoned.

    Args:
        coordinator: id of the search.
    """
    _coordinators_here.discard(coordinator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Search (coordinator) that started a trial: its process, and until when it claims the trial (lease).

    Attributes:
        started_seconds: start of the process, in seconds of the epoch; it tells the process from a later one
            with the same id.
        lease_until_seconds: end of the lease, in seconds of the epoch; from then on processes on other hosts
            regard the trial as abandoned.
        coordinator: id of the search; one process may run several searches.
        asked_seconds: time at which the search started the trial, in seconds of the epoch.
        num_workers: number of trials that the search could run in parallel at that time; None if unknown.
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
        """Owner record of this process, with a lease from now on."""
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
        """Copy of the owner with a new lease; None if more than two thirds of the present one are left."""
        now = time.time()
        if self.lease_until_seconds - now > _RENEWED_AT * lease_seconds:
            return None
        return dataclasses.replace(self, lease_until_seconds=now + lease_seconds)

    def why_gone(self) -> str | None:
        """Reason why the owner cannot finish its trial any more; None as long as it may.

        On this machine, it is checked whether the process lives and its search is active. Processes of other
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
