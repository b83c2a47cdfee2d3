"""Convolutions that PyTorch refuses whatever memory there is: its kernels count elements in 32 bits."""

from __future__ import annotations

import math

from workers.knobs import conv
from workers.knobs.conv import Rewrite
from workers.predict.conditions import MIXED, Conditions
from workers.predict.workspace import MOST_ELEMENTS, goes_to_cudnn, is_depthwise
from workers.trace import Convolution


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
