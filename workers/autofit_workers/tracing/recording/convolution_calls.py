"""Describes the convolutions that an operator computes, for the trace."""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.spec.work import Convolution, ConvPass
from autofit_workers.tracing.fake.layouts import convolution_format
from autofit_workers.tracing.recording.names import name_of_type

# Looked up once for speed, as every operator of a step is compared with them.
_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


def convolutions(func: OpOverload, args: tuple[Any, ...], result: Any) -> list[Convolution | None]:
    """Convolution, as a `Convolution`, by which each output of an operator's call is computed.

    None stands for the gradient of a bias. The list is empty for other operators than `convolution` and
    `convolution_backward`.
    """
    if func is _CONVOLUTION:
        input, weight, _bias, stride, padding, dilation, transposed, _output_padding, groups = args  # noqa: A001
        shapes = (input, weight, result)
        passes: list[ConvPass | None] = [ConvPass.FPROP]
    elif func is _CONVOLUTION_BACKWARD:
        grad, input, weight, _, stride, padding, dilation, transposed, _output_padding, groups, mask = args  # noqa: A001
        shapes = (input, weight, grad)
        wanted = (ConvPass.DGRAD, ConvPass.WGRAD, None)
        passes = [p for p, needed in zip(wanted, mask, strict=True) if needed]
    else:
        return []
    first, weight, last = shapes
    if transposed:
        # Forward of a transposed convolution computes the input gradient of a plain convolution.
        first, last = last, first
        swapped = {ConvPass.FPROP: ConvPass.DGRAD, ConvPass.DGRAD: ConvPass.FPROP}
        passes = [None if p is None else swapped.get(p, p) for p in passes]
    return [
        None
        if conv_pass is None
        else Convolution(
            conv_pass=conv_pass,
            input_shape=tuple(first.shape),
            weight_shape=tuple(weight.shape),
            output_shape=tuple(last.shape),
            stride=tuple(stride),
            padding=tuple(padding),
            dilation=tuple(dilation),
            groups=groups,
            dtype=name_of_type(input.dtype),
            element_bytes=input.element_size(),
            channels_last=convolution_format(input, weight) is not torch.contiguous_format,
            transposed=transposed,
        )
        for conv_pass in passes
    ]
