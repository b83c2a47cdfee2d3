"""Workspaces of CPU convolutions that are known without running them.

The workspace of a rewrite follows from its formula. oneDNN and PyTorch's own kernels have to be run to learn
it (`scratch`), except kernels whose im2col columns would take more memory than a prediction may use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.replay.spans import Workspace, certain
from autofit_workers.spec.conv_algorithms import ConvAlgorithm, ConvPolicy, Rewrite
from autofit_workers.spec.work import Convolution
from autofit_workers.tracing.host import scratch
from autofit_workers.tracing.recording.convolution_calls import convolutions

aten: Any = torch.ops.aten

_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_MOST_COLUMNS_BYTES = 256 * 1024**2  # of one sample; larger columns are computed, not measured


def known(
    func: OpOverload, args: tuple[Any, ...], result: Any, algorithm: ConvAlgorithm
) -> list[Workspace | None] | None:
    """Workspace for each output of a CPU convolution, where it is known without running the convolution.

    Args:
        func, args, result: the operator's call.
        algorithm: algorithm of the convolutions.

    Returns:
        A workspace for each output, None for an output without one. None in place of the list if the operator
        is no convolution, or if it has to be run to know a workspace.
    """
    if func not in _CONVOLUTIONS:
        return None
    found = list(_spans(func, args, result, algorithm))
    return None if any(call is not None and span is None for call, span in found) else [s for _, s in found]


def reasons(
    func: OpOverload, args: tuple[Any, ...], result: Any, algorithm: ConvAlgorithm
) -> list[str | None]:
    """Reason why each convolution of a call is left to PyTorch's own kernel; None if `algorithm` rewrites it.

    A rewrite computes a convolution by other PyTorch operators.

    Args:
        func, args, result: the operator's call.
        algorithm: algorithm of the convolutions.
    """
    if func not in _CONVOLUTIONS or not isinstance(algorithm, Rewrite):
        return []
    calls = convolutions(func, args, result)
    return [algorithm.leaves(call) for call in calls if call is not None]


def _spans(
    func: OpOverload, args: tuple[Any, ...], result: Any, algorithm: ConvAlgorithm
) -> Iterator[tuple[Convolution | None, Workspace | None]]:
    calls = convolutions(func, args, result)
    numbers = [0] if func is aten.convolution.default else [n for n, wanted in enumerate(args[-1]) if wanted]
    for number, call in zip(numbers, calls, strict=True):
        yield call, None if call is None else _span(func, args, number, call, algorithm)


def _span(
    func: OpOverload,
    args: tuple[Any, ...],
    output: int,
    call: Convolution,
    algorithm: ConvAlgorithm,
) -> Workspace | None:
    """Workspace of one convolution on the CPU under `algorithm`; None if it has none that is known."""
    if isinstance(algorithm, Rewrite):
        if algorithm.leaves(call) is not None:
            return None
        part = algorithm.handed_on(call)
        if part is None:
            return certain(algorithm.own_bytes(call))
        by_backend = next(one for one in scratch.passes(func, args) if output in one.outputs)
        return by_backend.peak(args, part.input_shape[0]).plus(algorithm.own_bytes(call))
    assert isinstance(algorithm, ConvPolicy)
    return None if algorithm.enabled else _large_columns(call)


def _large_columns(call: Convolution) -> Workspace | None:
    """Workspace for the im2col columns of a batch, if too large to be run; None otherwise.

    Source: `slow_conv2d` of ConvolutionMM2d.cpp.
    """
    elements = call.input_shape[1] * math.prod(call.weight_shape[2:]) * math.prod(call.output_shape[2:])
    of_sample = call.element_bytes * elements
    return None if of_sample <= _MOST_COLUMNS_BYTES else certain(of_sample * call.input_shape[0])
