"""Softmax over the stored elements of a sparse tensor, and its gradient (cuda/SoftMax.cu)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from autofit_workers.tracing.fake.sparse import buffers
from autofit_workers.tracing.fake.sparse import coordinates as coo
from autofit_workers.tracing.fake.sparse.tensors import Device, Parts, made, parts_of

_INDEX_BYTES = 8


def softmax(gpu: Device, tensor: Tensor, dim: int, _half_to_float: bool = False) -> Tensor:
    """Softmax or log-softmax over the stored elements of a COO tensor."""
    parts = parts_of(coo.coalesced(gpu, tensor))
    result = dataclasses.replace(
        parts, indices=(parts.indices[0].clone(),), values=torch.empty_like(parts.values)
    )
    if dim % len(parts.size) >= parts.sparse_dim:
        values = torch.softmax(parts.values, dim % len(parts.size) - parts.sparse_dim + 1)
        return made(gpu, result.with_values(values))
    pools = _pools(parts)
    maxima = parts.values.new_full((parts.num_elements, *parts.values.shape[1:]), 0)
    _normalized(result.values, parts.values)
    del pools, maxima
    return made(gpu, result)


def backward(gpu: Device, grad: Tensor, output: Tensor, _dim: int, _input: Tensor) -> Tensor:
    """Gradient of a sparse softmax, a COO tensor with the indices of the softmax's output."""
    parts = parts_of(coo.coalesced(gpu, output))
    of_grad = parts_of(coo.coalesced(gpu, grad))
    result = dataclasses.replace(
        parts, indices=(parts.indices[0].clone(),), values=torch.zeros_like(parts.values)
    )
    offsets = coo.flattened(parts, clones=True), coo.flattened(of_grad, clones=True)
    bounds = torch.empty_like(offsets[0])
    pools = _pools(parts)
    _normalized(result.values, parts.values)
    del offsets, bounds, pools
    return made(gpu, result)


def _pools(parts: Parts) -> list[Tensor]:
    """Temporaries of a sparse softmax (`compute_pool_max`), whose pools are elements normalized together.

    They are each element's pool number, the sorted order of elements, and sizes and starts of the pools.
    """
    offsets = coo.flattened(parts, clones=True)
    order = torch.empty_like(offsets)
    buffer = buffers.for_sort(parts.num_elements, _INDEX_BYTES)
    del buffer
    sizes = torch.empty_like(offsets)
    return [offsets, order, sizes, sizes.clone()]


def _normalized(result: Tensor, values: Tensor) -> Any:
    return result.copy_(values)
