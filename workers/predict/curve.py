"""The peak curve: peak memory at any batch size, from the traces at two or three.

Every dimension of every tensor is a line in the batch size, or the traces differ in their events;
so a tensor's bytes are a product of lines, known exactly from two traces and checked on a third.
Workspaces are formulas of such shapes. No torch is needed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from workers.allocator import AllocatorSettings, Replay, live_peak_bytes, replay
from workers.allocator.settings import DEFAULT_SETTINGS
from workers.predict.polynomials import NotPolynomialError, line_through, size_polynomial, value_at
from workers.predict.workspace import workspace, worst_workspace_bytes
from workers.protocol import Verdict
from workers.trace import Allocation, Category, Convolution, Trace

_Workspaces = tuple[int, ...]


class BatchDependentEventsError(ValueError):
    """The events themselves depend on the batch size, so a peak needs a trace at that size."""


class Level(StrEnum):
    """What a replay assumes of the workspaces.

    `WORST` is the largest that any plan of a convolution wants, whatever plan the policy takes.
    """

    LOW = "low"
    LIKELY = "likely"
    HIGH = "high"
    WORST = "worst"

    @property
    def up_to(self) -> tuple[Level, ...]:
        """The levels that a peak "up to" this one covers, this one first.

        A workspace can also lower the peak, by the segment it leaves behind, hence the smaller
        ones; the likely peak is one assumption alone.
        """
        if self is Level.LIKELY:
            return (self,)
        order = (Level.LOW, Level.LIKELY, Level.HIGH, Level.WORST)
        return tuple(reversed(order[: order.index(self) + 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What decides a replay beside the batch size.

    Attributes:
        conv_algo: the backend policy, of `workers.protocol.CONV_ALGOS`.
        architecture: `sm_XY` of the card.
        settings: of PyTorch's caching allocator.
    """

    conv_algo: str = "cudnn"
    architecture: str = "sm_80"
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
        workspace_low_bytes, workspace_likely_bytes, workspace_high_bytes: the largest workspace of
            any one convolution call; they follow each other, so never two at a time.
        breakdown: bytes alive at the allocated peak, by category, adding up to it.
        live: what is alive at the allocated peak, largest first.
    """

    batch_size: int
    allocated_bytes: int
    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    workspace_low_bytes: int
    workspace_likely_bytes: int
    workspace_high_bytes: int
    breakdown: dict[Category, int]
    live: tuple[LiveAllocation, ...]


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
        except NotPolynomialError as error:
            raise BatchDependentEventsError(
                f"a tensor's size is no polynomial of the batch size: {error}"
            ) from error
        self._calls = list(dict.fromkeys(lines.values()))
        numbers = {call: number for number, call in enumerate(self._calls)}
        self._convolutions = [(index, numbers[call]) for index, call in lines.items()]
        self._replays: dict[tuple[object, ...], Replay] = {}
        self._last_shapes: tuple[int, tuple[list[int], list[Convolution]]] | None = None

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
        """The workspace of every different convolution call: with the batch, all that sizes depend on."""
        _, calls = self._shapes(batch_size)
        where = (conditions.conv_algo, conditions.architecture)
        if level is Level.WORST:
            return tuple(worst_workspace_bytes(call, *where) for call in calls)
        return tuple(getattr(workspace(call, *where), f"{level}_bytes") for call in calls)

    def _sizes(self, batch_size: int, workspaces: _Workspaces) -> list[int]:
        sizes = self._shapes(batch_size)[0].copy()
        for index, call in self._convolutions:
            sizes[index] = workspaces[call]
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
        return live_peak_bytes(self._events, self.sizes(batch_size, Conditions(), Level.LOW))

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

    def reserved_bytes(
        self,
        batch_size: int,
        conditions: Conditions,
        level: Level = Level.HIGH,
        *,
        stop_above_bytes: int | None = None,
    ) -> int:
        """The reserved peak up to a level, with `stop_above_bytes` as soon as it is above that."""
        highest = 0
        for workspaces in self._distinct_workspaces(batch_size, conditions, level):
            result = self._replay(batch_size, workspaces, conditions, stop_above_bytes=stop_above_bytes)
            highest = max(highest, result.peak_reserved_bytes)
            if stop_above_bytes is not None and highest > stop_above_bytes:
                break
        return highest

    def _distinct_workspaces(
        self, batch_size: int, conditions: Conditions, level: Level = Level.HIGH
    ) -> Iterator[_Workspaces]:
        seen = set()
        for one in level.up_to:
            workspaces = self._workspaces(batch_size, conditions, one)
            if workspaces not in seen:
                seen.add(workspaces)
                yield workspaces

    def runs_within(
        self, batch_size: int, conditions: Conditions, limit_bytes: int, level: Level = Level.HIGH
    ) -> bool:
        """Whether a size runs under a limit with the workspaces of a level, retries allowed."""
        return self.replay(batch_size, conditions, level, limit_bytes=limit_bytes).completed

    def verdict(
        self,
        batch_size: int,
        conditions: Conditions,
        budget_bytes: int | None,
        level: Level = Level.HIGH,
    ) -> Verdict:
        """Whether a size fits a budget without a retry of the allocator, fits thrashing, or fails."""
        if budget_bytes is None:
            return Verdict.FITS
        if self.reserved_bytes(batch_size, conditions, level, stop_above_bytes=budget_bytes) <= budget_bytes:
            return Verdict.FITS
        runs = self.runs_within(batch_size, conditions, budget_bytes, level)
        return Verdict.THRASH if runs else Verdict.OOM

    def estimate(self, batch_size: int, conditions: Conditions) -> PeakEstimate:
        """All that a report needs of one batch size."""
        low, likely_workspaces, high = spans = [
            self._workspaces(batch_size, conditions, level) for level in (Level.LOW, Level.LIKELY, Level.HIGH)
        ]
        likely = self._replay(batch_size, likely_workspaces, conditions)
        reserved = [
            self._replay(batch_size, workspaces, conditions).peak_reserved_bytes
            for workspaces in dict.fromkeys(spans)
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
            workspace_low_bytes=self._largest_workspace(batch_size, low),
            workspace_likely_bytes=self._largest_workspace(batch_size, likely_workspaces),
            workspace_high_bytes=self._largest_workspace(batch_size, high),
            breakdown=breakdown,
            live=tuple(sorted(live, key=lambda one: one.num_bytes, reverse=True)),
        )

    def _largest_workspace(self, batch_size: int, workspaces: _Workspaces) -> int:
        """The largest of convolutions; other calls may take something beside their outputs too."""
        calls = zip(self._shapes(batch_size)[1], workspaces, strict=True)
        return max((num_bytes for call, num_bytes in calls if isinstance(call, Convolution)), default=0)

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
