"""What PyTorch refuses whatever memory there is.

Its direct kernel of depthwise convolutions counts elements in 32 bits; its kernels of fused attention
give every sample of a batch a row of the grid, which has so many (pytorch/pytorch#146704).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from workers.knobs import conv
from workers.knobs.conv import Rewrite
from workers.predict.conditions import MIXED, Conditions
from workers.predict.workspace import MOST_ELEMENTS, goes_to_cudnn, is_depthwise
from workers.trace import Convolution

MOST_SAMPLES = 2**16 - 1  # of the grid of a CUDA kernel, in its second and third dimension
_FLASH_ATTENTION = "aten._scaled_dot_product_flash_attention"
_EFFICIENT_ATTENTION = "aten._scaled_dot_product_efficient_attention"
# From then on it goes through larger batches in chunks (`process_chunk` of transformers/cuda/attention.cu).
_EFFICIENT_IN_CHUNKS_SINCE = (2, 8)
FUSED_ATTENTION = (_FLASH_ATTENTION, _EFFICIENT_ATTENTION)


class Refusal(NamedTuple):
    """What cannot be run.

    Attributes:
        module: the path of the module.
        reason: what it does that PyTorch cannot, and what can be done, in words that follow its name.
    """

    module: str
    reason: str


def why_not_convolved(
    call: Convolution, conditions: Conditions, torch_release: tuple[int, int]
) -> str | None:
    """Why a convolution is refused, in words; None where it is not. See `too_many_elements`."""
    num_elements = too_many_elements(call, conditions, torch_release)
    if num_elements is None:
        return None
    return (
        f"convolves {num_elements:,} elements channel by channel, and PyTorch's kernel for that indexes up "
        f"to {MOST_ELEMENTS:,}; cuDNN has no such limit: try --conv-algo cudnn, or --memory-format "
        "channels_last"
    )


def why_not_attended(
    operator: str, num_samples: int, conditions: Conditions, torch_release: tuple[int, int]
) -> str | None:
    """Why fused attention is refused, in words; None where it is not.

    Args:
        operator: one of `FUSED_ATTENTION`.
        num_samples: of its batch, of which windows count as well.
        torch_release: of the trace.
    """
    release = conditions.torch_release or torch_release
    in_chunks = operator == _EFFICIENT_ATTENTION and release >= _EFFICIENT_IN_CHUNKS_SINCE
    if in_chunks or num_samples <= MOST_SAMPLES:
        return None
    return (
        f"attends in {num_samples:,} sequences or windows at once, and PyTorch's fused attention takes up to "
        f"{MOST_SAMPLES:,}; a smaller batch is all that helps"
    )


def too_many_elements(
    call: Convolution, conditions: Conditions, torch_release: tuple[int, int]
) -> int | None:
    """The elements of a convolution's larger tensor, where they are more than its kernel can index.

    The direct kernel of depthwise convolutions checks them (`conv_depthwise2d_forward_out` in
    DepthwiseConv2d.cu, PyTorch 2.13); cuDNN and the other kernels of ATen split the batch.

    Args:
        torch_release: of the trace.
    """
    algorithm = conv.find(conditions.conv_algo)
    left: Convolution | None = call
    if isinstance(algorithm, Rewrite) and algorithm.name != MIXED and algorithm.leaves(call) is None:
        left = algorithm.handed_on(call)
    if left is None or not is_depthwise(left) or len(left.stride) != 2:
        return None
    capability = int(conditions.architecture.removeprefix("sm_"))
    release = conditions.torch_release or torch_release
    if conditions.policy.enabled and goes_to_cudnn(left, capability, release):
        return None
    num_elements = max(math.prod(left.input_shape), math.prod(left.output_shape))
    return num_elements if num_elements > MOST_ELEMENTS else None
