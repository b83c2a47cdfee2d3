"""Conversions between sparse layouts and dense tensors, as in ATen/native/TensorConversions.cpp."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake.sparse import coordinates as coo
from autofit_workers.tracing.fake.sparse.tensors import (
    BLOCKED,
    BY_ROWS,
    TRANSPOSED,
    Device,
    Parts,
    coordinates,
    is_sparse,
    made,
    parts_of,
)
from autofit_workers.tracing.values.decisions import here

aten: Any = torch.ops.aten


def copied(
    gpu: Device, tensor: Tensor, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any
) -> Tensor:
    """Copy of a sparse tensor with another dtype or device (`_to_copy`); a copy on the CPU is real."""
    parts = parts_of(tensor)
    where = torch.device(device or "cuda")
    how = {"device": where, "non_blocking": options.get("non_blocking", False)}

    def moved(part: Tensor, **changed: Any) -> Tensor:
        copy: Tensor = aten._to_copy.default(part, **how, **changed)
        return copy

    if parts.layout is torch.sparse_coo:
        indices: tuple[Tensor, ...] = (moved(parts.indices[0]),)
        values = moved(parts.values, dtype=dtype)
    else:
        values = moved(parts.values, dtype=dtype)
        indices = tuple(map(moved, parts.indices))
    copy = dataclasses.replace(parts, indices=indices, values=values)
    return made(gpu, copy) if where.type == "cuda" else _on_host(copy)


def _on_host(parts: Parts) -> Tensor:
    """Real sparse CPU tensor of the given indices and values."""
    if parts.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            parts.indices[0],
            parts.values,
            parts.size,
            is_coalesced=parts.is_coalesced,
            check_invariants=False,
        )
    made_of: Any = torch.sparse_compressed_tensor
    copy: Tensor = made_of(
        *parts.indices, parts.values, parts.size, layout=parts.layout, check_invariants=False
    )
    return copy


def to_dense(
    gpu: Device, tensor: Tensor, dtype: torch.dtype | None = None, _masked_grad: bool | None = None
) -> Tensor:
    """Dense copy of a sparse tensor: zeros to which its elements are added.

    For compressed layouts this also allocates each element's offset in the dense tensor.
    """
    parts = parts_of(tensor)
    dense = torch.zeros(parts.size, dtype=dtype or parts.values.dtype, device="cuda")
    if parts.layout is torch.sparse_coo:
        return coo.added_in_place(gpu, dense, tensor)
    in_batches = parts.indices[1].new_zeros(parts.num_elements)
    pairs = _pairs(parts)
    rows, columns = pairs[0], pairs[1]
    rows.sub_(in_batches * parts.size[-2])
    offsets = columns + rows * parts.size[-1] + in_batches * math.prod(parts.size)
    block = math.prod(parts.values.shape[1:])
    dense.view(-1, block).index_add_(0, offsets, parts.values.reshape(-1, block))
    return dense.clone() if parts.layout in BLOCKED else dense  # blocks are rearranged


def _pairs(parts: Parts) -> Tensor:
    """Row and column of each element of a compressed tensor (`_convert_indices_from_csr_to_coo`)."""
    compressed, plain = parts.indices
    return plain.new_empty((2, plain.shape[-1]), dtype=compressed.dtype)


def _of_dense(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and values of a dense tensor's nonzero elements (`dense_to_sparse`)."""
    places = tensor.nonzero().transpose(0, 1)
    return places, tensor[tuple(places)]


def to_coordinates(gpu: Device, tensor: Tensor, sparse_dim: Any = None, **_options: Any) -> Tensor:
    """COO tensor of a dense or compressed tensor's elements (`_to_sparse`); a COO tensor is returned itself.

    Args:
        gpu: the fake GPU.
        tensor: the tensor.
        sparse_dim: number of leading dimensions that become sparse; None for all. A compressed tensor's are
            always two.
    """
    if not is_sparse(tensor):
        if isinstance(sparse_dim, int) and sparse_dim != tensor.dim():
            return _with_dense_dimensions(gpu, tensor, sparse_dim)
        places, values = _of_dense(tensor)
        return made(gpu, coordinates(tuple(tensor.shape), places, values, is_coalesced=True))
    parts = parts_of(tensor)
    if parts.layout is torch.sparse_coo:
        return tensor
    is_coalesced = parts.layout in BY_ROWS
    return made(gpu, coordinates(parts.size, _pairs(parts), parts.values, is_coalesced=is_coalesced))


def _with_dense_dimensions(gpu: Device, tensor: Tensor, sparse_dim: int) -> Tensor:
    kept = tensor.flatten(sparse_dim)
    places = (kept != 0).any(-1).nonzero().transpose(0, 1)
    values = tensor[tuple(places)]
    return made(gpu, coordinates(tuple(tensor.shape), places, values, is_coalesced=True))


def to_compressed(layout: torch.layout) -> Callable[..., Tensor]:
    """Function that converts a tensor of any layout to the compressed `layout`, as `_to_sparse_csr` does."""

    def convert(gpu: Device, tensor: Tensor, *blocks: Any, **_options: Any) -> Tensor:
        if layout in BLOCKED:
            return _to_blocks(gpu, tensor, layout, tuple(blocks[0]))
        if not is_sparse(tensor):
            return _dense_to_compressed(gpu, tensor, layout)
        if tensor.layout is torch.sparse_coo:
            return _coordinates_to_compressed(gpu, tensor, layout)
        if tensor.layout is layout:
            return tensor
        return _flipped(gpu, parts_of(tensor), layout)

    return convert


