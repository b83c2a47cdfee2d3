"""Buffers that cuSPARSE and Thrust allocate within operators on sparse tensors.

Only cuSPARSE on a card reports the size of its buffers (`cusparseSpMM_bufferSize` and similar functions,
called in cuda/SparseBlasImpl.cpp and cuda/SparseCUDABlas.cpp); its documentation gives none. Some algorithms
need no buffer; others divide the elements among threads. So the buffer of a product is estimated between
nothing and the size of the sparse matrix, likely one number per row. `cusparseSpGEMM` stores the products
that it sums.
"""

from __future__ import annotations

from torch import Tensor

from autofit_workers.replay.spans import between
from autofit_workers.spec.trace import CUSPARSE_BUFFER, SORT_BUFFER
from autofit_workers.tracing.fake.library_memory import library_memory
from autofit_workers.tracing.fake.sparse.tensors import Parts

_POINTER_BYTES = 8
_INDEX_BYTES = 4  # of cuSPARSE's int32 indices
_FEWEST_OF_A_TILE = 256  # least number of elements in a tile that Thrust sorts


def for_product(matrix: Parts) -> Tensor:
    """Buffer of cuSPARSE for a sparse times a dense matrix or vector (SpMM, SpMV), or for SDDMM."""
    rows_bytes = _POINTER_BYTES * (matrix.size[-2] + 1)
    copy_bytes = sum(each.numel() * each.element_size() for each in (*matrix.indices, matrix.values))
    return library_memory(between(0, min(rows_bytes, copy_bytes), copy_bytes), CUSPARSE_BUFFER)


def for_sparse_product(num_products: int, value_bytes: int) -> Tensor:
    """Buffer of cuSPARSE for a product of two sparse matrices (SpGEMM).

    It takes 1 to 4 times the bytes of an index and a value for each multiplication.

    Args:
        num_products: number of multiplications of elements.
        value_bytes: bytes of a value.
    """
    once_bytes = num_products * (_INDEX_BYTES + value_bytes)
    return library_memory(between(once_bytes, 2 * once_bytes, 4 * once_bytes), CUSPARSE_BUFFER)


def for_sort(num_elements: int, element_bytes: int) -> Tensor:
    """Buffer for Thrust's merge sort: a copy of the elements, and a number for each tile.

    Source: CUB's `DeviceMergeSort` (cub/device/dispatch/dispatch_merge_sort.cuh).
    """
    sorted_bytes = num_elements * element_bytes
    most_bytes = sorted_bytes + _POINTER_BYTES * (num_elements // _FEWEST_OF_A_TILE + 1)
    return library_memory(between(sorted_bytes, sorted_bytes, most_bytes), SORT_BUFFER)
