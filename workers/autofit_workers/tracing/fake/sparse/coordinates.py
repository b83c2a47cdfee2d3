"""Operators on sparse COO tensors, which allocate what ATen's CUDA code does.

Sources are SparseTensor.cpp, SparseTensorMath.cpp and their counterparts in cuda/. `gpu` is the fake GPU's
dispatch mode.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.autograd import current_node
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake.sparse import buffers
from autofit_workers.tracing.fake.sparse.tensors import (
    Device,
    Parts,
    become,
    coordinates,
    is_sparse,
    made,
    parts_of,
)
from autofit_workers.tracing.values.decisions import here, running
from autofit_workers.tracing.values.known import known, learn

aten: Any = torch.ops.aten

_INDEX_BYTES = 8
_ACCUMULATES = "torch::autograd::AccumulateGrad"


def of_tensors(  # noqa: PLR0917 - the operator's own signature
    gpu: Device,
    sparse_dim: int,  # noqa: ARG001 - the operator's own signature
    dense_dim: int,  # noqa: ARG001 - likewise
    size: Sequence[int],
    indices: Tensor,
    values: Tensor,
    *,
    is_coalesced: bool | None = None,
    **_options: Any,
) -> Tensor:
    """COO tensor that takes over given indices and values (`_sparse_coo_tensor_with_dims_and_tensors`).

    Every public constructor of COO tensors calls this operator.
    """
    return made(gpu, coordinates(tuple(size), indices, values, is_coalesced=bool(is_coalesced)))


def empty(
    gpu: Device,
    size: Sequence[int],
    *,
    sparse_dim: int | None = None,
    dtype: torch.dtype | None = None,
    **_options: Any,
) -> Tensor:
    """COO tensor without stored elements."""
    num_sparse = len(size) if sparse_dim is None else sparse_dim
    where = torch.device("cuda")
    indices = torch.empty((num_sparse, 0), dtype=torch.int64, device=where)
    values = torch.empty((0, *size[num_sparse:]), dtype=dtype, device=where)
    return made(gpu, coordinates(tuple(size), indices, values, is_coalesced=True))


def flattened(parts: Parts, *, clones: bool = False) -> Tensor:
    """Linear index of each stored element of a COO tensor (`flatten_indices` of SparseTensorUtils.cpp).

    With one sparse dimension it is a view of the indices, unless `clones`.
    """
    if parts.sparse_dim == 1 and not clones:
        return parts.indices[0].select(0, 0)
    return torch.empty(parts.num_elements, dtype=torch.int64, device=parts.values.device)


def _places(parts: Parts) -> Tensor | None:
    """Linear index of each stored element of a COO tensor, a real tensor computed from known indices.

    None if these values are unknown.
    """
    found = known(parts.indices[0])
    if found is None or found.is_made_up:
        return None
    steps = [math.prod(parts.size[place + 1 : parts.sparse_dim]) for place in range(parts.sparse_dim)]
    return (found.values * torch.tensor(steps).unsqueeze(1)).sum(0)


def coalesced(gpu: Device, tensor: Tensor) -> Tensor:
    """Coalesced copy of a COO tensor; a tensor that is coalesced already is returned itself.

    Source: `_coalesce_sparse_cuda` of cuda/SparseCUDATensor.cu.
    """
    parts = parts_of(tensor)
    if parts.is_coalesced:
        return tensor
    if parts.num_elements < 2:
        return made(gpu, dataclasses.replace(copied(parts), is_coalesced=True))
    flat = flattened(parts, clones=True)
    order, offsets = torch.empty_like(flat), torch.empty_like(flat)
    buffer = buffers.for_sort(parts.num_elements, 2 * _INDEX_BYTES)
    del buffer
    num, places = _different(parts)
    values = parts.values.new_empty((num, *parts.values.shape[1:]))
    dense = parts.values.contiguous()
    del dense
    indices = flat.new_empty((parts.sparse_dim, num))
    if places is not None:
        sizes = parts.size[: parts.sparse_dim]
        learn(indices, torch.stack(torch.unravel_index(places, sizes)))
    del order, offsets, flat
    return made(gpu, coordinates(parts.size, indices, values, is_coalesced=True, num_different=num))


def _different(parts: Parts) -> tuple[int, Tensor | None]:
    """Number of distinct linear indices among a COO tensor's elements, and the indices as a real tensor.

    If the values of the indices are unknown, the number is an assumption and the tensor is None.
    """
    places = _places(parts)
    if places is not None:
        found = torch.unique(places)
        return len(found), found
    if parts.num_different is not None:
        return parts.num_different, None
    most = parts.num_elements
    return running().assume("different places of a sparse tensor", most, most), None


def copied(parts: Parts) -> Parts:
    """`Parts` with copies of a COO tensor's indices and values."""
    return dataclasses.replace(
        parts, indices=tuple(each.clone() for each in parts.indices), values=parts.values.clone()
    )


