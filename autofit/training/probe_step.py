"""Measures the peak memory of one step of a model in this process, such as in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit.errors import UsageError
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.protocol import Device, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeak:
    """Measured memory of one step, in bytes.

    Attributes:
        device: the device that the step ran on.
        evidence: `measured` on a card, `measured-cpu` on the CPU.
        before_bytes: live blocks of PyTorch's allocator when the step began; on the CPU the storage of
            all tensors that Python holds.
        peak_allocated_bytes: live blocks at their peak during the step, including `before_bytes`.
        peak_reserved_bytes: segments of PyTorch's allocator at their peak; None on the CPU.
    """

    device: Device
    evidence: Evidence
    before_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None


def probe_step(step: Callable[[], object]) -> StepPeak:
    """Runs one step of a live model in this process, and measures its peak memory.

        >>> def step():
        ...     optimizer.zero_grad()
        ...     criterion(model(images), labels).backward()
        ...     optimizer.step()
        >>> step(); autofit.probe_step(step).peak_allocated_bytes

    The first step has no optimizer states yet, so run one step before. If this process uses CUDA, the
    current card is measured, and PyTorch's peak statistics of it are reset. On the CPU PyTorch's profiler
    measures, and the step's output is not shown. The step really runs: it changes the model.

    Args:
        step: function without arguments that does one step.

    Returns:
        The peaks of the step, in bytes.

    Raises:
        UsageError: `step` is not a function.
        Exception: any exception of the step, such as running out of memory.
    """
    if not callable(step):
        raise UsageError(f"probe_step takes a function that does one step, not {type(step).__name__}")
    from autofit_workers.trials.measure.live_step import measure_step  # imports torch

    device, (before_bytes, peak_bytes, reserved_bytes) = measure_step(step)
    return StepPeak(
        device=device,
        evidence=Evidence.MEASURED if device.kind == GPU_KIND else Evidence.MEASURED_CPU,
        before_bytes=before_bytes,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=reserved_bytes,
    )
