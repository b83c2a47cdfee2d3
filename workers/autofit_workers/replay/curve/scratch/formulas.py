"""Sizes of operators' scratch memory on a card and a PyTorch release.

A trace has the name of a formula and the dimensions that it takes (`autofit_workers.spec.trace.Scratch`). The
size is computed here when the trace is replayed, because it can depend on the card, on the release, and on
the batch size by roundings and thresholds, which no polynomial has. The formulas repeat PyTorch's; each names
the file it is from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autofit_workers.replay.curve.scratch import flash as flash_scratch
from autofit_workers.replay.curve.scratch.reductions import Processors, reduction_bytes
from autofit_workers.replay.plans.device_properties import ARCHITECTURE_LIMITS
from autofit_workers.spec.architecture import Architecture, num_multiprocessors
from autofit_workers.spec.trace import Scratch

_MIB = 1024**2
_SMALL_SHARED_MEMORY = (86, 89, 120, 121)  # at most 99 KiB a block, CUDA programming guide
# The kernels with these tiles came in 2025; it is not verified that 2.8 was the first release with them.
_LAYER_NORM_TILES_SINCE = (2, 8)
_HOPPER_WORKSPACE_BYTES = 32 * _MIB
_CUBLAS_WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * 1024
_CUBLAS_LARGE_ON_MAJORS_SINCE = (2, 12)


@dataclass(frozen=True, slots=True)
class Platform:
    """Card architecture, multiprocessors and PyTorch release, on which scratch memory depends.

    Attributes:
        card: the card's architecture.
        torch_release: major and minor version.
        own_multiprocessors: number of the card's multiprocessors; None to assume that of the largest common
            card of its architecture.
    """

    card: Architecture
    torch_release: tuple[int, int]
    own_multiprocessors: int | None = None

    @property
    def capability(self) -> int:
        """The card's compute capability, major × 10 + minor."""
        return self.card.capability

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors of the card, or of its architecture's largest common card if they are not known.

        Sizes seldom come near a threshold that depends on this number.
        """
        return self.own_multiprocessors or num_multiprocessors(self.capability)


def scratch_bytes(scratch: Scratch, platform: Platform) -> int:
    """Bytes of one scratch allocation on an NVIDIA card, by the formula that the allocation names."""
    of_flash = flash_scratch.FORMULAS.get(scratch.formula)
    if of_flash is not None:
        return of_flash(scratch, platform.capability, platform.multiprocessors)
    return _FORMULAS[scratch.formula](scratch, platform)


def _elements(scratch: Scratch, _platform: Platform) -> int:
    return math.prod(scratch.dimensions) * scratch.element_bytes


def _cublas(scratch: Scratch, platform: Platform) -> int:
    """Bytes of the workspace of a cuBLAS handle on a card.

    If `CUBLAS_WORKSPACE_CONFIG` set the size as the trace was made, the product of the dimensions is that
    size. aten/src/ATen/cuda/CublasHandlePool.cpp: `parseChosenWorkspaceSize`.
    """
    if scratch.dimensions:
        return math.prod(scratch.dimensions)
    if platform.torch_release >= _CUBLAS_LARGE_ON_MAJORS_SINCE:
        large = platform.capability // 10 in (9, 10, 12)
    else:
        large = platform.capability == 90
    return _HOPPER_WORKSPACE_BYTES if large else _CUBLAS_WORKSPACE_BYTES


def _flash_rows(scratch: Scratch, _platform: Platform) -> int:
    """Bytes of a buffer with one number per head and row in flash attention's backward.

    Rows are padded to multiples of 128. transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`.
    """
    batch, heads, rows = scratch.dimensions
    return batch * heads * _ceil(rows, 128) * scratch.element_bytes


def _flash_query_gradient(scratch: Scratch, _platform: Platform) -> int:
    """Bytes of `dq_accum` in flash attention's backward, a padded copy of the query's gradient.

    Rows are padded to a multiple of 128, the head size to one of 32, and above 192 to 256.
    """
    batch, heads, rows, head_size = scratch.dimensions
    width = 256 if head_size > 192 else _ceil(head_size, 32)
    return batch * heads * _ceil(rows, 128) * width * scratch.element_bytes


def _efficient_query_gradient(scratch: Scratch, platform: Platform) -> int:
    """Bytes of the query gradient's tiles in memory-efficient attention's backward, each with a lock.

    Tiles are 64×64 for heads up to 64 and, where shared memory suffices, 128×64 for larger ones (the lists of
    kernels in mem_eff_attention/kernels/cutlassB.h; `workspace_elements_gq` of kernel_backward.h).
    """
    batch, heads, rows, head_size = scratch.dimensions
    large = head_size > 64 and platform.capability >= 80 and platform.capability not in _SMALL_SHARED_MEMORY
    tile = (128 if large else 64, 64)
    num_tiles = -(-rows // tile[0]) * -(-head_size // tile[1])
    return batch * heads * num_tiles * (tile[0] * tile[1] + 4) * 4


def _cudnn_query_gradient(scratch: Scratch, _platform: Platform) -> int:
    """Bytes of the buffers `softmax_sum` and `dQ_accum` of cuDNN's attention in backward.

    They hold a number for each row and each element of the query's gradient (NVIDIA/cudnn-frontend,
    node/scaled_dot_product_flash_attention.h). The engine's own memory is unknown without a card.
    """
    batch, heads, rows, head_size = scratch.dimensions
    return batch * heads * rows * (1 + head_size) * scratch.element_bytes


def _layer_norm_tiles(scratch: Scratch, platform: Platform) -> int:
    """Bytes of LayerNorm's partial sums in backward: one row of sums for every 32 rows of input.

    0 unless there are many rows. cuda/layer_norm_kernel.cu, `GammaBetaKernelCUDAInternal`.
    """
    *rows, width = scratch.dimensions
    num_rows, tiles = math.prod(rows), -(-width // 32)
    if platform.torch_release < _LAYER_NORM_TILES_SINCE:
        return 0
    if num_rows <= 64 * 1024 or width // 32 >= platform.multiprocessors // 2:
        return 0
    return min(32 * 1024 // tiles, -(-num_rows // 32)) * width * scratch.element_bytes


_EMBEDDING_SORTS_ABOVE = 3072
_ROWS_PER_PARTIAL_SUM = 10


def _embedding_indices(scratch: Scratch, _platform: Platform) -> int:
    """Bytes of an embedding's sorted indices in backward; 0 for few indices, which are not sorted.

    cuda/Embedding.cu, `embedding_dense_backward_cuda`.
    """
    num_indices = math.prod(scratch.dimensions)
    return num_indices * scratch.element_bytes if num_indices > _EMBEDDING_SORTS_ABOVE else 0


def _embedding_segments(scratch: Scratch, _platform: Platform) -> int:
    """Scratch bytes of an embedding's backward: an index for each distinct row; 0 for few indices.

    cuda/EmbeddingBackwardKernel.cu.
    """
    num_weights, *indices = scratch.dimensions
    num_indices = math.prod(indices)
    many = num_indices > _EMBEDDING_SORTS_ABOVE
    return min(num_indices, num_weights) * scratch.element_bytes if many else 0


def _embedding_partial_sums(scratch: Scratch, _platform: Platform) -> int:
    """Bytes of partial sums of up to ten gradient rows each, in an embedding's backward; 0 for few indices.

    `grad_weight_per_segment` of cuda/EmbeddingBackwardKernel.cu.
    """
    num_weights, width, *indices = scratch.dimensions
    num_indices = math.prod(indices)
    if num_indices <= _EMBEDDING_SORTS_ABOVE:
        return 0
    num_sums = num_indices // _ROWS_PER_PARTIAL_SUM + min(num_indices, num_weights)
    return num_sums * width * scratch.element_bytes


_SORTS_IN_PLACE_TO = 4096
_ONE_SORT_FILLS_A_CARD = 1_000_000
_FEW_SEGMENTS = 128
_MOST_AT_ONCE = 2**31 - 1


def _sort(scratch: Scratch, _platform: Platform) -> int:
    """Bytes of a sort's buffers; 0 for rows of up to 4096 numbers, which are sorted in place.

    The buffers hold the positions that are sorted along with the keys, and CUB's second copy of both. If
    there are only a few rows, all are sorted at once by pairs of row and position. CUB takes only kilobytes
    more (cuda/Sort.h, `should_use_small_sort`, and cuda/Sort.cu, `launch_stable_sort_kernel`).
    """
    *rows, length = scratch.dimensions
    if length <= _SORTS_IN_PLACE_TO:
        return 0
    num_segments = min(math.prod(rows), _MOST_AT_ONCE // length)
    of_cub = 8 + scratch.element_bytes
    if num_segments == 1 or length >= _ONE_SORT_FILLS_A_CARD:
        return length * (8 + of_cub)
    if num_segments < _FEW_SEGMENTS:
        return num_segments * length * (2 * 8 + scratch.element_bytes + of_cub)
    return num_segments * length * (8 + of_cub)


def _reduction(scratch: Scratch, platform: Platform) -> int:
    limits = ARCHITECTURE_LIMITS.get(platform.card.name, ARCHITECTURE_LIMITS["sm_80"])
    return reduction_bytes(
        scratch, Processors(num=platform.multiprocessors, threads=limits.max_threads_per_sm)
    )


_FORMULAS: dict[str, Callable[[Scratch, Platform], int]] = {
    "elements": _elements,
    "cublas": _cublas,
    "flash_rows": _flash_rows,
    "flash_query_gradient": _flash_query_gradient,
    "efficient_query_gradient": _efficient_query_gradient,
    "cudnn_query_gradient": _cudnn_query_gradient,
    "layer_norm_tiles": _layer_norm_tiles,
    "embedding_indices": _embedding_indices,
    "embedding_segments": _embedding_segments,
    "embedding_partial_sums": _embedding_partial_sums,
    "sort": _sort,
    "reduction": _reduction,
}


def _ceil(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
