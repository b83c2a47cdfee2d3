"""The peak curve: peak memory at any batch size, from the traces at two or three.

Every dimension of every tensor is a line in the batch size, or the traces differ in their events;
so a tensor's bytes are a product of lines, known exactly from two traces and checked on a third.
Workspaces are formulas of such shapes. No torch is needed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from workers.allocator import AllocatorSettings, Replay, live_peak_bytes, replay
from workers.allocator.settings import DEFAULT_SETTINGS
from workers.predict.polynomials import NotPolynomialError, line_through, size_polynomial, value_at
from workers.predict.formula_plans import FormulaPlans
from workers.predict.plans import PlanSource
from workers.predict.workspace import (
    NATIVE,
    NO_WORKSPACE,
    Workspace,
    goes_to_cudnn,
    native_workspace,
    workspace,
)
from workers.protocol import Verdict
from workers.trace import Allocation, Category, Convolution, Trace

_Workspaces = tuple[int, ...]


class BatchDependentEventsError(ValueError):
    """The events themselves depend on the batch size, so a peak needs a trace at that size."""


class Level(StrEnum):
    """Which end of a workspace estimate a replay assumes."""

    LOW = "low"
    LIKELY = "likely"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What decides a replay beside the batch size.

    Attributes:
        conv_algo: the backend policy, of `workers.protocol.CONV_ALGOS`.
        architecture: `sm_XY` of the card.
        plans: knows what cuDNN would do on the card; without any, formulas for its architecture.
        allow_tf32: whether fp32 convolutions may use tensor cores, PyTorch's default.
        settings: of PyTorch's caching allocator.
    """

    conv_algo: str = "cudnn"
    architecture: str = "sm_80"
    plans: PlanSource | None = None
    allow_tf32: bool = True
    settings: AllocatorSettings = DEFAULT_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAllocation:
    """An allocation alive at the allocated peak; its shape is that of the first trace."""

    allocation: Allocation
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakEstimate:
    """Predicted peaks of one configuration.

    Attributes:
        allocated_bytes, reserved_bytes: with the likely workspaces.
        low_bytes, high_bytes: the reserved peak over the span of the workspaces.
        breakdown: bytes alive at the allocated peak, by category, adding up to it.
        live: what is alive at the allocated peak, largest first.
    """

    batch_size: int
    allocated_bytes: int
    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    breakdown: dict[Category, int]
    live: tuple[LiveAllocation, ...]


def workspaces(calls: Sequence[Convolution], conditions: Conditions) -> list[Workspace]:
    """The workspace of each call under the conditions; plans are asked for all calls at once."""
    if conditions.conv_algo == NATIVE:
        return [native_workspace(call) for call in calls]
    source = conditions.plans or FormulaPlans(conditions.architecture)
    planned = [call for call in calls if goes_to_cudnn(call)]
    plans = dict(zip(planned, source.plans(planned), strict=True))
    return [
        workspace(call, plans[call], conditions.conv_algo, allow_tf32=conditions.allow_tf32)
        if call in plans
        else NO_WORKSPACE
        for call in calls
    ]


