"""The sizes and shapes of a step as functions of the batch size, from the traces at two or three.

Every dimension of every tensor is a line in the batch size, or the traces differ in their events;
so a tensor's bytes are a product of lines, known exactly from two traces and checked on a third.
No torch is needed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workers.allocator import Choice, Choices
from workers.predict.curve import refusals
from workers.predict.curve.call_lines import call_lines
from workers.predict.curve.conditions import Call
from workers.predict.curve.polynomials import (
    NotPolynomialError,
    lines_through,
    size_polynomial,
    value_at,
    values_at,
)
from workers.predict.versions import parse_release
from workers.trace import Allocation, Trace

_NEWEST_RELEASE = "2.13"  # of a trace that does not say

# Bytes that calls take beside their outputs: of every different call the first time, then of every one
# what it takes again. With the batch size that is all that the sizes of a step depend on.
Demanded = tuple[int, ...]


class BatchDependentEventsError(ValueError):
    """The events themselves depend on the batch size, so a peak needs a trace at that size."""


class StepLines:
    """What a step allocates at any batch size; with a single trace, at that trace's size alone.

    A *call* takes something beside its outputs that is worked out at a replay: a convolution its workspace,
    an operator its scratch memory, a library what is estimated of it. Calls with the same lines are one.

    Args:
        traces: of one workload and one knob setting, at different batch sizes.

    Attributes:
        trace: the first of the traces.
        only_batch_size: of a single trace; None for several.
        torch_release: major and minor version of the PyTorch that traced.
        call_of: by allocation that a call takes beside its outputs, the number of the call among the
            different ones.
        position_of: by the same allocation, where a `Demanded` has its bytes: in the second half from the
            call's second time on.

    Raises:
        BatchDependentEventsError: the traces differ in more than sizes that are products of
            lines in the batch size.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        _require_equal_events(traces)
        self.trace = traces[0]
        self.only_batch_size = traces[0].batch_size if len(traces) == 1 else None
        self.torch_release = parse_release(self.trace.versions.get("torch", _NEWEST_RELEASE))
        batch_sizes = tuple(t.batch_size for t in traces)
        columns = list(zip(*(t.allocations for t in traces), strict=True))
        try:
            polynomials = [_polynomial(batch_sizes, column) for column in columns]
            found = {index: call_lines(batch_sizes, column) for index, column in enumerate(columns)}
            self._refusable = {
                index: lines_through(batch_sizes, [a.counted_shape or a.shape for a in column])
                for index, column in enumerate(columns)
                if column[0].counted_shape or column[0].operator in refusals.OPERATORS
            }
        except NotPolynomialError as error:
            raise BatchDependentEventsError(
                f"a tensor's size is not a polynomial of the batch size: {error}"
            ) from error
        self._polynomials = list(dict.fromkeys(polynomials))  # most sizes are those of others
        places = {polynomial: place for place, polynomial in enumerate(self._polynomials)}
        self._place_of = [places[polynomial] for polynomial in polynomials]
        lines = {index: call for index, call in found.items() if call is not None}
        self._calls = list(dict.fromkeys(lines.values()))
        numbers = {call: number for number, call in enumerate(self._calls)}
        self.call_of = {index: numbers[call] for index, call in lines.items()}
        self.position_of = _positions(self.call_of, len(self._calls))

    def sizes_at(self, batch_size: int) -> list[int]:
        """Bytes of every allocation; what calls take is still to be put in."""
        values = [value_at(polynomial, batch_size) for polynomial in self._polynomials]
        return [values[place] for place in self._place_of]

    def calls_at(self, batch_size: int) -> list[Call]:
        """The different calls that take something beside their outputs."""
        return [lines.at(batch_size) for lines in self._calls]

    def refusable_at(self, batch_size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The allocations whose operators may refuse a shape, by their numbers, with that shape."""
        for index, lines in self._refusable.items():
            yield index, values_at(lines, batch_size)

    def choices(self, tried: Sequence[tuple[int, ...]], timed: frozenset[int]) -> Choices:
        """By allocation, what it tries in turn where that is more than one size, or room to time plans in.

        Args:
            tried: sizes in bytes, in the order of `Demanded`.
            timed: the numbers of the calls whose plans are timed.
        """
        choices = dict[int, Choice]()
        for index, call in self.call_of.items():
            position = self.position_of[index]
            is_first = position == call
            found = tried[position + len(self._calls)] if is_first and call in timed else ()
            if found or len(tried[position]) > 1:
                choices[index] = Choice(call, tried[position], found)
        return choices


def _positions(call_of: Mapping[int, int], num_calls: int) -> dict[int, int]:
    met: set[int] = set()
    positions = {}
    for index, call in call_of.items():
        positions[index] = call + num_calls if call in met else call
        met.add(call)
    return positions


def _require_equal_events(traces: Sequence[Trace]) -> None:
    first = traces[0]
    for other in traces[1:]:
        same_calls = len(first.allocations) == len(other.allocations) and all(
            a.operator == b.operator and _kind(a) == _kind(b)
            for a, b in zip(first.allocations, other.allocations, strict=True)
        )
        if not same_calls or first.events != other.events:
            raise BatchDependentEventsError(
                f"the step allocates differently at batch {first.batch_size} and {other.batch_size}"
            )


def _kind(allocation: Allocation) -> tuple[object, ...]:
    """What decides an allocation's size."""
    formula = None if allocation.scratch is None else allocation.scratch.formula
    return allocation.convolution is None, formula, allocation.span_bytes is None


def _polynomial(batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> tuple[int, ...]:
    return size_polynomial(batch_sizes, [a.shape for a in column], [a.num_bytes for a in column])
