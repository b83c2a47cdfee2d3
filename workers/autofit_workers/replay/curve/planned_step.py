"""Step at one batch size on a card, with the convolution plans of one source."""

from __future__ import annotations

import functools
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from autofit_workers.replay.allocator import (
    AllocatorSettings,
    Choices,
    EventClock,
    Replay,
    Streams,
    keeps_up,
    live_peak_bytes,
    replay,
)
from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.lines.step_lines import Demanded
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.replay.curve.unrolled import Unrolled
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.replay.spans import Workspace
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.work import Convolution

# Memory limits that `_within_least` tries, as multiples of the peak of live bytes.
_LEAST_SHARES = (1.01, 1.02, 1.04, 1.08, 1.16, 1.32)


class Requests(NamedTuple):
    """Sizes in bytes that a step's allocations request at a batch size, with smaller choices.

    Attributes:
        sizes: bytes of every allocation.
        choices: sizes to try in turn when memory is short, by the index of the allocation.
    """

    sizes: list[int]
    choices: Choices


class PlannedStep:
    """Step with the convolution plans of one source: the workspaces of its calls, and its replays.

    Replays are cached in `step.memory`: sources, policies and cards with equal workspaces share a replay.

    Args:
        step: the step at one batch size.
        conditions: conditions that the step runs under.
        source: source of convolution plans that is used in place of `conditions.sources`.
    """

    def __init__(self, step: SizedStep, conditions: Conditions, source: PlanSource) -> None:
        self._step = step
        self._conditions = conditions
        self._source = source
        self._demanded: dict[Level, Demanded] = {}

    @cached_property
    def spans(self) -> tuple[Workspace, ...]:
        """Workspace of each distinct call in bytes: low, likely, high and worst."""
        return self._step.demands(self._conditions, self._source)

    def demanded(self, level: Level) -> Demanded:
        """Workspace bytes of each distinct call at a level, for its first and for its later runs."""
        if level not in self._demanded:
            self._demanded[level] = self._work_out_demanded(level)
        return self._demanded[level]

    def _work_out_demanded(self, level: Level) -> Demanded:
        first = tuple(map(attrgetter(f"{level}_bytes"), self.spans))
        if level is not Level.LIKELY or not any(span.is_benchmark for span in self.spans):
            return 2 * first
        return (*first, *(span.repeated.likely_bytes for span in self.spans))

    def sizes(self, level: Level) -> list[int]:
        """Bytes of every allocation, with the workspaces at a level."""
        return self._step.sizes_with(self.demanded(level))

    def largest_workspace_bytes(self, level: Level) -> int:
        """Largest convolution workspace at a level in bytes, without other operators' scratch memory."""
        calls = zip(2 * self._step.calls, self.demanded(level), strict=True)
        return max((num_bytes for call, num_bytes in calls if isinstance(call, Convolution)), default=0)

    def plans(self, level: Level) -> list[tuple[int, Convolution]]:
        """Workspace bytes and call of each convolution whose workspace depends on cuDNN's choice of plan."""
        spans = 2 * self.spans
        calls = zip(2 * self._step.calls, spans, self.demanded(level), strict=True)
        return [
            (num_bytes, call)
            for call, span, num_bytes in calls
            if isinstance(call, Convolution) and span.choices_bytes
        ]

    def found_bytes(self, level: Level) -> dict[int, int]:
        """Workspace bytes of the plan that cuDNN's benchmark mode finds, by the allocation where it times."""
        return {index: choice.found[0] for index, choice in self._rooms(self.demanded(level)).items()}

    def replay(self, level: Level = Level.LIKELY) -> Replay:
        """Replays the step's events at a level of workspaces, without a memory limit."""
        return self.replay_with(self.demanded(level), clock=self.clock(level))

    def clock(self, level: Level) -> EventClock:
        """Event clock of a level; `keeps_up` at all levels if no other stream uses the step's blocks."""
        return level.clock if self._step.lines.streams.uses else keeps_up

    def replay_with(
        self, demanded: Demanded, *, clock: EventClock = keeps_up, stop_above_bytes: int | None = None
    ) -> Replay:
        """Replays the events without a memory limit, with given workspace bytes of the calls.

        Args:
            demanded: workspace bytes of the calls.
            clock: decides when CUDA events are complete.
            stop_above_bytes: the replay ends as soon as more bytes than this are reserved; None for no end.
        """
        memory, settings = self._step.memory, self._conditions.settings
        key = (self._step.batch_size, demanded, settings, self._timed, clock)
        known = memory.find(key)
        if known is not None and (
            known.completed or (stop_above_bytes is not None and known.peak_reserved_bytes > stop_above_bytes)
        ):
            return known
        unrolled = self._step.unrolled(self._step.sizes_with(demanded))
        if self._step.trace.repetition is not None:
            return memory.keep(key, _within_least(unrolled, settings, self._streams, clock))
        result = replay(
            *unrolled,
            settings=settings,
            streams=self._streams,
            clock=clock,
            stop_above_bytes=stop_above_bytes,
            choices=self._rooms(demanded) if self._timed else None,
        )
        return memory.keep(key, result)

    def least(self) -> Replay:
        """Replays the step at the likely level in about the least memory in which it completes with retries.

        If at least half of the unlimited reserved peak is alive at one time, the result is that of `replay`.
        """
        demanded = self.demanded(Level.LIKELY)
        unlimited = self.replay()
        if unlimited.peak_reserved_bytes <= 2 * self.live_bytes(demanded):
            return unlimited
        unrolled = self._step.unrolled(self._step.sizes_with(demanded))
        settings, clock = self._conditions.settings, self.clock(Level.LIKELY)
        return _within_least(unrolled, settings, self._streams, clock)

    def live_bytes(self, demanded: Demanded) -> int:
        """Peak of live bytes with given workspace bytes of the calls; no replay reserves less."""
        return self._step.memory.live_bytes(
            (self._step.batch_size, demanded),
            lambda: live_peak_bytes(*self._step.unrolled(self._step.sizes_with(demanded))),
        )

    def replay_within(self, limit_bytes: int, level: Level = Level.LIKELY) -> Replay:
        """Replays the events at a level, with reserved memory limited to `limit_bytes`.

        At the limit the allocator releases its cached memory and retries, and PyTorch falls back to the next
        cuDNN plan whose workspace can be allocated (`run_single_conv` of Conv_v8.cpp).
        """
        memory, settings = self._step.memory, self._conditions.settings
        tried, clock = self._tried(level), self.clock(level)
        key = (self._step.batch_size, tried, settings, self._timed, clock, limit_bytes)
        known = memory.find(key)
        if known is not None:
            return known
        result = replay(
            *self._step.unrolled(self.sizes(level)),
            settings=settings,
            limit_bytes=limit_bytes,
            choices=self._step.lines.choices(tried, self._timed),
            streams=self._streams,
            clock=clock,
        )
        return memory.keep(key, result)

    def requests(self) -> Requests:
        """Sizes that allocations request at the likely level, to replay the step along with other events."""
        choices = self._step.lines.choices(self._tried(Level.LIKELY), self._timed)
        return Requests(self.sizes(Level.LIKELY), choices)

    @property
    def _streams(self) -> Streams:
        """Streams of the events, with the host's waits that limit how far it runs ahead of the card."""
        return self._step.lines.streams_on(Architecture.of(self._conditions.architecture).vendor)

    @cached_property
    def _timed(self) -> frozenset[int]:
        """Indices of the distinct calls whose plans benchmark mode times."""
        if not self._conditions.policy.benchmark:
            return frozenset()
        return frozenset(number for number, span in enumerate(self.spans) if span.is_benchmark)

    def _tried(self, level: Level) -> tuple[tuple[int, ...], ...]:
        """Workspace bytes that each call tries in turn, from its bytes at a level down, as a `Demanded`."""
        spans = zip(2 * self.spans, self.demanded(level), strict=True)
        return tuple(span.choices_up_to(size) for span, size in spans)

    def _rooms(self, demanded: Demanded) -> Choices:
        """Sizes of allocations in which cuDNN's benchmark mode times plans, if memory suffices for all."""
        return self._step.lines.choices([(size,) for size in demanded], self._timed)


def _within_least(
    unrolled: Unrolled, settings: AllocatorSettings, streams: Streams, clock: EventClock
) -> Replay:
    """Replays events under the smallest tried memory limit at which they complete, else without a limit.

    While a model generates text, its KV cache moves into a larger block with every token, and the old block
    is soon too small for any request; outputs that are concatenated one by one do the same. Without a limit,
    reserved memory grows until the card is full and the allocator releases its cached memory, so that the
    reserved peak depends on the card instead of the step.
    """
    within = functools.partial(replay, *unrolled, settings=settings, streams=streams, clock=clock)
    most_alive = live_peak_bytes(*unrolled)
    for share in _LEAST_SHARES:
        result = within(limit_bytes=int(share * most_alive))
        if result.completed:
            return result
    return within()
