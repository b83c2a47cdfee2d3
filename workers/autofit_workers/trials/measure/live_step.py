"""Measures the peak memory of one step of a model in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.protocol import Device
from autofit_workers.tracing.host.allocator_peak import allocator_peak_bytes, live_bytes
from autofit_workers.trials.outcomes import processor_name

_cuda: Any = torch.cuda  # untyped

# Live bytes before the step and at its peak, and bytes of segments at the peak; None without segments.
StepBytes = tuple[int, int, int | None]


def measure_step(step: Callable[[], object]) -> tuple[Device, StepBytes]:
    """Runs a step of the caller's own training, and measures its memory.

    It measures on the current CUDA card if this process uses one, else on the CPU.

    Args:
        step: runs the step.

    Returns:
        The device, and the memory in bytes before the step and at its peak.

    Raises:
        Exception: whatever the step raises.
    """
    if torch.cuda.is_available() and _cuda.is_initialized():
        return Device(kind=GPU_KIND, name=torch.cuda.get_device_name()), _on_card(step)
    before_bytes = live_bytes(gc.get_objects())

    def without_result() -> None:
        step()

    peak_bytes = allocator_peak_bytes(without_result)
    return Device(kind="cpu", name=processor_name()), (before_bytes, peak_bytes, None)


def _on_card(step: Callable[[], Any]) -> StepBytes:
    torch.cuda.synchronize()
    before_bytes = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return before_bytes, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
