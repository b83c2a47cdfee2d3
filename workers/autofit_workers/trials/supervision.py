"""Supervises a running trial from another process: whether it is alive, and how much memory it holds.

heartbeats ──▶ silent for too long              ──▶ HungError          ──▶ TIMEOUT
/proc      ──▶ beyond budget or host            ──▶ TooMuchMemoryError ──▶ OOM
           ──▶ ever more processes              ──▶ TooManyProcessesError ──▶ LOST
its death by SIGKILL, and the kernel's own count ──────────────────────▶ OOM, else LOST
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from autofit_workers.process import descendants, host_memory
from autofit_workers.process.heart import Report, unheard
from autofit_workers.spec.protocol import ALLOCATOR_PEAK, Heartbeat, Probe, TrialSpec

# Below all memory, because the kernel kills when nothing is left, and any process it chooses.
_HOST_SHARE = 0.9
# Share for a prediction, which needs little: a workload that keeps growing is ended early.
_PREDICTING_SHARE = 0.5
# Limit for a prediction; data loaders and process pools start a process for each core.
_MOST_PROCESSES = 1024
_SAMPLE_SECONDS = 0.1
_SAMPLE_SHARE = 0.05  # of one core at most, on machines with many processes


class HungError(TimeoutError):
    """The trial's process sends no heartbeat, although it should send several a second."""


class TooMuchMemoryError(Exception):
    """The trial's processes together exceed their memory limit; the error's text says by how much."""


class TooManyProcessesError(Exception):
    """The workload has started more processes than allowed, which is more than any training starts."""


class StoppedError(Exception):
    """The trial was ended because its caller does not want the outcome any more."""


class Supervision:
    """Watch over a running trial, from another process: its heartbeats, memory and number of processes.

    It implements `Attendant`, which handles a child process's lines while its answer is awaited.

    Args:
        spec: the trial.
        group: process group that the trial's processes are in or descend from.
        stop: event that ends the trial once it is set; None for none.
        report: called with every heartbeat.
        available_bytes: returns the bytes of memory that the machine has left; None if unknown.
        num_kernel_kills: returns the number of processes that the kernel has killed for memory; None if
            unknown.

    Attributes:
        first_heard: time of the process's first heartbeat, by `time.monotonic`; before it, the time at which
            the watch began.
        last_beat: the last heartbeat.
    """

    def __init__(
        self,
        spec: TrialSpec,
        group: int,
        *,
        stop: threading.Event | None = None,
        report: Report = unheard,
        available_bytes: Callable[[], int | None] = host_memory.available_bytes,
        num_kernel_kills: Callable[[], int | None] = host_memory.num_kernel_kills,
    ) -> None:
        self._spec = spec
        self._group = group
        self._stop = stop
        self._report = report
        self._begin = self._heard = self.first_heard = time.monotonic()
        self._next_sample = self._begin + _SAMPLE_SECONDS
        self._excess: str | None = None
        self._num_kernel_kills = num_kernel_kills
        self._kills_before = num_kernel_kills()
        self._host_limit_bytes = self._host_limit(available_bytes())
        self.last_beat = Heartbeat(phase="start")

    def hears(self, line: str) -> bool:
        """Records the heartbeat in a line of the trial's process.

        Returns:
            False if the line is no heartbeat, such as the trial's outcome.
        """
        try:
            self.last_beat = Heartbeat.from_json(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        if self._heard == self._begin:
            self.first_heard = time.monotonic()
        self._heard = time.monotonic()
        self._report(self.last_beat)
        return True

    def attend(self) -> None:
        """Checks whether the trial may go on; called again and again while it runs.

        Raises:
            StoppedError: the trial is not wanted any more.
            HungError: the trial has sent no heartbeat for too long.
            TooMuchMemoryError: its processes exceed the trial's memory limit.
            TooManyProcessesError: a prediction has too many processes.
        """
        if self._stop is not None and self._stop.is_set():
            raise StoppedError
        now = time.monotonic()
        # Before its first heartbeat it imports PyTorch, and holds the interpreter's lock while loading it.
        if self.last_beat.phase != "start" and now - self._heard > self._spec.heartbeat_seconds:
            raise HungError
        if self._excess is not None and self._budget_counts:
            raise TooMuchMemoryError(self._excess)
        if now >= self._next_sample:
            # An excess over the budget counts only after all earlier heartbeats were read:
            # the process may already be past the steps that the budget is for.
            self._excess = self._excess_now()
            end = time.monotonic()
            self._next_sample = end + max(_SAMPLE_SECONDS, (end - now) / _SAMPLE_SHARE)

    @property
    def last_heard(self) -> str:
        """Clause with the phase and time of the trial's last heartbeat, for a message."""
        return f"last heard of in {self.last_beat.phase} after {self._heard - self._begin:.1f} s"

    def killed_for_memory(self) -> str | None:
        """Message that the kernel killed processes for memory since the trial began; None if it did not."""
        before, now = self._kills_before, self._num_kernel_kills()
        if before is None or now is None or now <= before:
            return None
        return (
            "the kernel killed the trial's process for memory "
            f"(its oom_kill count went from {before} to {now})"
        )

    @property
    def _budget_counts(self) -> bool:
        return self.last_beat.phase not in ("start", "build", ALLOCATOR_PEAK)

    def _host_limit(self, available_bytes: int | None) -> int | None:
        is_predicted = self._spec.probe is Probe.PREDICT
        if is_predicted and self._spec.setup.most_host_bytes is not None:
            return self._spec.setup.most_host_bytes
        if available_bytes is None:
            return None
        share = (_PREDICTING_SHARE if is_predicted else _HOST_SHARE) / self._spec.processes_per_node
        return int(share * available_bytes) + host_memory.resident_bytes(self._group)

    def _excess_now(self) -> str | None:
        """Message on how far the trial's processes together exceed its budget; None if they are within it.

        Only CPU trials have such a budget.

        Raises:
            TooMuchMemoryError: the processes exceed what this machine has for them.
            TooManyProcessesError: a prediction has too many processes.
        """
        spec = self._spec
        budget_bytes = spec.budget_bytes if spec.probe is Probe.CPU else None
        limits = [limit for limit in (budget_bytes, self._host_limit_bytes) if limit is not None]
        processes = descendants.of_trial(self._group) if limits else []
        if spec.probe is Probe.PREDICT and len(processes) > _MOST_PROCESSES:
            raise TooManyProcessesError(f"it started {len(processes):,}; {_MOST_PROCESSES:,} are allowed")
        if sum(map(host_memory.resident_bytes, processes)) <= min(limits, default=0):
            return None
        used_bytes = sum(map(host_memory.proportional_bytes, processes))  # shared pages once
        held = f"the trial's processes ({len(processes)}) hold {used_bytes} bytes together"
        if self._host_limit_bytes is not None and used_bytes > self._host_limit_bytes:
            raise TooMuchMemoryError(
                f"{held}, more than the {self._host_limit_bytes} bytes that this machine has for them"
            )
        if budget_bytes is not None and used_bytes > budget_bytes:
            return f"{held}, beyond the budget of {budget_bytes} bytes"
        return None
