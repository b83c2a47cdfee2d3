"""Memory formats of convolution results, as cuDNN returns them on a GPU.

A build of PyTorch without cuDNN makes all results contiguous, so a network in channels last would lose
its memory format at the first layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.operators import OpOverload, suggest_memory_format

aten: Any = torch.ops.aten

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the weight's number of dimensions


def convolution_format(input: Tensor, weight: Tensor) -> torch.memory_format:  # noqa: A002
    """Memory format in which cuDNN is called: channels last if input or weight are, else contiguous.

    Source: `cudnn_conv_suggest_memory_format` of aten/src/ATen/native/ConvUtils.h. In channels last,
    depthwise convolutions use cuDNN too instead of PyTorch's own kernels (`use_cudnn_depthwise` of
    Convolution.cpp).
    """
    wanted = _FORMATS.get(weight.dim())
    if wanted is None or torch.float64 in (input.dtype, weight.dtype):
        return torch.contiguous_format
    formats = (suggest_memory_format(input), suggest_memory_format(weight))
    return wanted if wanted in formats else torch.contiguous_format


def as_cudnn_returns(func: OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """Result of an operator; that of a convolution is converted to the memory format that cuDNN returns."""
    if func is aten.convolution.default:
        return _in_format(result, convolution_format(args[0], args[1]))
    if func is aten.convolution_backward.default:
        wanted = convolution_format(args[1], args[2])
        grad_input, grad_weight, grad_bias = result
        return _in_format(grad_input, wanted), _in_format(grad_weight, wanted), grad_bias
    return result


def _in_format(tensor: Tensor | None, wanted: torch.memory_format) -> Tensor | None:
    return None if tensor is None else torch.empty_like(tensor, memory_format=wanted)
