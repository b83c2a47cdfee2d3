"""Predicts the peak host memory of a step on the CPU: the step's blocks plus the process itself.

There are two peaks, because a trial on the CPU can fail by either. The kernel limits private writable memory,
which includes pages that were never written to; the budget limits the resident set, which includes the
libraries' code. A search only takes from these predictions where its measured trials begin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from autofit.settings.goals import Risk
from autofit_workers.replay.curve import host_blocks
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.protocol import LIBRARIES_KIND, Probe, TrialOutcome, TrialSpec, WorkloadRef

_MIB = 1024**2
_BASELINE = WorkloadRef(kind="import", target="autofit_workers.trials.measure.baseline:workload")
_BASELINE_BATCH = 4
# Relative errors of the likely peak against measured trials, in addition to the range of estimated sizes; see
# tests/bench/host_accuracy.py.
_LOW_SHARE, _HIGH_SHARE = 0.03, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """Memory of the process of a measured CPU trial, without that of its training step.

    Attributes:
        resident_bytes: bytes of the resident set (RSS).
        private_bytes: bytes of private writable memory.
    """

    resident_bytes: int
    private_bytes: int

    @classmethod
    def of(cls, outcome: TrialOutcome | None) -> HostProcess:
        """Process memory that a trial of `baseline_spec` measured; an assumed value if it measured none."""
        resident_bytes = None if outcome is None else outcome.peaks.device_bytes
        if outcome is None or resident_bytes is None:
            return ASSUMED_PROCESS
        private_bytes = outcome.peaks.private_bytes
        return cls(
            resident_bytes=resident_bytes,
            private_bytes=resident_bytes if private_bytes is None else private_bytes,
        )


ASSUMED_PROCESS = HostProcess(resident_bytes=320 * _MIB, private_bytes=320 * _MIB)


def baseline_spec(
    *, num_threads: int | None, deadline_seconds: float, libraries_of: WorkloadRef | None = None
) -> TrialSpec:
    """Specification of a trial that measures the memory of a process itself, with a minimal workload.

    Args:
        num_threads: intra-op threads.
        deadline_seconds: time after which it is ended.
        libraries_of: pickled workload whose libraries the process imports first; None for PyTorch alone.
    """
    with_libraries = libraries_of and dataclasses.replace(libraries_of, kind=LIBRARIES_KIND)
    return TrialSpec(
        workload=with_libraries or _BASELINE,
        batch_size=_BASELINE_BATCH,
        probe=Probe.CPU,
        num_steps=1,
        num_threads=num_threads,
        deadline_seconds=deadline_seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPeak:
    """Predicted peak of a step on the CPU, in bytes.

    Attributes:
        resident_bytes, private_bytes: likely peak of the resident set (RSS), and of private writable memory.
        likely_bytes, high_bytes: likely value and high end of the larger of these two peaks, which has to
            fit.
        low_bytes: low end of the smaller of these two peaks.
    """

    low_bytes: int
    likely_bytes: int
    high_bytes: int
    resident_bytes: int
    private_bytes: int


class HostCurve:
    """Predicted peaks of a step on the CPU; a call with a batch size returns a `HostPeak`.

    A search uses it as an `autofit.search.curves.Curve` to choose the first size to measure. Its peaks are
    then high ends, unless the risk is `likely`: so the first trial rather fits, which tells its peak, than
    runs out of memory.

    Args:
        steps: traced step at any batch size, from traces for the CPU.
        process: returns the memory of a trial's process without a step; called when a peak is first
            predicted.
        risk: whether the curve's peaks are the likely ones or the high ends.
    """

    def __init__(
        self, steps: PeakCurve, process: Callable[[], HostProcess], *, risk: Risk = Risk.SAFE
    ) -> None:
        self._steps = steps
        self._process = process
        self._risk = risk

    @property
    def needs_traces(self) -> bool:
        """Whether a prediction needs a separate trace for each batch size."""
        return self._steps.needs_traces

    @property
    def trace_identity(self) -> str:
        """Digest that identifies the traced step; it does not depend on what this machine measured."""
        return host_blocks.identity(self._steps.trace)

    def __call__(self, batch_size: int) -> HostPeak:
        process, step = self._process(), self._steps.at(batch_size)
        resident_bytes = process.resident_bytes + host_blocks.touched_bytes(step)
        private_bytes = process.private_bytes + host_blocks.asked_bytes(step)
        most_bytes = process.private_bytes + host_blocks.most_bytes(step)
        likely_bytes = max(resident_bytes, private_bytes)
        # The number of resident pages of the libraries' files depends on the kernel's cache: two runs of one
        # program differ by tens of MiB. The low end counts none of these pages.
        certain_bytes = min(resident_bytes, private_bytes)
        return HostPeak(
            low_bytes=int(certain_bytes * (1 - _LOW_SHARE)),
            likely_bytes=likely_bytes,
            high_bytes=int(max(likely_bytes, most_bytes) * (1 + _HIGH_SHARE)),
            resident_bytes=resident_bytes,
            private_bytes=private_bytes,
        )

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:  # noqa: ARG002
        peak = self(batch_size)
        return peak.likely_bytes if self._risk is Risk.LIKELY else peak.high_bytes

    def cannot_run(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether a batch size exceeds a budget even at the low end of its predicted peak."""
        return self(batch_size).low_bytes > budget_bytes

    def workspace_bytes(self, batch_size: int) -> int:
        """Likely size in bytes of the largest scratch memory that an operator takes besides its output."""
        return self._steps.at(batch_size).largest_estimate_bytes()

    def lower_bound_bytes(self, batch_size: int) -> int:
        """Lower bound of the peak in bytes, which is the peak itself.

        The peak never falls as the batch grows, because on the CPU no allocator caches freed blocks.
        """
        return self.peak_reserved_bytes(batch_size)
