"""Calls that PyTorch or FlashAttention refuses, however much memory there is.

PyTorch's direct kernel of depthwise convolutions counts elements in 32 bits, and so do those of pooling, of
reflection and replication padding, and of bilinear interpolation in channels last; its kernels of fused
attention give every sample of a batch a row of the grid, whose rows are limited (pytorch/pytorch#146704).
The kernels of FlashAttention, which are not PyTorch's, refuse some cards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autofit_workers.replay.curve.conditions import MIXED, Conditions
from autofit_workers.replay.curve.scratch.formulas import Platform
from autofit_workers.replay.plans.workspace import MOST_ELEMENTS, is_depthwise
from autofit_workers.replay.vendors import libraries_of
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.conv_algorithms import Rewrite
from autofit_workers.spec.work import Convolution

MOST_SAMPLES = 2**16 - 1  # largest second and third dimension of a CUDA kernel's grid
_FLASH_ATTENTION = "aten._scaled_dot_product_flash_attention"
_EFFICIENT_ATTENTION = "aten._scaled_dot_product_efficient_attention"
# Since this release, memory-efficient attention splits larger batches into chunks (`process_chunk` of
# transformers/cuda/attention.cu).
_EFFICIENT_IN_CHUNKS_SINCE = (2, 8)
_FUSED_ATTENTION = (_FLASH_ATTENTION, _EFFICIENT_ATTENTION)
MOST_POOLED = 2**31 - 1  # elements that a pool returns; its backward has no such limit


class _Counter(NamedTuple):
    """GPU kernel that counts elements in 32 bits and therefore refuses tensors with more.

    Attributes:
        does: verb for messages that say how many elements the kernel "pads" or "pools to".
        most: the largest number of elements that the kernel takes.
        lifted_in: PyTorch release since which the kernel takes more; None if no release up to 2.15 does.
        remedy: what the user can do, in words.
        by_result: whether the kernel counts the elements of its result; else those of the
            `Allocation.counted_shape`.
    """

    does: str
    most: int
    lifted_in: tuple[int, int] | None = None
    remedy: str = "take a smaller batch"
    by_result: bool = False


_PADDING = _Counter("pads or unpads", MOST_ELEMENTS)
_COUNTERS = {
    # `avg_pool2d_out_cuda` of cuda/AveragePool2d.cu
    "aten.avg_pool2d": _Counter("pools to", MOST_POOLED, by_result=True),
    # pytorch/pytorch#165374 and #167427
    "aten.max_pool2d_with_indices": _Counter("pools to", MOST_POOLED, lifted_in=(2, 10), by_result=True),
    "aten.reflection_pad2d": _PADDING,
    "aten.reflection_pad2d_backward": _PADDING,
    "aten.replication_pad2d": _PADDING,
    "aten.replication_pad2d_backward": _PADDING,
    # pytorch/pytorch#185788
    "aten.upsample_bilinear2d": _Counter(
        "interpolates",
        MOST_ELEMENTS,
        lifted_in=(2, 14),
        remedy="take a smaller batch, or --memory-format contiguous",
    ),
}


class _Cards(NamedTuple):
    """Range of compute capabilities that a library's kernels are built for.

    Attributes:
        name: name of the library.
        oldest, newest: capabilities as 10 × major + minor; None for no newest one.
    """

    name: str
    oldest: int
    newest: int | None = None


# github.com/Dao-AILab/flash-attention: csrc/flash_attn/flash_api.cpp, `mha_fwd`; hopper/setup.py, whose
# kernels are for sm_80 and sm_90a alone.
_FLASH_2, _FLASH_3 = _Cards("FlashAttention 2", 80), _Cards("FlashAttention 3", 80, 90)
_MADE_FOR = {
    "flash_attn._flash_attn_forward": _FLASH_2,
    "flash_attn._flash_attn_varlen_forward": _FLASH_2,
    "flash_attn_3._flash_attn_forward": _FLASH_3,
}
# Operators that may refuse to run because of their result's shape; other operators may because of an
# `Allocation.counted_shape`.
OPERATORS = frozenset(
    (*_FUSED_ATTENTION, *_MADE_FOR, *(name for name, each in _COUNTERS.items() if each.by_result))
)


class Refusal(NamedTuple):
    """Call that PyTorch or a kernel cannot run, and why.

    Attributes:
        allocation: index in the trace of the allocation that the call is refused for.
        module: path of the module that makes the call.
        reason: why the call cannot be run and what the user can do, in words that follow the module's name.
    """

    allocation: int
    module: str
    reason: str


def why_not_convolved(
    call: Convolution, conditions: Conditions, torch_release: tuple[int, int]
) -> str | None:
    """Reason why PyTorch refuses a convolution for its number of elements, as text; None if it runs.

    Args:
        call: the convolution.
        conditions: card, convolution algorithm and PyTorch release.
        torch_release: release that made the trace, used if `conditions` names none.
    """
    num_elements = too_many_elements(call, conditions, torch_release)
    if num_elements is None:
        return None
    # If cuDNN is enabled but not used, the reason is the layout: some releases keep channels last from it.
    in_vain = call.channels_last and conditions.policy.enabled
    hint = (
        "try --memory-format contiguous"
        if in_vain
        else ("cuDNN has no such limit: try --conv-algo cudnn, or --memory-format channels_last")
    )
    return (
        f"convolves {num_elements:,} elements channel by channel, but PyTorch's kernel for that takes at "
        f"most {MOST_ELEMENTS:,}; {hint}"
    )


def why_not_taken(
    operator: str, shape: Sequence[int], conditions: Conditions, torch_release: tuple[int, int]
) -> str | None:
    """Reason why an operator refuses a tensor or a card, as text; None if it runs.

    Args:
        operator: one of `OPERATORS`, or of those whose allocations have a `counted_shape`.
        shape: shape of the operator's result if it is one of `OPERATORS`, else the `counted_shape`.
        conditions: card and PyTorch release.
        torch_release: release that made the trace, used if `conditions` names none.
    """
    release = conditions.torch_release or torch_release
    if operator in _MADE_FOR:
        return _why_not_there(_MADE_FOR[operator], conditions.architecture)
    if operator in _FUSED_ATTENTION:
        return _why_not_attended(operator, shape, release)
    counter, num_elements = _COUNTERS[operator], math.prod(shape)
    is_lifted = counter.lifted_in is not None and release >= counter.lifted_in
    if is_lifted or num_elements <= counter.most:
        return None
    return (
        f"{counter.does} {num_elements:,} elements, but PyTorch's kernel for that takes at most "
        f"{counter.most:,}; {counter.remedy}"
    )


def _why_not_there(cards: _Cards, architecture: str) -> str | None:
    """Reason why a library's kernels do not run on an architecture, as text; None if they do."""
    capability = Architecture.of(architecture).capability
    if cards.oldest <= capability <= (cards.newest or capability):
        return None
    newest = "" if cards.newest is None else f" to {cards.newest / 10}"
    newer = " and newer" if cards.newest is None else ""
    return (
        f"runs {cards.name}, which is for cards of compute capability {cards.oldest / 10}{newest}{newer}, "
        f"not {capability / 10}; choose another --attention"
    )


