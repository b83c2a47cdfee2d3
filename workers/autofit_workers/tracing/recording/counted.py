"""Finds tensors, other than the result, whose elements a kernel counts in 32 bits.

`autofit_workers.replay.curve.refusals` knows how many each takes. Left out are padding of sequences and of
volumes, and adaptive pooling in channels last: what it pools from is seldom the largest tensor of a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.operators import OpOverload, suggest_memory_format

aten: Any = torch.ops.aten

# cuda/UpSampleBilinear2d.cu: from so many channels on the kernel for channels last runs there.
_FEWEST_CHANNELS = 16


def counted_shape(func: OpOverload, args: tuple[Any, ...], result: Any) -> tuple[int, ...]:
    """Shape of the tensor that `func` counts in 32 bits if not the result; empty if there is none."""
    counted = COUNTED.get(func)
    return () if counted is None else tuple(counted(args[0], result))


def _first(first: Tensor, _result: Tensor) -> torch.Size:
    """Shape of the first argument, which `canUse32BitIndexMath` checks.

    It is the input, or the gradient in backward.
    """
    return first.shape


def _larger_in_channels_last(first: Tensor, result: Tensor) -> torch.Size:
    """Shape of the larger of input and result, if the channels-last kernel runs; empty otherwise.

    A result of the same shape is a copy, whatever its size.
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
