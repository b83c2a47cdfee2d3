"""Counts pinned host memory, where no GPU is there to pin it for.

A process keeps memory that was pinned once: `CachingHostAllocator` hands it out again (ATen/core of PyTorch).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # by the storage's address
_peak_bytes = [0]


def begin_program() -> None:
    """Resets the count of pinned memory for another program."""
    _live.clear()
    _peak_bytes[0] = 0


def pinned(tensor: torch.Tensor, *_args: object, **_kwargs: object) -> torch.Tensor:
    """Replaces `Tensor.pin_memory`: counts the tensor's storage as pinned and returns the tensor itself."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    _live[key] = weakref.ref(storage, lambda _gone: _live.pop(key, None)), storage.nbytes()
    _peak_bytes[0] = max(_peak_bytes[0], sum(num_bytes for _, num_bytes in _live.values()))
    return tensor


def peak_bytes() -> int:
    """Peak of the pinned host memory in bytes, without rounding by the allocator."""
    return _peak_bytes[0]


def notes() -> tuple[str, ...]:
    """Note for the user about the peak of pinned memory; none where it is 0."""
    num_mib = -(-peak_bytes() // 2**20)
    return (f"beside the card, this rank has {num_mib} MiB of pinned memory on the host",) if num_mib else ()


def install() -> None:
    """Replaces `Tensor.pin_memory` by `pinned`, in this process for good."""
    tensor: Any = torch.Tensor
    tensor.pin_memory = pinned
