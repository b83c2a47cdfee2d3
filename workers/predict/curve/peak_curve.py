"""The peak curve: peak memory at any batch size, from the traces at two or three.

Every dimension of every tensor is a line in the batch size, or the traces differ in their events;
so a tensor's bytes are a product of lines, known exactly from two traces and checked on a third.
Workspaces follow from such shapes. No torch is needed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workers.allocator import Choice, Choices, Replay, live_peak_bytes, peak_of_blocks, replay
from workers.knobs import Knobs
from workers.predict.curve import mixed_convolutions, refusals
from workers.predict.curve.call_lines import call_lines
from workers.predict.curve.conditions import Call, Conditions, Level, demands
from workers.predict.curve.polynomials import (
    NotPolynomialError,
    lines_through,
    size_polynomial,
    value_at,
    values_at,
)
from workers.predict.curve.refusals import Refusal
from workers.predict.plans.plan import PlanSource
from workers.predict.spans import Workspace
from workers.predict.versions import parse_release
from workers.protocol import Verdict
from workers.trace import Allocation, Category, Convolution, Trace

# Small sizes trace fast; 1 and 2 are avoided because shapes of 1 take branches of their own.
TRACED_BATCH_SIZES = (4, 6, 10)

_MAX_REPLAYS = 4096  # remembered by a curve; some kB each
_Sizes = tuple[int, ...]  # of every different call, the first time and again
_NEWEST_RELEASE = "2.13"  # of a trace that does not say


def traced_knobs(knobs: Knobs, *, num_passes: int, for_host: bool = False) -> Knobs:
    """The knob setting whose traces do for this one.

    On cards convolution algorithms share theirs: what they take beside outputs is worked out at a
    replay; on the CPU it is in the trace. The allocator's settings decide nothing before a replay.

    Args:
        num_passes: of a step at the size that is traced, see `Knobs.num_passes`.
    """
    traced = dataclasses.replace(knobs.for_passes(num_passes), allocator="default")
    return traced if for_host else dataclasses.replace(traced, conv_algo="cudnn")


class BatchDependentEventsError(ValueError):
    """The events themselves depend on the batch size, so a peak needs a trace at that size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAllocation:
    """An allocation alive at the allocated peak; its shape is that of the first trace."""

    allocation: Allocation
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakEstimate:
    """Predicted peaks of one configuration.

    Attributes:
        allocated_bytes, reserved_bytes: with the likely workspaces. Where there are several sources of
            plans, these and what follows the ends are by the one whose reserved peak is the lower median.
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


class LikelyReplay(NamedTuple):
    """A replay at the likely level.

    Attributes:
        sizes: bytes of every allocation.
        found_bytes: by allocation that is room to time cuDNN's plans in, what the plan that is found there
            takes.
    """

    sizes: list[int]
    found_bytes: dict[int, int]
    replay: Replay


class Requests(NamedTuple):
    """What the events of a trace ask for at a batch size.

    Attributes:
        sizes: bytes of every allocation.
        choices: by allocation, what does with less where that cannot be had.
    """

    sizes: list[int]
    choices: Choices


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
        lines = {index: call for index, call in found.items() if call is not None}
        self._calls = list(dict.fromkeys(lines.values()))
        numbers = {call: number for number, call in enumerate(self._calls)}
        self._called = [(index, numbers[call]) for index, call in lines.items()]
        self._demand_of = _demand_numbers(self._called, len(self._calls))
        self._replays: dict[tuple[object, ...], Replay] = {}
        self._last_shapes: tuple[int, tuple[list[int], list[Call]]] | None = None
        self._last_demands: dict[tuple[int, Conditions, PlanSource], tuple[Workspace, ...]] = {}
        self._torch_release = parse_release(self.trace.versions.get("torch", _NEWEST_RELEASE))

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
        """Bytes of every allocation at a batch size, by the first of the sources of plans."""
        return self._sizes(batch_size, self._demanded(batch_size, conditions, conditions.sources[0], level))

    def _demanded(self, batch_size: int, conditions: Conditions, source: PlanSource, level: Level) -> _Sizes:
        """What calls take beside outputs: with the batch, all that sizes depend on.

        Of every different call what it takes the first time, then of every one what it takes again.
        """
        spans = self._demands(batch_size, conditions, source)
        again = [span.repeated for span in spans]
        return tuple(getattr(span, f"{level}_bytes") for span in (*spans, *again))

    def _demands(self, batch_size: int, conditions: Conditions, source: PlanSource) -> tuple[Workspace, ...]:
        """What every different call takes, at all levels; those of the last batch size are kept."""
        calls = self._shapes(batch_size)[1]
        key = (batch_size, conditions, source)
        if key not in self._last_demands:
            if any(known[0] != batch_size for known in self._last_demands):
                self._last_demands.clear()
            self._last_demands[key] = demands(calls, conditions, source, self._torch_release)
        return self._last_demands[key]

    def _sizes(self, batch_size: int, demanded: _Sizes) -> list[int]:
        sizes = self._shapes(batch_size)[0].copy()
        for index, number in self._demand_of.items():
            sizes[index] = demanded[number]
        return sizes

    def _shapes(self, batch_size: int) -> tuple[list[int], list[Call]]:
        """Sizes without workspaces, and the different calls that take some; the last batch's are kept."""
        if self._last_shapes is None or self._last_shapes[0] != batch_size:
            sizes = [
                p[0] + batch_size * p[1] if len(p) == 2 else value_at(p, batch_size)
                for p in self._polynomials
            ]
            self._last_shapes = batch_size, (sizes, [lines.at(batch_size) for lines in self._calls])
        return self._last_shapes[1]

    def lower_bound_bytes(self, batch_size: int) -> int:
        """The peak of live bytes without any workspace, which no algorithm gets below."""
        return live_peak_bytes(self._events, self._sizes_without_plans(batch_size, Level.LOW))

    def live_bytes(self, batch_size: int, level: Level, block_bytes: Callable[[int], int]) -> int:
        """The peak of live blocks, with estimated sizes at a level and without convolution plans.

        Args:
            block_bytes: the bytes of the block that a request of so many bytes gets.
        """
        sizes = self._sizes_without_plans(batch_size, level)
        return peak_of_blocks(self._events, [block_bytes(size) for size in sizes])

    def largest_estimate_bytes(self, batch_size: int) -> int:
        """The largest of the sizes that are estimated, likely; convolution plans are not among them."""
        calls = self._shapes(batch_size)[1]
        return max((call.likely_bytes for call in calls if isinstance(call, Workspace)), default=0)

    def _sizes_without_plans(self, batch_size: int, level: Level) -> Sequence[int]:
        """The size of every allocation, estimated ones at a level, those that plans decide left out."""
        calls = self._shapes(batch_size)[1]
        estimated = tuple(getattr(c, f"{level}_bytes") if isinstance(c, Workspace) else 0 for c in calls)
        return self._sizes(batch_size, 2 * estimated)

    def replay(
        self,
        batch_size: int,
        conditions: Conditions,
        level: Level = Level.LIKELY,
        *,
        stop_above_bytes: int | None = None,
    ) -> Replay:
        """Replays the events at a batch size, by the first of the sources of plans."""
        demanded = self._demanded(batch_size, conditions, conditions.sources[0], level)
        return self._replay(batch_size, demanded, conditions, stop_above_bytes=stop_above_bytes)

    def replay_within(
        self,
        batch_size: int,
        conditions: Conditions,
        limit_bytes: int,
        level: Level = Level.LIKELY,
        *,
        source: PlanSource | None = None,
    ) -> Replay:
        """Replays the events where no more than a limit can be reserved.

        There the allocator releases its cache and asks again, and cuDNN comes down to the next
        plan whose workspace can be had (`run_single_conv` of Conv_v8.cpp).
        """
        demanded, tried, timed = self._asked(batch_size, conditions, level, source)
        key = (batch_size, demanded, conditions.settings, limit_bytes, tried, timed)
        if key not in self._replays:
            self._replays[key] = replay(
                self._events,
                self._sizes(batch_size, demanded),
                settings=conditions.settings,
                limit_bytes=limit_bytes,
                choices=self._choices(tried, timed),
            )
        return self._replays[key]

    def requests(self, batch_size: int, conditions: Conditions, source: PlanSource) -> Requests:
        """What `replay_within` replays at the likely level, for those who replay it among other events."""
        demanded, tried, timed = self._asked(batch_size, conditions, Level.LIKELY, source)
        return Requests(self._sizes(batch_size, demanded), self._choices(tried, timed))

    def _asked(
        self, batch_size: int, conditions: Conditions, level: Level, source: PlanSource | None
    ) -> tuple[_Sizes, tuple[tuple[int, ...], ...], frozenset[int]]:
        """What calls take, what each tries in turn up to that, and the numbers of those that are timed."""
        plans = source or conditions.sources[0]
        demanded = self._demanded(batch_size, conditions, plans, level)
        spans = 2 * self._demands(batch_size, conditions, plans)
        tried = tuple(span.choices_up_to(size) for span, size in zip(spans, demanded, strict=True))
        return demanded, tried, self._timed(batch_size, conditions)

    def _timed(self, batch_size: int, conditions: Conditions) -> frozenset[int]:
        """The numbers of the different calls whose plans are timed."""
        if not conditions.policy.benchmark:
            return frozenset()
        spans = self._demands(batch_size, conditions, conditions.sources[0])
        return frozenset(number for number, span in enumerate(spans) if span.is_benchmark)

    def _choices(self, tried: Sequence[tuple[int, ...]], timed: frozenset[int]) -> Choices:
        """By allocation, what it tries in turn where that is more than one size, or room to time plans in.

        Args:
            tried: in the order of `_Sizes`.
        """
        choices = dict[int, Choice]()
        for index, call in self._called:
            number = self._demand_of[index]
            is_first = number == call
            found = tried[number + len(self._calls)] if is_first and call in timed else ()
            if found or len(tried[number]) > 1:
                choices[index] = Choice(call, tried[number], found)
        return choices

    def _rooms(self, demanded: _Sizes, timed: frozenset[int]) -> Choices:
        """By allocation, room to time plans in, where every size can be had."""
        return self._choices([(size,) for size in demanded], timed)

    def _replay(
        self,
        batch_size: int,
        demanded: _Sizes,
        conditions: Conditions,
        *,
        stop_above_bytes: int | None = None,
    ) -> Replay:
        """Remembered: policies and cards that agree in all workspaces share their replays."""
        timed = self._timed(batch_size, conditions)
        key = (batch_size, demanded, conditions.settings, timed)
        known = self._replays.get(key)
        if known is not None and (
            known.completed or (stop_above_bytes is not None and known.peak_reserved_bytes > stop_above_bytes)
        ):
            return known
        if len(self._replays) >= _MAX_REPLAYS:
            self._replays.clear()
        self._replays[key] = result = replay(
            self._events,
            self._sizes(batch_size, demanded),
            settings=conditions.settings,
            stop_above_bytes=stop_above_bytes,
            choices=self._rooms(demanded, timed) if timed else None,
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
        if level is Level.LIKELY:
            demanded, _ = self._likely(batch_size, conditions)
            return self._replay(batch_size, demanded, conditions).peak_reserved_bytes
        highest = 0
        for demanded in self._distinct(batch_size, conditions, level.up_to):
            result = self._replay(batch_size, demanded, conditions, stop_above_bytes=stop_above_bytes)
            highest = max(highest, result.peak_reserved_bytes)
            if stop_above_bytes is not None and highest > stop_above_bytes:
                break
        return highest

    def _likely(self, batch_size: int, conditions: Conditions) -> tuple[_Sizes, PlanSource]:
        """What is likely demanded, by the source whose reserved peak is the lower median, and that source.

        Of sources with that peak it is the same one in whatever order they stand.
        """

        def peaks(likely: tuple[_Sizes, PlanSource]) -> tuple[int, int, _Sizes]:
            result = self._replay(batch_size, likely[0], conditions)
            return result.peak_reserved_bytes, result.peak_allocated_bytes, likely[0]

        sources = conditions.sources
        by_source = [(self._demanded(batch_size, conditions, s, Level.LIKELY), s) for s in sources]
        return sorted(by_source, key=peaks)[(len(by_source) - 1) // 2]

    def _distinct(self, batch_size: int, conditions: Conditions, levels: Sequence[Level]) -> Iterator[_Sizes]:
        seen = set()
        for level in levels:
            for source in conditions.sources:
                demanded = self._demanded(batch_size, conditions, source, level)
                if demanded not in seen:
                    seen.add(demanded)
                    yield demanded

    def runs_within(
        self, batch_size: int, conditions: Conditions, limit_bytes: int, level: Level = Level.HIGH
    ) -> bool:
        """Whether a size runs under a limit, retries and smaller plans allowed.

        What PyTorch refuses runs under no limit.
        """
        if self.refusal(batch_size, conditions) is not None:
            return False
        return level.settles(
            self.replay_within(batch_size, conditions, limit_bytes, level, source=source).completed
            for source in conditions.sources
        )

    def verdict(
        self,
        batch_size: int,
        conditions: Conditions,
        budget_bytes: int | None,
        level: Level = Level.HIGH,
    ) -> Verdict:
        """Whether a size fits a budget without a retry of the allocator, fits thrashing, or fails."""
        if self.refusal(batch_size, conditions) is not None:
            return Verdict.OOM
        if budget_bytes is None:
            return Verdict.FITS
        if self.reserved_bytes(batch_size, conditions, level, stop_above_bytes=budget_bytes) <= budget_bytes:
            return Verdict.FITS
        runs = self.runs_within(batch_size, conditions, budget_bytes, level)
        return Verdict.THRASH if runs else Verdict.OOM

    def likely(self, batch_size: int, conditions: Conditions) -> LikelyReplay:
        """The replay that an estimate's likely peaks are of, and what it was made of."""
        demanded, _ = self._likely(batch_size, conditions)
        timed = self._timed(batch_size, conditions)
        return LikelyReplay(
            sizes=self._sizes(batch_size, demanded),
            found_bytes={index: choice.found[0] for index, choice in self._rooms(demanded, timed).items()},
            replay=self._replay(batch_size, demanded, conditions),
        )

    def estimate(self, batch_size: int, conditions: Conditions) -> PeakEstimate:
        """All that a report needs of one batch size."""
        likely_sizes, typical = self._likely(batch_size, conditions)
        low, high = (
            self._demanded(batch_size, conditions, typical, level) for level in (Level.LOW, Level.HIGH)
        )
        likely = self._replay(batch_size, likely_sizes, conditions)
        reserved = [
            self._replay(batch_size, demanded, conditions).peak_reserved_bytes
            for demanded in self._distinct(batch_size, conditions, (Level.LOW, Level.LIKELY, Level.HIGH))
        ]
        live = self._live_at(likely.peak_allocated_position, self._sizes(batch_size, likely_sizes))
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
            workspace_likely_bytes=self._largest_workspace(batch_size, likely_sizes),
            workspace_high_bytes=self._largest_workspace(batch_size, high),
            breakdown=breakdown,
            live=tuple(sorted(live, key=lambda one: one.num_bytes, reverse=True)),
        )

    def convolution_options(
        self, batch_size: int, conditions: Conditions, names: Sequence[str] = ()
    ) -> dict[Convolution, list[mixed_convolutions.Option]]:
        """The algorithms for each different layer at a batch size, with what they take.

        Args:
            names: of those to choose from; without any, the candidates for a plan.
        """
        calls = self._shapes(batch_size)[1]

        def under(conv_algo: str) -> tuple[Workspace, ...]:
            one = dataclasses.replace(conditions, conv_algo=conv_algo)
            return demands(calls, one, one.sources[0], self._torch_release)

        return mixed_convolutions.options(calls, under, names or mixed_convolutions.candidates("cuda"))

    def convolutions(self, batch_size: int) -> list[Convolution]:
        """The convolutions of the traced steps at a batch size, one for each call."""
        calls = self._shapes(batch_size)[1]
        return [call for _, number in self._called if isinstance(call := calls[number], Convolution)]

    def refusal(self, batch_size: int, conditions: Conditions) -> Refusal | None:
        """What PyTorch cannot run at a batch size whatever memory there is; None where it can all."""
        release = self._torch_release
        for index, lines in self._refusable.items():
            allocation, shape = self._allocations[index], values_at(lines, batch_size)
            why = refusals.why_not_taken(allocation.operator, shape, conditions, release)
            if why is not None:
                return Refusal(index, allocation.module, why)
        calls = self._shapes(batch_size)[1]
        for index, number in self._called:
            call = calls[number]
            if isinstance(call, Convolution):
                why = refusals.why_not_convolved(call, conditions, release)
                if why is not None:
                    return Refusal(index, self._allocations[index].module, why)
        return None

    def convolution_modules(self, batch_size: int) -> dict[Convolution, tuple[str, ...]]:
        """For each different layer at a batch size the modules that call it."""
        calls = self._shapes(batch_size)[1]
        names: dict[Convolution, dict[str, None]] = {}
        for index, number in self._called:
            call = calls[number]
            if isinstance(call, Convolution):
                module = self._allocations[index].module
                names.setdefault(mixed_convolutions.layer_of(call), {})[module] = None
        return {layer: tuple(modules) for layer, modules in names.items()}

    def live_at_convolutions(self, batch_size: int, level: Level) -> dict[Convolution, int]:
        """The most bytes that are alive, without workspaces, where each different call has its own."""
        calls = self._shapes(batch_size)[1]
        called = {index: calls[number] for index, number in self._called}
        sizes = self._sizes_without_plans(batch_size, level)
        live_bytes, most = 0, dict[Convolution, int]()
        for event in self._events:
            live_bytes += sizes[event] if event >= 0 else -sizes[~event]
            call = called.get(event)
            if isinstance(call, Convolution):
                most[call] = max(live_bytes, most.get(call, 0))
        return most

    def reserved_with(
        self,
        batch_size: int,
        conditions: Conditions,
        workspaces: Mapping[Convolution, int],
        level: Level,
    ) -> int:
        """The reserved peak where convolutions take what they are given, the rest a level of what it does."""
        calls = self._shapes(batch_size)[1]
        spans = self._demands(batch_size, conditions, conditions.sources[0])
        sizes = tuple(
            workspaces[call] if isinstance(call, Convolution) else getattr(span, f"{level}_bytes")
            for call, span in zip(calls, spans, strict=True)
        )
        return self._replay(batch_size, 2 * sizes, conditions).peak_reserved_bytes

    def _largest_workspace(self, batch_size: int, workspaces: _Sizes) -> int:
        """The largest of convolutions; other calls may take something beside their outputs too."""
        calls = zip(2 * self._shapes(batch_size)[1], workspaces, strict=True)
        return max((num_bytes for call, num_bytes in calls if isinstance(call, Convolution)), default=0)

    def _live_at(self, position: int, sizes: Sequence[int]) -> list[LiveAllocation]:
        """What is alive right after an event."""
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


class AccumulatedCurve:
    """The curve of a step that is accumulated up to a global batch, which in one piece is a step like any.

    Args:
        pieces: of a step of several batches.
        whole: of a step of one.
    """

    def __init__(self, pieces: PeakCurve, whole: PeakCurve, *, global_batch: int) -> None:
        self._pieces = pieces
        self._whole = whole
        self._global_batch = global_batch

    def at(self, batch_size: int) -> PeakCurve:
        """The curve that knows this batch size."""
        return self._pieces if batch_size < self._global_batch else self._whole


def _demand_numbers(called: Sequence[tuple[int, int]], num_calls: int) -> dict[int, int]:
    """Where `_Sizes` says what an allocation takes: from a call's second time on, in the second half."""
    met: set[int] = set()
    numbers = {}
    for index, call in called:
        numbers[index] = call + num_calls if call in met else call
        met.add(call)
    return numbers


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
