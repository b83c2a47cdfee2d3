"""Peak of PyTorch's CPU allocator in one step, from the profiler's memory events.

The allocator keeps no statistics of its own. The profiler tells of every block that is taken and
given back while it watches; blocks that were alive before are counted from the tensors that the
interpreter knows. Watching takes memory itself, so nothing else is measured meanwhile.
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

    The profiler does not tell of blocks from before that the step gives back, so a step should
    begin without those that it would drop first.
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
    """Sizes in bytes of the CPU blocks in a profile, in order: positive if taken, negative if freed."""
    events = [
        event
        for event in profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.profiler.DeviceType.CPU
    ]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def peak_of(changes: Iterable[int]) -> int:
    """Largest running sum of `changes`, at least 0."""
    current = peak = 0
    for change in changes:
        current += change
        peak = max(peak, current)
    return peak


def live_bytes(objects: Iterable[object]) -> int:
    """Bytes of the CPU storages of all tensors among `objects`, each storage counted once."""
    storages: dict[int, int] = {}
    for candidate in objects:
        # By `type`: `isinstance` asks proxies for their class, which runs code of theirs.
        if issubclass(type(candidate), torch.Tensor):
            storages.update(_storage_of(candidate))
    return sum(storages.values())


def _storage_of(tensor: Any) -> dict[int, int]:
    """Map from the address of a tensor's CPU storage to its bytes; empty without a CPU storage."""
    if is_lazy(tensor) or isinstance(tensor, FakeTensor | FunctionalTensor):
        return {}  # of a module that has not run yet; of a compiler
    if is_traceable_wrapper_subclass(tensor):
        return {}  # its parts are tensors of their own, such as this rank's part of a sharded parameter
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
