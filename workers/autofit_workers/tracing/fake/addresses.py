"""Gives fake tensors memory addresses (`data_ptr`), by which programs find tensors that share memory.

`FullyShardedDataParallel` compares addresses to see whether a parameter is its shard, and code that saves
models to find shared weights.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from autofit_workers.pytorch.fake_tensors import FakeTensor

_BITS = 9  # addresses are multiples of 512, as in PyTorch's allocator


@functools.cache
def install() -> None:
    """Makes `data_ptr` of fake tensors and `meta` storages return addresses, in this process for good."""
    storage_type: Any = torch.UntypedStorage
    fake_type: Any = FakeTensor
    address = storage_type.data_ptr

    def address_of_storage(storage: torch.UntypedStorage) -> int:
        if storage.device.type != "meta":
            return int(address(storage))
        return storage._cdata << _BITS if storage.nbytes() else 0

    def address_of(tensor: torch.Tensor) -> int:
        start = address_of_storage(tensor.untyped_storage())
        return start + int(tensor.storage_offset()) * tensor.element_size() if start else 0

    storage_type.data_ptr, fake_type.data_ptr = address_of_storage, address_of
