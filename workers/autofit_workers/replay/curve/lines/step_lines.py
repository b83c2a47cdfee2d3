"""Sizes and shapes of a step as functions of the batch size, from traces at two or three batch sizes.

In traces with equal events, every dimension of every tensor is a line in the batch size. A tensor's bytes
are then a product of lines, known exactly from two traces and checked on a third.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from autofit_workers.replay.allocator import Choice, Choices, Streams
from autofit_workers.replay.curve import refusals
from autofit_workers.replay.curve.conditions import Call
from autofit_workers.replay.curve.launch_queue import with_queue
from autofit_workers.replay.curve.lines.call_lines import CallLines, call_lines
from autofit_workers.replay.curve.lines.polynomials import (
    F,
    Factors,
    Fit,
    Line,
    NotPolynomialError,
    line_through,
    lines_through,
    product,
    size_factors,
    value_at,
    values_at,
)
from autofit_workers.replay.curve.replay_memory import ReplayMemory
from autofit_workers.replay.curve.unrolled import unrolled_streams
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import Allocation, Trace
from autofit_workers.spec.vendors import Vendor
from autofit_workers.spec.versions import parse_release

_Value = TypeVar("_Value", bound=Hashable)
_NEWEST_RELEASE = "2.13"  # assumed for a trace without a PyTorch version

# Workspace or scratch bytes of each distinct call: first those of the calls' first runs, then, in the same
# order, those of their later runs. Together with the batch size they determine all sizes of a step.
Demanded = tuple[int, ...]


class BatchDependentEventsError(ValueError):
    """Allocations of a step follow no formula in the batch size, so each batch size needs its own trace."""


@dataclass(frozen=True, kw_only=True)
class StepFunctions(Generic[F]):
    """Allocations of a step as functions of batch size or sample size, each distinct function once.

    A *call* takes memory besides its outputs whose bytes are computed at a replay: a convolution its
    workspace, an operator its scratch memory, a library its estimated memory. Calls with equal functions
    count as one.

    Attributes:
        trace: the first of the traces that the functions were fitted to.
        sizes: distinct functions for the bytes of allocations.
        size_of: index in `sizes` for each allocation.
        calls: distinct calls, with functions for their dimensions.
        call_of: index in `calls` of each allocation that is a call's workspace or scratch memory, by the
            allocation's index.
        refusable: functions for the shapes that operators may refuse to run on, by index of the allocation.
    """

    trace: Trace
    sizes: Sequence[Factors[F]]
    size_of: Sequence[int]
    calls: Sequence[CallLines[F]]
    call_of: Mapping[int, int]
    refusable: Mapping[int, tuple[F, ...]]

    @classmethod
    def through(cls, traces: Sequence[Trace], fit: Fit[F]) -> Self:
        """Fits functions to the sizes of a step's allocations over several traces.

        Args:
            traces: traces of one workload and one knob setting (values of the training options).
            fit: finds a function, such as a line in the batch size, from one number's values in the traces.

        Raises:
            BatchDependentEventsError: the traces' events differ, or a dimension follows no such function.
        """
        _require_equal_events(traces)
        columns = list(zip(*(t.allocations for t in traces), strict=True))
        try:
            sizes = [size_factors(fit, [a.shape for a in c], [a.num_bytes for a in c]) for c in columns]
            found = {index: call_lines(fit, column) for index, column in enumerate(columns)}
            refusable = {
                index: lines_through(fit, [a.counted_shape or a.shape for a in column])
                for index, column in enumerate(columns)
                if column[0].counted_shape or column[0].operator in refusals.OPERATORS
            }
        except NotPolynomialError as error:
            raise BatchDependentEventsError(
                f"a tensor's size is not a polynomial of the batch size: {error}"
            ) from error
        distinct, size_of = _numbered(sizes)
        calls, numbers = _numbered([call for call in found.values() if call is not None])
        indices = (index for index, call in found.items() if call is not None)
        return cls(
            trace=traces[0],
            sizes=distinct,
            size_of=size_of,
            calls=calls,
            call_of=dict(zip(indices, numbers, strict=True)),
            refusable=refusable,
        )

    def mapped(self, function: Callable[[F], Line]) -> StepFunctions[Line]:
        """Copy in which `function` has turned every function into a line in the batch size.

        Calls that become equal by it count as one.
        """
        calls, numbers = _numbered([call.mapped(function) for call in self.calls])
        return StepFunctions(
            trace=self.trace,
            sizes=[(number, tuple(map(function, factors))) for number, factors in self.sizes],
            size_of=self.size_of,
            calls=calls,
            call_of={index: numbers[call] for index, call in self.call_of.items()},
            refusable={index: tuple(map(function, shape)) for index, shape in self.refusable.items()},
        )


class StepLines:
    """Allocations of a step at any batch size; with a single trace, at that trace's size alone.

    A *call* takes workspace or scratch memory, whose bytes are computed at a replay.

    Args:
        functions: the step's allocations, with dimensions as lines in the batch size.
        only_batch_size: the one batch size at which the step is known; None if it is known at any.
        traces: traces that the lines were fitted to; empty if the lines come from elsewhere.

    Attributes:
        trace: the first of the traces.
        only_batch_size, traces: as given.
        memory: cache of the step's replays and workspaces, at all batch sizes.
        torch_release: major and minor version of the PyTorch that made the traces.
        call_of: index among the distinct calls of each allocation that is a call's workspace or scratch
            memory, by the allocation's index.
        position_of: index of such an allocation's bytes in a `Demanded`, by the allocation's index. A
            `Demanded` lists the bytes of all distinct calls twice: for their first run, then for later runs.
    """

    def __init__(
        self,
        functions: StepFunctions[Line],
        *,
        only_batch_size: int | None = None,
        traces: Sequence[Trace] = (),
    ) -> None:
        self.trace = functions.trace
        self.traces = tuple(traces)
        self.only_batch_size = only_batch_size
        self.memory = ReplayMemory()
        self.torch_release = parse_release(self.trace.versions.get("torch", _NEWEST_RELEASE))
        self._polynomials = [product(factors) for factors in functions.sizes]
        self._place_of = functions.size_of
        self._calls = functions.calls
        self._refusable = functions.refusable
        self._queued: dict[int, Streams] = {}  # by the number of launches that a queue holds
        self.call_of = functions.call_of
        self.position_of = _positions(self.call_of, len(self._calls))

    @functools.cached_property
    def streams(self) -> Streams:
        """Streams of the replayed events, which are the same at every batch size."""
        return unrolled_streams(self.trace)

    def streams_on(self, vendor: Vendor) -> Streams:
        """Streams of the replayed events on a vendor's cards, with the host's waits for full launch queues.

        The waits are added only if the length of the vendor's queue is known, and if a stream uses blocks of
        another stream; else they make no difference.
        """
        room = vendor.facts.queued_launches
        if room is None or not self.streams.uses:
            return self.streams
        if room not in self._queued:
            self._queued[room] = with_queue(self.streams, self.trace, room)
        return self._queued[room]

    @classmethod
    def through(cls, traces: Sequence[Trace]) -> Self:
        """Fits lines in the batch size to the sizes of a step's allocations.

        Args:
            traces: traces of one workload and one knob setting (values of the training options), at different
                batch sizes.

        Raises:
            BatchDependentEventsError: the traces' events differ, or a dimension is no line in the batch size.
        """
        fit = functools.partial(line_through, tuple(t.batch_size for t in traces))
        only = traces[0].batch_size if len(traces) == 1 else None
        return cls(StepFunctions[Line].through(traces, fit), only_batch_size=only, traces=traces)

    def agrees_with(self, trace: Trace) -> bool:
        """Whether a trace has the events and sizes that the lines predict for the trace's batch size.

        A model that branches on the batch size, or splits its batches, may differ from the lines at some
        sizes.
        """
        batch_size, there = trace.batch_size, StepLines.through([trace])
        return (
            self.trace.events == trace.events
            and self.streams == there.streams
            and self.sizes_at(batch_size) == there.sizes_at(batch_size)
            and self.calls_at(batch_size) == there.calls_at(batch_size)
        )

    def sizes_at(self, batch_size: int) -> list[int]:
        """Bytes of every allocation at a batch size, with placeholders for workspaces and scratch memory."""
        values = [value_at(polynomial, batch_size) for polynomial in self._polynomials]
        return [values[place] for place in self._place_of]

    def calls_at(self, batch_size: int) -> list[Call]:
        """Distinct calls with workspace or scratch memory, with their shapes at a batch size."""
        return [lines.at(batch_size) for lines in self._calls]

    def refusable_at(self, batch_size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yields index and shape, at a batch size, of each allocation whose operator may refuse to run."""
        for index, lines in self._refusable.items():
            yield index, values_at(lines, batch_size)

    def choices(self, tried: Sequence[tuple[int, ...]], timed: frozenset[int]) -> Choices:
        """Smaller sizes that workspaces fall back to, by the index of the workspace's allocation.

        Only allocations that try several sizes, or in whose memory cuDNN's benchmark mode times plans, are
        listed.

        Args:
            tried: workspace bytes that each distinct call tries in turn: first for the calls' first runs,
                then for their later runs.
            timed: indices of the distinct calls whose plans cuDNN's benchmark mode times.
        """
        choices = dict[int, Choice]()
        for index, call in self.call_of.items():
            position = self.position_of[index]
            is_first = position == call
            found = tried[position + len(self._calls)] if is_first and call in timed else ()
            if found or len(tried[position]) > 1:
                choices[index] = Choice(call, tried[position], found)
        return choices


def _numbered(values: Sequence[_Value]) -> tuple[list[_Value], list[int]]:
    """Distinct values of a list, and for each entry the index of its value among them."""
    numbers: dict[_Value, int] = {}
    of_values = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), of_values


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
        if not same_calls or _course(first) != _course(other):
            raise BatchDependentEventsError(
                f"the step allocates differently at batch {first.batch_size} and {other.batch_size}"
            )


def _course(trace: Trace) -> tuple[object, ...]:
    """Key of a trace's events, host waits and repeated passes; traces fitted together have equal ones."""
    return trace.events, trace.host_waits, trace.repetition


def _kind(allocation: Allocation) -> tuple[object, ...]:
    """Key of how an allocation is sized and on which streams it is used; equal in all traces of a step."""
    formula = None if allocation.scratch is None else allocation.scratch.formula
    streams = (allocation.stream, allocation.stream_uses)
    return allocation.convolution is None, formula, allocation.span_bytes is None, streams
