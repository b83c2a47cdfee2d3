"""Peak of PyTorch's CPU allocator in one step, from the profiler's memory events.

The CPU allocator keeps no statistics. The profiler reports every block that is allocated or freed while it
runs; blocks that are alive before are counted from the tensors that Python's garbage collector tracks. The
profiler itself takes memory, so nothing else is measured at the same time.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from autofit_workers.pytorch.dispatch import is_traceable_wrapper_subclass
from autofit_workers.pytorch.fake_tensors import FakeTensor, FunctionalTensor


def allocator_peak_bytes(step: Callable[[], None]) -> int:
    """Peak in bytes of the CPU blocks alive during a step, including those from before it.

    Frees of blocks from before the step are not seen, so free beforehand what the step would free first.

    Raises:
        RuntimeError: the profiler reported no memory events.
    """
    from torch.autograd.profiler import profile

    before_bytes = live_bytes(gc.get_objects())
    with _silenced(), profile(profile_memory=True) as profiler:
        step()
    changes = block_changes(profiler)
    if not changes:
        raise RuntimeError("the profiler reported no memory events")
    return before_bytes + peak_of(changes)


def block_changes(profiler: Any) -> list[int]:
    """Sizes in bytes of the CPU blocks in a profile, in order: positive if allocated, negative if freed."""
    events = [
        event
        for event in profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.profiler.DeviceType.CPU
    ]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def peak_of(changes: Iterable[int]) -> int:
    """Largest running sum of the sizes from `block_changes`, at least 0: the peak of the blocks in bytes."""
    current = peak = 0
    for change in changes:
        current += change
        peak = max(peak, current)
    return peak


def live_bytes(objects: Iterable[object]) -> int:
    """Total bytes of the CPU storages of all tensors among `objects`, each storage counted once."""
    storages: dict[int, int] = {}
    for candidate in objects:
        # `isinstance` would ask proxy objects for their class, which runs their code.
        if issubclass(type(candidate), torch.Tensor):
            storages.update(_storage_of(candidate))
    return sum(storages.values())


def _storage_of(tensor: Any) -> dict[int, int]:
    """Bytes of a tensor's CPU storage by the storage's address; empty without a CPU storage."""
    if is_lazy(tensor) or isinstance(tensor, FakeTensor | FunctionalTensor):
        return {}  # a lazy module's parameter has no storage yet, and a compiler's tensors have no data
    if is_traceable_wrapper_subclass(tensor):
        return {}  # it wraps tensors that are counted themselves, such as this rank's shard of a parameter
    if tensor.layout is torch.strided and tensor.device.type == "cpu":
        storage = tensor.untyped_storage()
        if storage.data_ptr():
            return {storage.data_ptr(): storage.nbytes()}
    return {}


@contextmanager
def _silenced() -> Iterator[None]:
    """Context that discards stdout and stderr, into which the profiler's libraries print."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with Path(os.devnull).open("wb") as nowhere:
            for number in kept:
                os.dup2(nowhere.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
