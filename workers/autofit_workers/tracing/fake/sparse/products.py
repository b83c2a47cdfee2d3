"""Matrix products with sparse matrices, which allocate what ATen's CUDA code does.

Sources are SparseCUDATensorMath.cu, SparseBlas.cpp and SparseBlasImpl.cpp in cuda/. `gpu` is the fake GPU's
dispatch mode.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake.sparse import buffers, compressed, conversions
from autofit_workers.tracing.fake.sparse import coordinates as coo
from autofit_workers.tracing.fake.sparse.tensors import (
    BLOCKED,
    Device,
    Parts,
    coordinates,
    is_sparse,
    made,
    parts_of,
)
from autofit_workers.tracing.values.decisions import here, running

aten: Any = torch.ops.aten

_ADDED = aten._sparse_addmm.default
# Dtypes of COO products (`AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES` of cuda/SparseBlasLegacy.cpp).
_DTYPES = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.int64: "Long", torch.int32: "Int"}


def product(gpu: Device, first: Tensor, second: Tensor) -> Tensor:
    """Matrix product (`mm`) of which at least one factor is sparse.

    With one dense factor PyTorch runs `addmm` on new zeros, which take memory too.
    """
    if is_sparse(first) and is_sparse(second):
        return of_two_sparse(gpu, first, second)
    dense = second if is_sparse(first) else first
    zeros = dense.new_zeros((first.shape[0], second.shape[1]))
    return added(gpu, zeros, first, second, beta=0)


def added(
    gpu: Device, total: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """Sum of a dense matrix and the product of a sparse and a dense one (`addmm` and `_sparse_addmm`).

    Raises:
        UnsupportedError: both factors are sparse.
    """
    del alpha  # a number, which takes no memory
    if is_sparse(first) and is_sparse(second):
        raise UnsupportedError(
            f"the sum with a product of two sparse matrices at {here()} is not followed: measure instead"
        )
    if is_sparse(first):
        shape = (first.shape[0], second.shape[1])
        of = _by_coordinates if first.layout is torch.sparse_coo else _by_compressed
        return of(gpu, shape, first, second)
    # PyTorch computes dense times sparse as the transpose of sparse times dense.
    flipped = added(gpu, total.t(), _flipped(gpu, second), first.t(), beta=beta)
    result: Tensor = flipped.t()
    return result


def _flipped(gpu: Device, matrix: Tensor) -> Tensor:
    if matrix.layout is torch.sparse_coo:
        return coo.transposed(gpu, matrix)
    return compressed.transposed(gpu, matrix)


def _by_coordinates(gpu: Device, shape: tuple[int, int], first: Tensor, second: Tensor) -> Tensor:
    """Product of a COO and a dense matrix (`s_addmm_out_sparse_dense_cuda`).

    Temporaries are row offsets and columns in int32, the result in column-major order, and cuSPARSE's buffer.

    Raises:
        RuntimeError: PyTorch has no such product for the dtype.
    """
    if second.dtype not in _DTYPES:
        name = _NAMES.get(second.dtype, str(second.dtype).removeprefix("torch."))
        raise RuntimeError(f"\"addmm_sparse_cuda\" not implemented for '{name}'")
    result = second.new_empty(shape)
    matrix = coo.coalesced(gpu, first)
    parts = parts_of(matrix)
    starts = _int32(shape[0] + 1, second)
    rows = _int32(parts.num_elements, second)
    del rows
    columns = _int32(parts.num_elements, second)
    by_columns = second.new_empty(shape[::-1])
    dense = second if _is_dense(second) or _is_dense(second.t()) else second.contiguous()
    used = dataclasses.replace(parts, indices=(starts, columns))
    buffer = buffers.for_product(used)
    _note(gpu, parts, dense, result)
    del starts, columns, by_columns, buffer
    return result


def _by_compressed(gpu: Device, shape: tuple[int, int], first: Tensor, second: Tensor) -> Tensor:
    """Product of a compressed and a dense matrix (`addmm_out_sparse_csr`); CSC is converted to CSR first."""
    result = second.new_empty(shape)
    if first.layout is torch.sparse_csc:
        first = conversions.to_compressed(torch.sparse_csr)(gpu, first)
    parts = parts_of(first)
    dense = second if _is_by_rows_or_columns(second) else second.contiguous()
    if parts.layout not in BLOCKED:  # PyTorch's own Triton kernels need no buffer
        buffer = buffers.for_product(parts)
        del buffer
    _note(gpu, parts, dense, result)
    return result


def sampled(
    gpu: Device, matrix: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """Sparse matrix plus the product of two dense ones at its stored elements (`sparse_sampled_addmm`)."""
    del beta, alpha
    result = compressed.clone(gpu, matrix)
    parts = parts_of(result)
    left, right = (each if _is_by_rows_or_columns(each) else each.contiguous() for each in (first, second))
    buffer = buffers.for_product(parts)
    _note(gpu, parts, left, parts.values, right)
    del buffer
    return result


def with_vector(gpu: Device, matrix: Tensor, vector: Tensor) -> Tensor:
    """Sparse matrix times a vector (`mv`): for COO as a product with one column, else by cuSPARSE's SpMV."""
    if matrix.layout is torch.sparse_coo:
        return product(gpu, matrix, vector.unsqueeze(-1)).squeeze(-1)
    result = vector.new_empty(matrix.shape[0])
    if matrix.layout is torch.sparse_csc:
        matrix = conversions.to_compressed(torch.sparse_csr)(gpu, matrix)
    parts = parts_of(matrix)
    buffer = buffers.for_product(parts)
    _note(gpu, parts, vector.unsqueeze(-1), result)
    del buffer
    return result