def masked(gpu: Device, tensor: Tensor, mask: Tensor) -> Tensor:
    """Compressed tensor of a dense tensor's values where a compressed mask has elements.

    PyTorch makes the mask dense first (`sparse_mask_sparse_compressed`).

    Raises:
        UnsupportedError: the mask's layout is blocked.
    """
    parts = parts_of(mask)
    if parts.layout in BLOCKED:
        raise UnsupportedError(f"sparse_mask by blocks at {here()} is not followed: measure instead")
    ones = parts.with_values(tensor.new_empty(1, dtype=torch.bool).expand(parts.num_elements))
    dense = to_dense(gpu, made(gpu, ones))
    places = torch.empty((parts.num_elements, 2), dtype=torch.int64, device=tensor.device)
    starts = _row_starts(parts.indices[0].shape[-1] - 1, tensor)
    chosen = torch.empty(parts.num_elements, dtype=torch.int64, device=tensor.device)
    values = tensor.flatten().index_select(0, chosen)
    del dense, chosen
    return made(gpu, Parts(parts.layout, parts.size, (starts, places.select(1, 1)), values))


def _row_starts(num_rows: int, like: Tensor) -> Tensor:
    """Row offsets of a compressed layout: `num_rows + 1` of int64 (`_convert_indices_from_coo_to_csr`)."""
    return torch.empty(num_rows + 1, dtype=torch.int64, device=like.device)


def _dense_to_compressed(gpu: Device, tensor: Tensor, layout: torch.layout) -> Tensor:
    """Compressed tensor of a dense tensor's nonzero elements (`dense_to_sparse_compressed`).

    Its plain indices are a view of the output of `nonzero`, which they keep alive.
    """
    mask = tensor != 0
    return _of_mask(gpu, tensor, layout, mask, tensor)


def _of_mask(gpu: Device, tensor: Tensor, layout: torch.layout, mask: Tensor, tiles: Tensor) -> Tensor:
    """Compressed tensor of the elements or blocks of a dense tensor that `mask` selects.

    Args:
        gpu: the fake GPU.
        tensor: the dense tensor.
        layout: layout of the result.
        mask: tensor that is true where an element or block is stored.
        tiles: the elements of `tensor`, with those of a block next to each other.
    """
    if layout not in BY_ROWS:
        mask, tiles = mask.transpose(0, 1), tiles.transpose(0, 1)
    places = mask.nonzero()
    starts = _row_starts(mask.shape[0], tensor)
    chosen = places.new_empty(len(places))  # positions in the flattened mask
    values = tiles.flatten(0, 1).index_select(0, chosen)
    return made(gpu, Parts(layout, tuple(tensor.shape), (starts, places.select(1, 1)), values))


def _coordinates_to_compressed(gpu: Device, tensor: Tensor, layout: torch.layout) -> Tensor:
    """Compressed copy of a COO tensor (`coo_to_sparse_csr`); for CSC it is transposed first."""
    if layout not in BY_ROWS:
        flipped = _coordinates_to_compressed(gpu, coo.transposed(gpu, tensor, 0, 1), TRANSPOSED[layout])
        parts = parts_of(flipped)
        return made(gpu, dataclasses.replace(parts, layout=layout, size=parts.size[::-1]))
    parts = parts_of(coo.coalesced(gpu, tensor))
    starts = _row_starts(parts.size[0], parts.values)
    return made(gpu, Parts(layout, parts.size, (starts, parts.indices[0].select(0, 1)), parts.values))


def _flipped(gpu: Device, parts: Parts, layout: torch.layout) -> Tensor:
    """Compressed matrix converted from rows to columns, or back (`sparse_compressed_to_flipped`)."""
    pairs = _pairs(parts)
    rows = parts.size[-2] if layout in BY_ROWS else parts.size[-1]
    numbers = pairs[0] * parts.size[-1] + pairs[1]
    order = numbers.sort()[1]
    starts = _row_starts(rows, parts.values)
    sorted_rows = pairs[0].index_select(0, order)
    plain = pairs[1].index_select(0, order)
    values = parts.values.index_select(0, order)
    del numbers, order, sorted_rows, pairs
    return made(gpu, Parts(layout, parts.size, (starts, plain), values))


def _to_blocks(gpu: Device, tensor: Tensor, layout: torch.layout, block: tuple[int, int]) -> Tensor:
    """BSR or BSC tensor of a matrix's blocks that have a nonzero element (`_to_sparse_bsr`)."""
    if is_sparse(tensor):
        tensor = to_dense(gpu, tensor)
    is_there = tensor != 0
    tiles, mask = _tiled(tensor, block), _tiled(is_there, block).sum((-2, -1)) != 0
    return _of_mask(gpu, tensor, layout, mask, tiles)


def _tiled(tensor: Tensor, block: tuple[int, int]) -> Tensor:
    """Copy of a matrix in which the elements of each block are contiguous (`_tile_tensor`)."""
    rows, columns = (size // each for size, each in zip(tensor.shape, block, strict=True))
    return tensor.reshape(rows, block[0], columns, block[1]).transpose(1, 2).contiguous()
