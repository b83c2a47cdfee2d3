"""Shapes of calls whose memory is computed at a replay, as functions of the batch or sample size.

The bytes of a convolution's workspace, of an operator's scratch memory and of a library's estimated memory
are no polynomials of the batch size, but the dimensions that they are computed from are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from autofit_workers.replay.curve.lines.polynomials import F, Fit, Line, lines_through, value_at, values_at
from autofit_workers.replay.spans import Workspace
from autofit_workers.spec.trace import Allocation, Scratch
from autofit_workers.spec.work import Convolution


def call_lines(fit: Fit[F], column: Sequence[Allocation]) -> CallLines[F] | None:
    """Fits functions to the dimensions that determine an allocation whose size is computed at a replay.

    Args:
        fit: finds a function, such as a line in the batch size, from one number's values in the traces.
        column: one allocation of the step, as it is in each of the traces.

    Returns:
        The functions; None if the traces hold the allocation's bytes, as for ordinary tensors.

    Raises:
        NotPolynomialError: a dimension follows no such function.
    """
    if column[0].convolution is not None:
        return ConvolutionLines.through(fit, [c for c in (a.convolution for a in column) if c is not None])
    if column[0].scratch is not None:
        return _ScratchLines.through(fit, column)
    if column[0].span_bytes is not None:
        return _SpanLines.through(fit, column)
    return None


@dataclass(frozen=True, slots=True)
class ConvolutionLines(Generic[F]):
    """Convolution with a function of the batch size (such as constant + slope·B) for each of its dimensions.

    The filters' shape and the number of groups are functions too: a convolution with other filters for each
    sample folds the batch into the channels.

    Attributes:
        convolution: everything else of the convolution; its shapes are empty.
    """

    convolution: Convolution
    input_shape: tuple[F, ...]
    weight_shape: tuple[F, ...]
    output_shape: tuple[F, ...]
    groups: F

    @classmethod
    def through(cls, fit: Fit[F], calls: Sequence[Convolution]) -> ConvolutionLines[F]:
        """Fits a function to each dimension of one convolution over several traces.

        Args:
            fit: finds a function, such as a line in the batch size, from one number's values in the traces.
            calls: the convolution as it is in each of the traces.

        Raises:
            NotPolynomialError: a dimension follows no such function.
        """
        return cls(
            # The shapes are blanked so that the same layer in another step is the same key.
            dataclasses.replace(calls[0], input_shape=(), weight_shape=(), output_shape=(), groups=1),
            lines_through(fit, [c.input_shape for c in calls]),
            lines_through(fit, [c.weight_shape for c in calls]),
            lines_through(fit, [c.output_shape for c in calls]),
            fit([c.groups for c in calls]),
        )

    def mapped(self, function: Callable[[F], Line]) -> ConvolutionLines[Line]:
        """Copy with `function` applied to each dimension, now a linear function of the batch size."""
        return ConvolutionLines(
            self.convolution,
            tuple(map(function, self.input_shape)),
            tuple(map(function, self.weight_shape)),
            tuple(map(function, self.output_shape)),
            function(self.groups),
        )

    def at(self: ConvolutionLines[Line], batch_size: int) -> Convolution:
        """Convolution with the shapes that it has at a batch size."""
        blank = self.convolution
        return Convolution(  # written out: `dataclasses.replace` takes three times as long
            conv_pass=blank.conv_pass,
            input_shape=values_at(self.input_shape, batch_size),
            weight_shape=values_at(self.weight_shape, batch_size),
            output_shape=values_at(self.output_shape, batch_size),
            stride=blank.stride,
            padding=blank.padding,
            dilation=blank.dilation,
            groups=value_at(self.groups, batch_size),
            dtype=blank.dtype,
            element_bytes=blank.element_bytes,
            channels_last=blank.channels_last,
            transposed=blank.transposed,
        )


@dataclass(frozen=True, slots=True)
class _ScratchLines(Generic[F]):
    """Scratch memory of an operator, with a function of the batch size for each dimension it depends on.

    Attributes:
        correction: name of the kind of scratch memory in `autofit_workers.replay.curve.corrections`.
        scratch: everything else of the scratch memory; its dimensions are empty.
        dimensions: the functions.
    """

    correction: str
    scratch: Scratch
    dimensions: tuple[F, ...]

    @classmethod
    def through(cls, fit: Fit[F], column: Sequence[Allocation]) -> _ScratchLines[F]:
        pieces = [s for s in (a.scratch for a in column) if s is not None]
        return cls(
            column[0].correction,
            # Blanked so that the same layer in another step is the same key.
            dataclasses.replace(pieces[0], dimensions=()),
            lines_through(fit, [s.dimensions for s in pieces]),
        )

    def mapped(self, function: Callable[[F], Line]) -> _ScratchLines[Line]:
        """Copy in which `function` has turned each dimension's function into a line in the batch size."""
        return _ScratchLines(self.correction, self.scratch, tuple(map(function, self.dimensions)))

    def at(self: _ScratchLines[Line], batch_size: int) -> tuple[str, Scratch]:
        dimensions = values_at(self.dimensions, batch_size)
        blank = self.scratch
        scratch = Scratch(formula=blank.formula, dimensions=dimensions, element_bytes=blank.element_bytes)
        return self.correction, scratch


@dataclass(frozen=True, slots=True)
class _SpanLines(Generic[F]):
    """Estimate of a library's memory in bytes: likely, low and high value as functions of the batch size."""

    likely: F
    low: F
    high: F

    @classmethod
    def through(cls, fit: Fit[F], column: Sequence[Allocation]) -> _SpanLines[F]:
        low, high = lines_through(fit, [a.span_bytes for a in column if a.span_bytes is not None])
        return cls(fit([a.num_bytes for a in column]), low, high)

    def mapped(self, function: Callable[[F], Line]) -> _SpanLines[Line]:
        """Copy in which `function` has turned the function of each value into a line in the batch size."""
        return _SpanLines(function(self.likely), function(self.low), function(self.high))

    def at(self: _SpanLines[Line], batch_size: int) -> Workspace:
        high = value_at(self.high, batch_size)
        return Workspace(value_at(self.low, batch_size), value_at(self.likely, batch_size), high, high)


CallLines = ConvolutionLines[F] | _ScratchLines[F] | _SpanLines[F]