def _why_not_attended(operator: str, shape: Sequence[int], release: tuple[int, int]) -> str | None:
    """Reason why PyTorch's fused attention refuses a query for its batch, as text; None if it runs.

    Args:
        operator: name of the attention operator.
        shape: batch, heads, rows and head size; in windowed attention each window is a sample of the batch.
        release: major and minor version of PyTorch.
    """
    in_chunks = operator == _EFFICIENT_ATTENTION and release >= _EFFICIENT_IN_CHUNKS_SINCE
    if in_chunks or len(shape) != 4 or shape[0] <= MOST_SAMPLES:
        return None
    return (
        f"computes attention in {shape[0]:,} sequences or windows at once, but PyTorch's fused attention "
        f"takes at most {MOST_SAMPLES:,}; take a smaller batch"
    )


def too_many_elements(
    call: Convolution, conditions: Conditions, torch_release: tuple[int, int]
) -> int | None:
    """Number of elements of a convolution's larger tensor if its kernel refuses so many; else None.

    Only the direct kernel of depthwise convolutions refuses (`conv_depthwise2d_forward_out` in
    DepthwiseConv2d.cu, PyTorch 2.13); cuDNN and the other kernels of ATen split the batch.

    Args:
        call: the convolution.
        conditions: card, convolution algorithm and PyTorch release.
        torch_release: release that made the trace, used if `conditions` names none.
    """
    algorithm = conv.find(conditions.conv_algo)
    left: Convolution | None = call
    if isinstance(algorithm, Rewrite) and algorithm.name != MIXED and algorithm.leaves(call) is None:
        left = algorithm.handed_on(call)
    if left is None or not is_depthwise(left) or len(left.stride) != 2:
        return None
    release = conditions.torch_release or torch_release
    card = Architecture.of(conditions.architecture)
    if conditions.policy.enabled and libraries_of(card).runs(left, Platform(card, release)):
        return None
    num_elements = max(math.prod(left.input_shape), math.prod(left.output_shape))
    return num_elements if num_elements > MOST_ELEMENTS else None
