"""Counts pinned host memory, which cannot be pinned without a GPU.

Only the peak matters, because PyTorch's `CachingHostAllocator` (ATen/core) keeps memory that was pinned once.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # by the storage's address
_peak_bytes = [0]


def begin_program() -> None:
    """Resets the count of pinned memory for another script or workload in this process."""
    _live.clear()
    _peak_bytes[0] = 0


def pinned(tensor: torch.Tensor, *_args: object, **_kwargs: object) -> torch.Tensor:
    """Replacement for `Tensor.pin_memory` that counts the tensor's storage and returns the tensor itself."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    _live[key] = weakref.ref(storage, lambda _gone: _live.pop(key, None)), storage.nbytes()
    _peak_bytes[0] = max(_peak_bytes[0], sum(num_bytes for _, num_bytes in _live.values()))
    return tensor


def peak_bytes() -> int:
    """Peak of pinned host memory in bytes, without the allocator's rounding."""
    return _peak_bytes[0]


def notes() -> tuple[str, ...]:
    """Note for the user about the peak of pinned memory; empty if nothing was pinned."""
    num_mib = -(-peak_bytes() // 2**20)
    if not num_mib:
        return ()
    return (f"besides the card's memory, this rank has {num_mib} MiB of pinned memory on the host",)


def install() -> None:
    """Replaces `Tensor.pin_memory` by `pinned`, in this process for good."""
    tensor: Any = torch.Tensor
    tensor.pin_memory = pinned
