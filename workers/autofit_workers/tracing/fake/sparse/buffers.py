"""Buffers that cuSPARSE and Thrust allocate within operators on sparse tensors.

cuSPARSE says how much it wants when it is asked on the card (`cusparseSpMM_bufferSize` and its like, in
cuda/SparseBlasImpl.cpp and cuda/SparseCUDABlas.cpp), and its documentation has no sizes. Some algorithms want
nothing; others divide the elements among threads. So a product takes between nothing and as much as the
sparse matrix has, likely a number for each row. `cusparseSpGEMM` keeps the products that it adds up.
"""

from __future__ import annotations

from torch import Tensor

from autofit_workers.replay.spans import between
from autofit_workers.spec.trace import CUSPARSE_BUFFER, SORT_BUFFER
from autofit_workers.tracing.fake.library_memory import library_memory
from autofit_workers.tracing.fake.sparse.tensors import Parts

_POINTER_BYTES = 8
_INDEX_BYTES = 4  # as cuSPARSE counts products
_FEWEST_OF_A_TILE = 256  # elements that are sorted together, of the smallest tiles


def for_product(matrix: Parts) -> Tensor:
    """Buffer that cuSPARSE takes for sparse times dense matrix or vector (SpMM, SpMV), or SDDMM."""
    rows_bytes = _POINTER_BYTES * (matrix.size[-2] + 1)
    copy_bytes = sum(each.numel() * each.element_size() for each in (*matrix.indices, matrix.values))
    return library_memory(between(0, min(rows_bytes, copy_bytes), copy_bytes), CUSPARSE_BUFFER)


def for_sparse_product(num_products: int, value_bytes: int) -> Tensor:
    """Buffer that cuSPARSE takes for sparse times sparse (SpGEMM).

    An index and a value for each product, 1 to 4 times.
    """
    once_bytes = num_products * (_INDEX_BYTES + value_bytes)
    return library_memory(between(once_bytes, 2 * once_bytes, 4 * once_bytes), CUSPARSE_BUFFER)


def for_sort(num_elements: int, element_bytes: int) -> Tensor:
    """Buffer for Thrust's merge sort: a copy of the sorted elements, and the bounds of its tiles.

    CUB's `DeviceMergeSort` (cub/device/dispatch/dispatch_merge_sort.cuh): a number for each tile.
    """
    sorted_bytes = num_elements * element_bytes
    most_bytes = sorted_bytes + _POINTER_BYTES * (num_elements // _FEWEST_OF_A_TILE + 1)
    return library_memory(between(sorted_bytes, sorted_bytes, most_bytes), SORT_BUFFER)
