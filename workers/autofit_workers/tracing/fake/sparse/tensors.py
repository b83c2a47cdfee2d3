"""Fake tensors of sparse layouts, each made of fake dense tensors of indices and values.

A sparse tensor consists of dense tensors of indices and values, which take its memory. They are the fake
tensors whose allocations a trace records; the fake sparse tensor around them only has the layout and shape
that autograd needs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from autofit_workers.pytorch.fake_tensors import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

aten: Any = torch.ops.aten

_ATTRIBUTE = "_autofit_parts"
_META = torch.device("meta")
BY_ROWS = frozenset({torch.sparse_csr, torch.sparse_bsr})
BY_COLUMNS = frozenset({torch.sparse_csc, torch.sparse_bsc})
BLOCKED = frozenset({torch.sparse_bsr, torch.sparse_bsc})
COMPRESSED = BY_ROWS | BY_COLUMNS
TRANSPOSED = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


class Device(Protocol):
    """Methods of `FakeDeviceMode`, the fake device, that operators on sparse tensors use."""

    fake_mode: FakeTensorMode

    def wrapped(self, elem: Tensor) -> FakeTensor:
        """Fake tensor on the device that shares the storage of `elem`, a tensor on device `meta`."""

    def unseen(self, shape: tuple[int, ...], dtype: torch.dtype) -> FakeTensor:
        """New fake tensor on the device; the observer is not called."""

    def note(self, operator: Any, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        """Records the work of an operator; the observer has already seen its allocations."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Layout, size, indices and values that make up a sparse tensor.

    Attributes:
        layout: `torch.sparse_coo` or a compressed layout such as `torch.sparse_csr`.
        size: shape of the sparse tensor.
        indices: for COO one tensor, sparse dimensions × elements; else compressed and plain indices, such as
            row offsets and columns.
        values: stored elements, or for BSR and BSC stored blocks, along dimension 0.
        is_coalesced: whether a COO tensor's indices are sorted and distinct.
        num_different: number of distinct indices of a COO tensor; None if not counted.
    """

    layout: torch.layout
    size: tuple[int, ...]
    indices: tuple[Tensor, ...]
    values: Tensor
    is_coalesced: bool = False
    num_different: int | None = None

    @property
    def num_elements(self) -> int:
        """Number of stored elements, or of stored blocks for BSR and BSC."""
        return self.indices[-1].shape[-1]

    @property
    def sparse_dim(self) -> int:
        """Number of sparse dimensions of a COO tensor: rows of its indices."""
        return self.indices[0].shape[0]

    def with_values(self, values: Tensor) -> Parts:
        """Copy of these parts with the same indices and other values."""
        return dataclasses.replace(self, values=values)


def coordinates(size: tuple[int, ...], indices: Tensor, values: Tensor, **flags: Any) -> Parts:
    """`Parts` of a COO tensor with the given size, indices and values."""
    return Parts(torch.sparse_coo, tuple(size), (indices,), values, **flags)


def is_sparse(value: object) -> bool:
    """Whether a value is a tensor of a sparse layout."""
    return isinstance(value, Tensor) and value.layout is not torch.strided and value.layout in _LAYOUTS


_LAYOUTS = COMPRESSED | {torch.sparse_coo}


def made(gpu: Device, parts: Parts) -> Tensor:
    """Fake sparse tensor of `parts`, whose indices and values live as long as the tensor."""
    values = parts.values
    with in_kernel_invocation_manager(gpu.fake_mode):
        if parts.layout is torch.sparse_coo:
            elem = aten._sparse_coo_tensor_with_dims_and_tensors.default(
                parts.sparse_dim,
                values.dim() - 1,
                parts.size,
                parts.indices[0],
                values,
                dtype=values.dtype,
                layout=parts.layout,
                device=_META,
                is_coalesced=parts.is_coalesced,
            )
        else:
            elem = aten._sparse_compressed_tensor_unsafe.default(
                *parts.indices, values, parts.size, dtype=values.dtype, layout=parts.layout, device=_META
            )
    tensor = gpu.wrapped(elem)
    setattr(tensor, _ATTRIBUTE, parts)
    return tensor


def parts_of(tensor: Tensor) -> Parts:
    """`Parts` of a sparse tensor, fake or real."""
    found: Parts | None = getattr(tensor, _ATTRIBUTE, None)
    if found is not None:
        return found
    if not isinstance(tensor, FakeTensor):
        return _looked_up(tensor)
    mode, device = tensor.fake_mode, tensor.fake_device  # a tensor that C++ made
    with in_kernel_invocation_manager(mode):
        bare = _looked_up(tensor)
    indices = tuple(FakeTensor(mode, each, device) for each in bare.indices)
    return dataclasses.replace(bare, indices=indices, values=FakeTensor(mode, bare.values, device))


def _looked_up(tensor: Tensor) -> Parts:
    """`Parts` of a sparse tensor, as PyTorch reports its indices and values."""
    size = tuple(tensor.shape)
    if tensor.layout is torch.sparse_coo:
        return coordinates(size, tensor._indices(), tensor._values(), is_coalesced=tensor.is_coalesced())
    by_rows = tensor.layout in BY_ROWS
    compressed = tensor.crow_indices() if by_rows else tensor.ccol_indices()
    plain = tensor.col_indices() if by_rows else tensor.row_indices()
    return Parts(tensor.layout, size, (compressed, plain), tensor.values())


def become(tensor: Tensor, parts: Parts) -> Tensor:
    """Gives a fake sparse tensor other indices and values, as in-place operators do; returns the tensor."""
    setattr(tensor, _ATTRIBUTE, parts)
    return tensor
