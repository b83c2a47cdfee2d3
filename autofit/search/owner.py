"""Which process a running trial belongs to, and whether that process can still end it."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Self

import psutil

# A process's start is the boot time plus clock ticks: adjusting the clock moves it a little.
_START_TOLERANCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The coordinator that asked for a trial.

    Attributes:
        started_seconds: when its process started, since a process id is used again; epoch.
        asked_seconds: when it asked; epoch.
    """

    host: str
    process_id: int
    started_seconds: float
    asked_seconds: float

    @classmethod
    def this_process(cls) -> Self:
        return cls(
            host=socket.gethostname(),
            process_id=os.getpid(),
            started_seconds=psutil.Process().create_time(),
            asked_seconds=time.time(),
        )

    def why_gone(self, *, patience_seconds: float) -> str | None:
        """Why nobody will end the owner's trial any more; None as long as somebody may.

        Args:
            patience_seconds: how long a trial of another host, whose processes cannot be seen, is
                waited for.
        """
        if self.host != socket.gethostname():
            age_seconds = time.time() - self.asked_seconds
            if age_seconds <= patience_seconds:
                return None
            return f"no word from {self.host} for {age_seconds:.0f} s"
        try:
            started_seconds = psutil.Process(self.process_id).create_time()
        except psutil.NoSuchProcess:
            return f"process {self.process_id} ended before its trial"
        if abs(started_seconds - self.started_seconds) > _START_TOLERANCE_SECONDS:
            return f"process {self.process_id} ended before its trial, and its id was used again"
        return None