def clone(gpu: Device, tensor: Tensor, **_options: Any) -> Tensor:
    """Copy of a COO tensor; within the autograd node `AccumulateGrad`, the tensor's own parts uncopied.

    PyTorch's `accumulateGrad` (torch/csrc/autograd/functions/accumulate_grad.h) takes over a gradient to
    which it holds the last reference. A fake tensor always has another reference, so it would be cloned.
    """
    parts = parts_of(tensor)
    node: Any = current_node()
    is_kept = node is not None and node.name() == _ACCUMULATES
    return made(gpu, parts if is_kept else copied(parts))


def elementwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Function that applies `function` to a COO tensor's values and copies its indices.

    It coalesces the tensor first. Source: `coalesced_unary_ufunc` of SparseUnaryOps.cpp.
    """

    def apply(gpu: Device, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        parts = parts_of(coalesced(gpu, tensor))
        values = function(parts.values, *args, **kwargs)
        return made(gpu, _with_copied_indices(parts, values))

    return apply


def in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Function that applies `function` to a sparse tensor's values in place."""

    def apply(_gpu: Device, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        function(parts_of(tensor).values, *args, **kwargs)
        return tensor

    return apply


def _with_copied_indices(parts: Parts, values: Tensor) -> Parts:
    return dataclasses.replace(parts, indices=(parts.indices[0].clone(),), values=values)


def multiplied(gpu: Device, first: Tensor, second: Tensor) -> Tensor:
    """Elementwise product of a COO tensor with a number or a dense tensor (`mul_sparse`).

    Raises:
        UnsupportedError: both tensors are sparse.
    """
    tensor, other = (first, second) if is_sparse(first) else (second, first)
    if is_sparse(other):
        raise UnsupportedError(
            f"the product of two sparse tensors by elements at {here()} is not followed: measure instead, or "
            "convert one there with to_dense()"
        )
    parts = parts_of(tensor)
    if isinstance(other, Tensor) and other.dim():
        other = other.expand(parts.size)[tuple(parts.indices[0])]
    return made(gpu, _with_copied_indices(parts, parts.values.mul(other)))


def divided(gpu: Device, tensor: Tensor, other: Tensor, **kwargs: Any) -> Tensor:
    """COO tensor divided by a number (`div_sparse`)."""
    parts = parts_of(tensor)
    return made(gpu, _with_copied_indices(parts, parts.values.div(other, **kwargs)))


def masked(gpu: Device, tensor: Tensor, mask: Tensor, **_options: Any) -> Tensor:
    """COO tensor of a tensor's values at the indices of a sparse mask (`sparse_mask`)."""
    parts = parts_of(mask)
    if is_sparse(tensor):  # `sparse_mask_helper` flattens the indices of both
        searched = parts_of(coalesced(gpu, tensor)), flattened(parts, clones=True)
        del searched
        return made(gpu, _with_copied_indices(parts, torch.empty_like(parts.values)))
    ones = parts.values.new_empty((1,)).expand_as(parts.values)
    found = tensor[tuple(parts.indices[0])]
    return made(gpu, _with_copied_indices(parts, found.mul(ones)))


def joined(gpu: Device, tensors: list[Tensor], dim: int = 0) -> Tensor:
    """Concatenation of COO tensors along a sparse dimension (`cat_sparse`).

    Raises:
        UnsupportedError: `dim` is a dense dimension.
    """
    parts = [parts_of(each) for each in tensors]
    first = parts[0]
    dim %= len(first.size)
    if dim >= first.sparse_dim:
        raise UnsupportedError(
            f"cat of sparse tensors along a dense dimension at {here()} is not followed: measure instead"
        )
    indices = torch.cat([each.indices[0] for each in parts], 1)
    values = torch.cat([each.values for each in parts], 0)
    size = list(first.size)
    size[dim] = sum(each.size[dim] for each in parts)
    return made(gpu, coordinates(tuple(size), indices, values))


def norm(gpu: Device, tensor: Tensor, p: Any = 2, *_rest: Any, **_options: Any) -> Tensor:
    """Norm of a COO tensor's values (`norm_sparse`)."""
    values: Tensor = parts_of(coalesced(gpu, tensor)).values.norm(2 if p is None else p)
    return values


def added(gpu: Device, first: Tensor, second: Tensor, *, alpha: Any = 1) -> Tensor:
    """Sum of a dense or COO tensor and a COO tensor (`add_sparse`); dense if `first` is dense."""
    if not is_sparse(first):
        return _add_to(gpu, first.clone(), second)
    if not is_sparse(second):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    own, other = parts_of(first), parts_of(second)
    values = other.values if alpha == 1 else other.values.mul(alpha)
    both = torch.cat([own.indices[0], other.indices[0]], 1), torch.cat([own.values, values], 0)
    return made(gpu, coordinates(own.size, *both))


def added_in_place(gpu: Device, target: Tensor, other: Tensor, *, alpha: Any = 1) -> Tensor:
    """Adds a COO tensor to `target` in place; a sparse target gets new indices and values."""
    if not is_sparse(target):
        return _add_to(gpu, target, other)
    return become(target, parts_of(added(gpu, target, other, alpha=alpha)))


def _add_to(gpu: Device, target: Tensor, sparse: Tensor) -> Tensor:
    """Adds a COO tensor's elements to the dense `target` in place (`add_out_dense_sparse_cuda`).

    For a coalesced tensor PyTorch's kernel computes linear indices itself; for others they are allocated and
    passed to `index_add_`.
    """
    parts = parts_of(sparse)
    num = parts.num_elements
    if num:
        find = gpu.unseen((num,), torch.int64) if parts.is_coalesced else flattened(parts)
        target.flatten(0, parts.sparse_dim - 1).index_add_(0, find, parts.values.to(target.dtype))
    return target


def transposed(gpu: Device, tensor: Tensor, first: int = 0, second: int = 1) -> Tensor:
    """Transposed copy of a COO tensor with two rows of its indices swapped (ATen/native/TensorShape.cpp)."""
    parts = copied(parts_of(tensor))
    (indices,) = parts.indices
    one, other = indices.select(0, first), indices.select(0, second)
    kept = torch.zeros_like(one)
    kept.copy_(one)
    one.copy_(other)
    other.copy_(kept)
    size = list(parts.size)
    size[first], size[second] = size[second], size[first]
    return made(gpu, dataclasses.replace(parts, size=tuple(size), is_coalesced=False))


def summed(
    gpu: Device, tensor: Tensor, dim: Sequence[int] | int | None = None, *_rest: Any, **_o: Any
) -> Tensor:
    """Sum of a COO tensor over `dim` (`_sparse_sum`), or of all its values (`sum_coo`)."""
    parts = parts_of(tensor)
    if dim is None:
        return parts.values.sum()
    dims = {each % len(parts.size) for each in ([dim] if isinstance(dim, int) else dim)}
    dense = [each - parts.sparse_dim + 1 for each in dims if each >= parts.sparse_dim]
    values = parts.values.sum(dense) if dense else parts.values.clone()
    kept = [each for each in range(parts.sparse_dim) if each not in dims]
    if not kept:
        return values.sum(0)
    size = tuple(each for place, each in enumerate(parts.size) if place not in dims)
    indices = parts.indices[0].new_empty((len(kept), parts.num_elements))
    found = known(parts.indices[0])
    if found is not None and not found.is_made_up:
        learn(indices, found.values[kept])
    is_same = parts.is_coalesced and len(kept) == parts.sparse_dim
    return coalesced(gpu, made(gpu, coordinates(size, indices, values, is_coalesced=is_same)))


def summed_backward(gpu: Device, grad: Tensor, tensor: Tensor, dim: Sequence[int]) -> Tensor:
    """Gradient of a COO tensor's sum at its stored elements (`_sparse_sum_backward_cuda`)."""
    parts = parts_of(coalesced(gpu, tensor))
    dims = {each % len(parts.size) for each in dim}
    if not is_sparse(grad):
        values = grad.reshape(-1)[:1].expand(parts.values.numel()).clone().view(parts.values.shape)
        return made(gpu, _with_copied_indices(parts, values))
    of_grad = parts_of(coalesced(gpu, grad))
    if not any(each < parts.sparse_dim for each in dims):
        values = of_grad.values.new_empty(parts.values.shape)
        return made(gpu, _with_copied_indices(parts, values))
    values = torch.empty_like(parts.values)
    searched = flattened(of_grad, clones=True), flattened(parts, clones=True)
    positions = torch.empty_like(searched[1])
    del positions, searched
    return made(gpu, _with_copied_indices(parts, values))
