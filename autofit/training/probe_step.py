"""The peak of one step of a model that is alive in this process, as in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit.errors import UsageError
from workers.protocol import Device, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeak:
    """What one step took.

    Attributes:
        device: what it ran on.
        evidence: `measured` on a card, `measured-cpu` elsewhere.
        before_bytes: live blocks of PyTorch's allocator when the step began; on the CPU those of the
            tensors that Python knows.
        peak_allocated_bytes: the same at their peak, those from before included.
        peak_reserved_bytes: of the allocator's segments; None on the CPU, whose allocator has none.
    """

    device: Device
    evidence: Evidence
    before_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None


def probe_step(step: Callable[[], object]) -> StepPeak:
    """Takes one step of a live model, in this process, and says what it took at its peak.

        >>> def step():
        ...     optimizer.zero_grad()
        ...     criterion(model(images), labels).backward()
        ...     optimizer.step()
        >>> step(); autofit.probe_step(step).peak_allocated_bytes

    The first step of a training has no optimizer state yet, so take one before. The card is the current
    one where this process uses CUDA; its peak statistics start anew with the step, for PyTorch cannot
    put them back. On the CPU the profiler watches, and what the step writes to the terminal is not shown.
    Whatever else changes, the step itself changes.

    Args:
        step: does one step, without arguments.

    Raises:
        UsageError: it cannot be called.
        Exception: whatever the step raises, out of memory too.
    """
    if not callable(step):
        raise UsageError(f"probe_step takes a function that does one step, not {type(step).__name__}")
    from workers.measure.live_step import measure_step  # imports torch

    device, (before_bytes, peak_bytes, reserved_bytes) = measure_step(step)
    return StepPeak(
        device=device,
        evidence=Evidence.MEASURED if device.kind == "cuda" else Evidence.MEASURED_CPU,
        before_bytes=before_bytes,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=reserved_bytes,
    )