class PeakCurve:
    """Peak memory at any batch size; with a single trace, at that trace's size alone.

    Args:
        traces: of one workload and one knob setting, at different batch sizes.

    Attributes:
        trace: the first of the traces.

    Raises:
        BatchDependentEventsError: the traces differ in more than sizes that are products of
            lines in the batch size.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        _require_equal_events(traces)
        self.trace = traces[0]
        self._events = traces[0].events
        self._allocations = traces[0].allocations
        self._only_batch_size = traces[0].batch_size if len(traces) == 1 else None
        batch_sizes = tuple(t.batch_size for t in traces)
        columns = list(zip(*(t.allocations for t in traces), strict=True))
        try:
            self._polynomials = [_polynomial(batch_sizes, column) for column in columns]
            lines = {
                index: _ConvolutionLines.through(batch_sizes, column)
                for index, column in enumerate(columns)
                if column[0].convolution is not None
            }
            self._estimated = {
                index: _SpanLines.through(batch_sizes, column)
                for index, column in enumerate(columns)
                if column[0].span_bytes is not None
            }
        except NotPolynomialError as error:
            raise BatchDependentEventsError(
                f"a tensor's size is no polynomial of the batch size: {error}"
            ) from error
        self._calls = list(dict.fromkeys(lines.values()))
        numbers = {call: number for number, call in enumerate(self._calls)}
        self._convolutions = [(index, numbers[call]) for index, call in lines.items()]
        self._replays: dict[tuple[object, ...], Replay] = {}
        self._last_shapes: tuple[int, tuple[list[int], list[Convolution]]] | None = None
        self._last_spans: tuple[object, list[Workspace]] | None = None

    def at(self, batch_size: int) -> PeakCurve:
        """The curve that knows this batch size: this one, where `TracedCurve` makes one."""
        assert self._only_batch_size in (None, batch_size)
        return self

    def agrees_with(self, trace: Trace) -> bool:
        """Whether a trace at another size has the events and sizes that the curve gives there.

        A branch on the batch size, or a step that works in portions, shows only at some sizes.
        """
        sizes, calls = self._shapes(trace.batch_size)
        there = PeakCurve([trace])._shapes(trace.batch_size)
        return self._events == trace.events and (sizes, calls) == there

    def sizes(self, batch_size: int, conditions: Conditions, level: Level) -> list[int]:
        """Bytes of every allocation at a batch size."""
        return self._sizes(batch_size, self._workspaces(batch_size, conditions, level))

    def _workspaces(self, batch_size: int, conditions: Conditions, level: Level) -> _Workspaces:
        """The workspace of every different convolution call, and every other size that is an estimate.

        With the batch, all that sizes depend on.
        """
        of_calls = [getattr(span, f"{level}_bytes") for span in self._spans(batch_size, conditions)]
        return (*of_calls, *(lines.at(batch_size, level) for lines in self._estimated.values()))

    def _spans(self, batch_size: int, conditions: Conditions) -> list[Workspace]:
        """The workspace of every different call at all levels; those of the last conditions are kept."""
        key = (batch_size, conditions.conv_algo, conditions.architecture, conditions.allow_tf32, id(conditions.plans))
        if self._last_spans is None or self._last_spans[0] != key:
            self._last_spans = key, workspaces(self._shapes(batch_size)[1], conditions)
        return self._last_spans[1]

    def _sizes(self, batch_size: int, workspaces: _Workspaces) -> list[int]:
        sizes = self._shapes(batch_size)[0].copy()
        for index, call in self._convolutions:
            sizes[index] = workspaces[call]
        for index, num_bytes in zip(self._estimated, workspaces[len(self._calls) :], strict=True):
            sizes[index] = num_bytes
        return sizes

    def _shapes(self, batch_size: int) -> tuple[list[int], list[Convolution]]:
        """Sizes without workspaces, and the different convolution calls; the last batch's are kept."""
        if self._last_shapes is None or self._last_shapes[0] != batch_size:
            sizes = [
                p[0] + batch_size * p[1] if len(p) == 2 else value_at(p, batch_size)
                for p in self._polynomials
            ]
            self._last_shapes = batch_size, (sizes, [lines.at(batch_size) for lines in self._calls])
        return self._last_shapes[1]

    def lower_bound_bytes(self, batch_size: int) -> int:
        """The peak of live bytes without any workspace, which no algorithm gets below."""
        sizes = self._shapes(batch_size)[0].copy()
        for index, lines in self._estimated.items():
            sizes[index] = lines.at(batch_size, Level.LOW)
        return live_peak_bytes(self._events, sizes)

    def replay(
        self,
        batch_size: int,
        conditions: Conditions,
        level: Level = Level.LIKELY,
        *,
        limit_bytes: int | None = None,
        stop_above_bytes: int | None = None,
    ) -> Replay:
        """Replays the events at a batch size through the caching allocator."""
        workspaces = self._workspaces(batch_size, conditions, level)
        return self._replay(
            batch_size, workspaces, conditions, limit_bytes=limit_bytes, stop_above_bytes=stop_above_bytes
        )

    def _replay(
        self,
        batch_size: int,
        workspaces: _Workspaces,
        conditions: Conditions,
        *,
        limit_bytes: int | None = None,
        stop_above_bytes: int | None = None,
    ) -> Replay:
        """The same, remembered: policies and cards that agree in all workspaces share their replays."""
        key = (batch_size, workspaces, conditions.settings, limit_bytes)
        known = self._replays.get(key)
        if known is not None:
            stopped = not known.completed and limit_bytes is None
            if not stopped or (stop_above_bytes is not None and known.peak_reserved_bytes > stop_above_bytes):
                return known
        self._replays[key] = result = replay(
            self._events,
            self._sizes(batch_size, workspaces),
            settings=conditions.settings,
            limit_bytes=limit_bytes,
            stop_above_bytes=stop_above_bytes,
        )
        return result

    def high_bytes(
        self, batch_size: int, conditions: Conditions, *, stop_above_bytes: int | None = None
    ) -> int:
        """The high end of the reserved peak, with `stop_above_bytes` as soon as it is above that.

        A workspace can also lower the peak, by the segment it leaves behind, hence all levels.
        """
        highest = 0
        for workspaces in self._distinct_workspaces(batch_size, conditions):
            result = self._replay(batch_size, workspaces, conditions, stop_above_bytes=stop_above_bytes)
            highest = max(highest, result.peak_reserved_bytes)
            if stop_above_bytes is not None and highest > stop_above_bytes:
                break
        return highest

    def _distinct_workspaces(self, batch_size: int, conditions: Conditions) -> list[_Workspaces]:
        levels = (Level.HIGH, Level.LIKELY, Level.LOW)
        return list(dict.fromkeys(self._workspaces(batch_size, conditions, level) for level in levels))

    def verdict(self, batch_size: int, conditions: Conditions, budget_bytes: int | None) -> Verdict:
        """Whether a size fits a budget without a retry of the allocator, fits thrashing, or fails."""
        if budget_bytes is None:
            return Verdict.FITS
        if self.high_bytes(batch_size, conditions, stop_above_bytes=budget_bytes) <= budget_bytes:
            return Verdict.FITS
        limited = self.replay(batch_size, conditions, Level.HIGH, limit_bytes=budget_bytes)
        return Verdict.THRASH if limited.completed else Verdict.OOM

    def estimate(self, batch_size: int, conditions: Conditions) -> PeakEstimate:
        """All that a report needs of one batch size."""
        likely = self.replay(batch_size, conditions)
        reserved = [
            self._replay(batch_size, workspaces, conditions).peak_reserved_bytes
            for workspaces in self._distinct_workspaces(batch_size, conditions)
        ]
        live = self._live_at(likely.peak_allocated_position, batch_size, conditions)
        breakdown = dict.fromkeys(Category, 0)
        for one in live:
            breakdown[one.allocation.category] += one.num_bytes
        # A block can be larger than its request; that slack belongs to no tensor.
        breakdown[Category.OTHER] += likely.peak_allocated_bytes - sum(breakdown.values())
        return PeakEstimate(
            batch_size=batch_size,
            allocated_bytes=likely.peak_allocated_bytes,
            reserved_bytes=likely.peak_reserved_bytes,
            low_bytes=min(reserved),
            high_bytes=max(reserved),
            breakdown=breakdown,
            live=tuple(sorted(live, key=lambda one: one.num_bytes, reverse=True)),
        )

    def _live_at(self, position: int, batch_size: int, conditions: Conditions) -> list[LiveAllocation]:
        """What is alive right after an event."""
        sizes = self.sizes(batch_size, conditions, Level.LIKELY)
        alive: set[int] = set()
        for event in self._events[: position + 1]:
            if event >= 0:
                alive.add(event)
            else:
                alive.discard(~event)
        return [LiveAllocation(allocation=self._allocations[i], num_bytes=sizes[i]) for i in alive]