def batched(gpu: Device, first: Tensor, second: Tensor) -> Tensor:
    """Batched product of a COO tensor and a dense one (`bmm_out_sparse_cuda`), stored column-major."""
    batch, rows, _ = first.shape
    result = second.new_empty((batch, second.shape[2], rows))
    dense = second.contiguous()
    parts = parts_of(coo.coalesced(gpu, first))
    indices = [_int32(parts.num_elements, second) for _ in range(2)]
    ends = torch.empty(batch, dtype=torch.int64, device=second.device)
    del ends
    buffer = buffers.for_product(dataclasses.replace(parts, indices=tuple(indices)))
    _note(gpu, parts, dense.flatten(0, 1), result)
    del indices, buffer
    return result.transpose(1, 2)


def of_two_sparse(gpu: Device, first: Tensor, second: Tensor) -> Tensor:
    """Product of two COO matrices by cuSPARSE's SpGEMM; its number of elements is assumed.

    Source: `sparse_sparse_matmul_cuda` of cuda/SparseMatMul.cu, with int32 indices.

    Raises:
        UnsupportedError: the matrices are not both COO.
    """
    if not (first.layout is second.layout is torch.sparse_coo):
        raise UnsupportedError(
            f"the product of two compressed sparse matrices at {here()} is not followed: measure instead, or "
            "convert them there with to_sparse()"
        )
    size = (first.shape[0], second.shape[1])
    left, right = (parts_of(coo.coalesced(gpu, each)) for each in (first, second))
    kept = [
        (_int32(each.size[0] + 1, each.values), _int32(each.num_elements, each.values))
        for each in (left, right)
    ]
    num_products, num = _num_products(left, right)
    value_bytes = left.values.element_size()
    buffer = buffers.for_sparse_product(num_products, value_bytes)
    starts, columns = _int32(size[0] + 1, left.values), _int32(num, left.values)
    values = left.values.new_empty(num)
    del buffer
    indices = torch.empty((2, num), dtype=torch.int64, device=values.device)
    del kept, starts, columns
    gpu.note(_ADDED, (left.values, right.values, *left.indices, *right.indices), values)
    return made(gpu, coordinates(size, indices, values))


def _num_products(left: Parts, right: Parts) -> tuple[int, int]:
    """Assumed numbers of multiplications, and of stored elements, of a product of two COO matrices.

    The number of stored elements is recorded as an assumed size.
    """
    most = left.size[0] * right.size[1]
    mean = -(-right.num_elements // max(right.size[0], 1))
    products = left.num_elements * max(mean, 1)
    num = running().assume("elements of a product of two sparse matrices", min(products, most), most)
    return products, num


def _note(gpu: Device, parts: Parts, dense: Tensor, result: Tensor, *others: Tensor) -> None:
    """Records the work of a product of a sparse and a dense matrix, from which its time is predicted.

    Each stored element of the sparse matrix reads a row of the dense one.
    """
    read = gpu.unseen((max(parts.num_elements, 1), dense.shape[-1]), dense.dtype)
    gpu.note(_ADDED, (parts.values, *parts.indices, read, *others), result)


def _int32(num: int, like: Tensor) -> Tensor:
    return torch.empty(num, dtype=torch.int32, device=like.device)


def _is_dense(matrix: Tensor) -> bool:
    return matrix.stride(1) == 1 and matrix.stride(0) == matrix.shape[1]


def _is_by_rows_or_columns(matrix: Tensor) -> bool:
    """Whether cuSPARSE reads a matrix uncopied, in row-major or column-major order.

    Source: `is_blas_compatible_row_major_order` and its column-major counterpart.
    """
    (rows, columns), (row, column) = matrix.shape, matrix.stride()
    return (column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows))
