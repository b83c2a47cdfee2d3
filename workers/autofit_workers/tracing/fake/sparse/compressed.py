"""Operators on compressed sparse tensors (CSR, CSC, BSR, BSC), which allocate what ATen's CUDA code does.

Sources are SparseCsrTensor.cpp and SparseCsrTensorMath.cpp. `gpu` is the fake GPU's dispatch mode.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autofit_workers.tracing.fake.sparse.tensors import TRANSPOSED, Device, Parts, made, parts_of


def of_tensors(
    gpu: Device,
    compressed: Tensor,
    plain: Tensor,
    values: Tensor,
    size: Sequence[int] | None = None,
    *,
    layout: torch.layout,
    dtype: torch.dtype | None = None,
    **_options: Any,
) -> Tensor:
    """Compressed tensor that takes over the given indices and values (`sparse_compressed_tensor`).

    Without `size`, it follows from the indices, as in `sparse_compressed_tensor`.

    Args:
        compressed: row offsets, or column offsets of CSC and BSC.
        plain: column indices, or row indices of CSC and BSC.
    """
    if size is None:
        size = _size_of(layout, compressed, plain)
    first, second = (each if each.is_cuda else each.to("cuda") for each in (compressed, plain))
    if not values.is_cuda or dtype not in (None, values.dtype):
        values = values.to("cuda", dtype)
    return made(gpu, Parts(layout, tuple(size), (first, second), values))


def _size_of(layout: torch.layout, compressed: Tensor, plain: Tensor) -> tuple[int, int]:
    """Size of a compressed sparse matrix by its indices (`_estimate_sparse_compressed_tensor_size`)."""
    sizes = compressed.shape[-1] - 1, operator.index(plain.max()) + 1
    return sizes if layout in (torch.sparse_csr, torch.sparse_bsr) else sizes[::-1]


def empty(
    gpu: Device,
    size: Sequence[int],
    *,
    layout: torch.layout,
    dtype: torch.dtype | None = None,
    **_options: Any,
) -> Tensor:
    """Compressed tensor without stored elements (`empty_sparse_compressed`)."""
    where = torch.device("cuda")
    num = size[-2] if layout is torch.sparse_csr else size[-1]
    compressed = torch.empty(num + 1, dtype=torch.int64, device=where)
    plain = torch.empty(0, dtype=torch.int64, device=where)
    return made(
        gpu, Parts(layout, tuple(size), (compressed, plain), torch.empty(0, dtype=dtype, device=where))
    )


def copied(parts: Parts) -> Parts:
    """`Parts` with copies of a compressed tensor's indices and values."""
    first, second = parts.indices
    return dataclasses.replace(parts, indices=(first.clone(), second.clone()), values=parts.values.clone())


def clone(gpu: Device, tensor: Tensor, **_options: Any) -> Tensor:
    """Copy of a compressed sparse tensor."""
    return made(gpu, copied(parts_of(tensor)))


def elementwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Function that applies `function` to a compressed tensor's values and copies its indices.

    Source: `get_result_tensor_for_unary_op`.
    """

    def apply(gpu: Device, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        parts = parts_of(tensor)
        first, second = parts.indices
        copies = first.clone(), second.clone()
        values = function(parts.values, *args, **kwargs)
        return made(gpu, dataclasses.replace(parts, indices=copies, values=values))

    return apply


def transposed(gpu: Device, tensor: Tensor, first: int = 0, second: int = 1) -> Tensor:
    """Transposed compressed matrix (`sparse_compressed_transpose`).

    It has the same indices, in the other layout: CSC for CSR, and so on.

    Raises:
        RuntimeError: `first` or `second` is not one of the matrix's two dimensions.
    """
    parts = parts_of(tensor)
    num_dims = len(parts.size)
    dims = {first % num_dims, second % num_dims}
    if len(dims) == 1:
        return made(gpu, parts)
    if dims != {num_dims - 2, num_dims - 1}:
        raise RuntimeError("transpose(): can only transpose the two dimensions of a compressed matrix")
    values = parts.values.transpose(-2, -1) if parts.values.dim() > len(parts.size) - 1 else parts.values
    *batch, rows, columns = parts.size
    return made(
        gpu,
        dataclasses.replace(
            parts, layout=TRANSPOSED[parts.layout], size=(*batch, columns, rows), values=values
        ),
    )


def summed(_gpu: Device, tensor: Tensor, **_options: Any) -> Tensor:
    """Sum of all values of a compressed tensor (`sum_csr`)."""
    return parts_of(tensor).values.sum()
