"""Shapes that are computed at a replay, as functions of the batch size: every dimension is a line.

A convolution's workspace, an operator's scratch memory and a library's estimated memory are no
polynomials of the batch; what they are worked out from is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from workers.predict.curve.polynomials import Line, line_through, lines_through, value_at, values_at
from workers.predict.spans import Workspace
from workers.trace import Allocation, Convolution, Scratch


def call_lines(batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> CallLines | None:
    """The lines of one allocation over several traces; None where the trace itself has its size.

    Raises:
        NotPolynomialError: a dimension is no line in the batch size.
    """
    if column[0].convolution is not None:
        return _ConvolutionLines.through(batch_sizes, column)
    if column[0].scratch is not None:
        return _ScratchLines.through(batch_sizes, column)
    if column[0].span_bytes is not None:
        return _SpanLines.through(batch_sizes, column)
    return None


@dataclass(frozen=True, slots=True)
class _ConvolutionLines:
    """A convolution whose shapes have lines of the batch size for dimensions.

    The filters' shape and the groups are lines too: a convolution whose filters depend on the
    sample folds the batch into the channels.
    """

    convolution: Convolution
    input_shape: tuple[Line, ...]
    weight_shape: tuple[Line, ...]
    output_shape: tuple[Line, ...]
    groups: Line

    @classmethod
    def through(cls, batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> _ConvolutionLines:
        calls = [c for c in (a.convolution for a in column) if c is not None]
        return cls(
            # The shapes are blanked so that the same layer in another step is the same key.
            dataclasses.replace(calls[0], input_shape=(), weight_shape=(), output_shape=(), groups=1),
            lines_through(batch_sizes, [c.input_shape for c in calls]),
            lines_through(batch_sizes, [c.weight_shape for c in calls]),
            lines_through(batch_sizes, [c.output_shape for c in calls]),
            line_through(batch_sizes, [c.groups for c in calls]),
        )

    def at(self, batch_size: int) -> Convolution:
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
class _ScratchLines:
    """Scratch memory whose dimensions are lines of the batch size, with what it is a correction of."""

    correction: str
    scratch: Scratch
    dimensions: tuple[Line, ...]

    @classmethod
    def through(cls, batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> _ScratchLines:
        pieces = [s for s in (a.scratch for a in column) if s is not None]
        return cls(
            column[0].correction,
            # Blanked so that the same layer in another step is the same key.
            dataclasses.replace(pieces[0], dimensions=()),
            lines_through(batch_sizes, [s.dimensions for s in pieces]),
        )

    def at(self, batch_size: int) -> tuple[str, Scratch]:
        dimensions = values_at(self.dimensions, batch_size)
        blank = self.scratch
        scratch = Scratch(formula=blank.formula, dimensions=dimensions, element_bytes=blank.element_bytes)
        return self.correction, scratch


@dataclass(frozen=True, slots=True)
class _SpanLines:
    """The ends of an estimated size, as lines of the batch size."""

    likely: Line
    low: Line
    high: Line

    @classmethod
    def through(cls, batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> _SpanLines:
        low, high = lines_through(batch_sizes, [a.span_bytes for a in column if a.span_bytes is not None])
        return cls(line_through(batch_sizes, [a.num_bytes for a in column]), low, high)

    def at(self, batch_size: int) -> Workspace:
        high = value_at(self.high, batch_size)
        return Workspace(value_at(self.low, batch_size), value_at(self.likely, batch_size), high, high)


CallLines = _ConvolutionLines | _ScratchLines | _SpanLines