class TracedCurve:
    """The curve of a step whose events depend on the batch: one trace for every size asked.

    Args:
        trace_at: traces the step at a batch size.
    """

    def __init__(self, trace_at: Callable[[int], Trace]) -> None:
        self._trace_at = trace_at
        self._curves: dict[int, PeakCurve] = {}

    def at(self, batch_size: int) -> PeakCurve:
        """The curve that knows this batch size."""
        if batch_size not in self._curves:
            self._curves[batch_size] = PeakCurve([self._trace_at(batch_size)])
        return self._curves[batch_size]


@dataclass(frozen=True, slots=True)
class _ConvolutionLines:
    """A convolution whose feature maps have lines of the batch size for dimensions."""

    convolution: Convolution
    input_shape: tuple[tuple[int, int], ...]
    output_shape: tuple[tuple[int, int], ...]

    @classmethod
    def through(cls, batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> _ConvolutionLines:
        convolutions = [c for c in (a.convolution for a in column) if c is not None]
        inputs = zip(*(c.input_shape for c in convolutions), strict=True)
        outputs = zip(*(c.output_shape for c in convolutions), strict=True)
        return cls(
            # The shapes are blanked so that the same layer in another step is the same key.
            dataclasses.replace(convolutions[0], input_shape=(), output_shape=()),
            tuple(line_through(batch_sizes, dimension) for dimension in inputs),
            tuple(line_through(batch_sizes, dimension) for dimension in outputs),
        )

    def at(self, batch_size: int) -> Convolution:
        return dataclasses.replace(
            self.convolution,
            input_shape=tuple(value_at(line, batch_size) for line in self.input_shape),
            output_shape=tuple(value_at(line, batch_size) for line in self.output_shape),
        )


@dataclass(frozen=True, slots=True)
class _SpanLines:
    """The ends of an estimated size, as lines of the batch size."""

    likely: tuple[int, int]
    low: tuple[int, int]
    high: tuple[int, int]

    @classmethod
    def through(cls, batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> _SpanLines:
        ends = zip(*(a.span_bytes for a in column if a.span_bytes is not None), strict=True)
        likely = line_through(batch_sizes, [a.num_bytes for a in column])
        return cls(likely, *(line_through(batch_sizes, end) for end in ends))

    def at(self, batch_size: int, level: Level) -> int:
        lines = {Level.LOW: self.low, Level.LIKELY: self.likely}
        return value_at(lines.get(level, self.high), batch_size)


def _require_equal_events(traces: Sequence[Trace]) -> None:
    first = traces[0]
    for other in traces[1:]:
        same_calls = len(first.allocations) == len(other.allocations) and all(
            a.operator == b.operator and (a.convolution is None) == (b.convolution is None)
            for a, b in zip(first.allocations, other.allocations, strict=True)
        )
        if not same_calls or first.events != other.events:
            raise BatchDependentEventsError(
                f"the step allocates differently at batch {first.batch_size} and {other.batch_size}"
            )


def _polynomial(batch_sizes: tuple[int, ...], column: Sequence[Allocation]) -> tuple[int, ...]:
    return size_polynomial(batch_sizes, [a.shape for a in column], [a.num_bytes for a in column])
