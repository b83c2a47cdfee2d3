"""Convolutions that PyTorch refuses whatever memory there is: its kernels count elements in 32 bits."""

from __future__ import annotations

import math

from workers.knobs import conv
from workers.knobs.conv import Rewrite
from workers.predict.conditions import MIXED, Conditions
from workers.predict.workspace import goes_to_cudnn, is_depthwise
from workers.trace import Convolution

MOST_ELEMENTS = 2**31 - 2  # `canUse32BitIndexMath` wants fewer than the largest number of 32 bits


def too_many_elements(call: Convolution, conditions: Conditions) -> int | None:
    """The elements of a convolution's larger tensor, where they are more than its kernel can index.

    The direct kernel of depthwise convolutions checks them (`conv_depthwise2d_forward_out` in
    DepthwiseConv2d.cu, PyTorch 2.13); cuDNN and the other kernels of ATen split the batch.
    """
    algorithm = conv.find(conditions.conv_algo)
    left: Convolution | None = call
    if isinstance(algorithm, Rewrite) and algorithm.name != MIXED and algorithm.leaves(call) is None:
        left = algorithm.handed_on(call)
    if left is None or not is_depthwise(left) or len(left.stride) != 2:
        return None
    capability = int(conditions.architecture.removeprefix("sm_"))
    if conditions.policy.enabled and goes_to_cudnn(left, capability):
        return None
    num_elements = max(math.prod(left.input_shape), math.prod(left.output_shape))
    return num_elements if num_elements > MOST_ELEMENTS else None
