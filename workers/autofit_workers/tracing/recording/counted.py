"""Finds tensors, other than the result, whose elements a CUDA kernel indexes with 32 bits.

`autofit_workers.replay.curve.refusals` has the largest size that each kernel accepts. Not covered are 1-D and
3-D padding, and adaptive pooling in channels last, whose input is seldom the largest tensor of a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.operators import OpOverload, suggest_memory_format

aten: Any = torch.ops.aten

# Least number of channels for which the channels-last kernel of cuda/UpSampleBilinear2d.cu runs.
_FEWEST_CHANNELS = 16


def counted_shape(func: OpOverload, args: tuple[Any, ...], result: Any) -> tuple[int, ...]:
    """Shape of the tensor besides the result that a CUDA kernel indexes with 32 bits; empty if none."""
    counted = COUNTED.get(func)
    return () if counted is None else tuple(counted(args[0], result))


def _first(first: Tensor, _result: Tensor) -> torch.Size:
    """Shape of the first argument, input or gradient, whose size `canUse32BitIndexMath` checks."""
    return first.shape


def _larger_in_channels_last(first: Tensor, result: Tensor) -> torch.Size:
    """Shape of the larger of input and result, if the operator's channels-last kernel runs; else empty.

    If both have the same shape, the operator copies, for which there is no limit.
    """
    in_channels_last = suggest_memory_format(first) is torch.channels_last
    if not in_channels_last or first.size(1) < _FEWEST_CHANNELS or first.shape == result.shape:
        return torch.Size()
    return max(first.shape, result.shape, key=math.prod)


COUNTED: dict[Any, Callable[[Tensor, Tensor], torch.Size]] = {
    # cuda/ReflectionPad.cu and cuda/ReplicationPadding.cu
    aten.reflection_pad2d.default: _first,
    aten.reflection_pad2d_backward.default: _first,
    aten.replication_pad2d.default: _first,
    aten.replication_pad2d_backward.default: _first,
    aten.upsample_bilinear2d.default: _larger_in_channels_last,
}
