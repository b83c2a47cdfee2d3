"""Step at one batch size on a card, with the convolution plans of one source."""

from __future__ import annotations

import dataclasses
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
from autofit_workers.replay.curve.conditions import MIXED, Conditions, Level
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
    """Sizes in bytes that a step's allocations request at one batch size.

    Attributes:
        sizes: bytes of every allocation.
        choices: for convolution workspaces, the smaller sizes that are tried when memory is short, by the
            index of the allocation.
    """

    sizes: list[int]
    choices: Choices


class PlannedStep:
    """Step whose convolutions use the plans of one source: their workspaces, and replays with them.

    A plan is one of the ways in which cuDNN can compute a convolution; a source (libcudnn itself, a shipped
    table, or formulas) tells the plans and their workspaces. Replays are cached for all cards, algorithms and
    sources with equal workspaces.

    Args:
        step: the step at one batch size.
        conditions: card, convolution algorithm and allocator settings.
        source: the source of plans; `conditions.sources` is not used.
    """

    def __init__(self, step: SizedStep, conditions: Conditions, source: PlanSource) -> None:
        self._step = step
        self._conditions = conditions
        self._source = source
        self._demanded: dict[Level, Demanded] = {}

    @cached_property
    def spans(self) -> tuple[Workspace, ...]:
        """Workspace of each distinct call as a range: low, likely, high and worst bytes."""
        return self._step.demands(self._conditions, self._source)

    @cached_property
    def _likely_spans(self) -> tuple[Workspace, ...]:
        """Workspace of each distinct call on the likely card, where other cards are possible; else `spans`.

        Other cards widen a range and leave its likely value, and the smaller plans, as they are. Looking them
        up takes most of the time, and the likely level is replayed most. But which algorithm is the best of a
        layer depends on all of its range.
        """
        if self._conditions.elsewhere is None or self._conditions.conv_algo == MIXED:
            return self.spans
        return self._step.demands(dataclasses.replace(self._conditions, elsewhere=None), self._source)

    def demanded(self, level: Level) -> Demanded:
        """Workspace bytes of each distinct call at a level, for the call's first run and for later runs.

        Returns:
            The bytes of all calls in their first run, followed by those of all calls in later runs.
        """
        if level not in self._demanded:
            self._demanded[level] = self._work_out_demanded(level)
        return self._demanded[level]

    def _work_out_demanded(self, level: Level) -> Demanded:
        spans = self._likely_spans if level is Level.LIKELY else self.spans
        first = tuple(map(attrgetter(f"{level}_bytes"), spans))
        if level is not Level.LIKELY or not any(span.is_benchmark for span in spans):
            return 2 * first
        return (*first, *(span.repeated.likely_bytes for span in spans))

    def sizes(self, level: Level) -> list[int]:
        """Bytes of every allocation, with the workspaces that a level (low, likely, high, worst) assumes."""
        return self._step.sizes_with(self.demanded(level))

    def largest_workspace_bytes(self, level: Level) -> int:
        """Largest convolution workspace in bytes; scratch memory of other operators does not count.

        Args:
            level: low, likely, high or worst workspaces.
        """
        calls = zip(2 * self._step.calls, self.demanded(level), strict=True)
        return max((num_bytes for call, num_bytes in calls if isinstance(call, Convolution)), default=0)

    def plans(self, level: Level) -> list[tuple[int, Convolution]]:
        """Workspace bytes and call of each convolution whose workspace depends on cuDNN's choice of plan.

        Each distinct convolution occurs twice: for its first run, and for later runs.
        """
        spans = 2 * self._likely_spans
        calls = zip(2 * self._step.calls, spans, self.demanded(level), strict=True)
        return [
            (num_bytes, call)
            for call, span, num_bytes in calls
            if isinstance(call, Convolution) and span.choices_bytes
        ]

    def found_bytes(self, level: Level) -> dict[int, int]:
        """Workspace bytes of the plan that cuDNN's benchmark mode finds fastest, for each timed convolution.

        The key is the index of the allocation in whose memory the plans are timed. Empty in other modes.
        """
        return {index: choice.found[0] for index, choice in self._rooms(self.demanded(level)).items()}

    def replay(self, level: Level = Level.LIKELY) -> Replay:
        """Replays the step's events with the workspaces that a level assumes, without a memory limit."""
        return self.replay_with(self.demanded(level), clock=self.clock(level))

    def clock(self, level: Level) -> EventClock:
        """Assumption on when CUDA events complete, which delays the reuse of blocks that other streams use.

        It is that of the level, or `keeps_up` (all events are complete) if no block is used by another
        stream.
        """
        return level.clock if self._step.lines.streams.uses else keeps_up

    def replay_with(
        self, demanded: Demanded, *, clock: EventClock = keeps_up, stop_above_bytes: int | None = None
    ) -> Replay:
        """Replays the events without a memory limit, with given workspace bytes of the calls.

        The passes of a text generation are instead replayed under a limit close to the bytes that are alive,
        because their reserved memory would otherwise grow with every token.

        Args:
            demanded: workspace bytes of each distinct call, for its first and its later runs.
            clock: decides when CUDA events are complete.
            stop_above_bytes: the replay ends as soon as more bytes than this are reserved; None to replay
                all.
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
        """Replays the step with likely workspaces in about the least memory in which it completes.

        Under a tight memory limit the allocator releases its cached memory and retries, so the step
        completes with less reserved memory than without a limit. If at least half of the reserved peak
        without a limit is alive at one time, a limit could save little, and the replay without a limit is
        returned.
        """
        demanded = self.demanded(Level.LIKELY)
        unlimited = self.replay()
        if unlimited.peak_reserved_bytes <= 2 * self.live_bytes(demanded):
            return unlimited
        unrolled = self._step.unrolled(self._step.sizes_with(demanded))
        settings, clock = self._conditions.settings, self.clock(Level.LIKELY)
        return _within_least(unrolled, settings, self._streams, clock)

    def live_bytes(self, demanded: Demanded) -> int:
        """Peak of live bytes with given workspace bytes of the calls, a lower bound of every reserved peak.

        Args:
            demanded: workspace bytes of each distinct call, for its first and its later runs.
        """
        return self._step.memory.live_bytes(
            (self._step.batch_size, demanded),
            lambda: live_peak_bytes(*self._step.unrolled(self._step.sizes_with(demanded))),
        )

    def replay_within(self, limit_bytes: int, level: Level = Level.LIKELY) -> Replay:
        """Replays the events with reserved memory limited to `limit_bytes`.

        At the limit the allocator releases its cached memory and retries, and PyTorch falls back to the next
        cuDNN plan whose workspace can be allocated (`run_single_conv` of Conv_v8.cpp).

        Args:
            limit_bytes: most bytes that may be reserved.
            level: low, likely, high or worst workspaces.
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
        """Sizes that allocations request with likely workspaces, for a replay along with other events."""
        choices = self._step.lines.choices(self._tried(Level.LIKELY), self._timed)
        return Requests(self.sizes(Level.LIKELY), choices)

    @property
    def _streams(self) -> Streams:
        """Streams of the events, with the waits of the host that limit how far it runs ahead of the card."""
        return self._step.lines.streams_on(Architecture.of(self._conditions.architecture).vendor)

    @cached_property
    def _timed(self) -> frozenset[int]:
        """Indices of the distinct calls whose plans cuDNN's benchmark mode times; empty in other modes."""
        if not self._conditions.policy.benchmark:
            return frozenset()
        return frozenset(number for number, span in enumerate(self._likely_spans) if span.is_benchmark)

    def _tried(self, level: Level) -> tuple[tuple[int, ...], ...]:
        """Workspace bytes that each call tries in turn, from its bytes at a level down to smaller plans.

        The distinct calls are listed twice: for their first runs, then for their later runs.
        """
        spans = zip(2 * self._likely_spans, self.demanded(level), strict=True)
        return tuple(span.choices_up_to(size) for span, size in spans)

    def _rooms(self, demanded: Demanded) -> Choices:
        """Workspaces by which cuDNN's benchmark mode picks plans in a replay without a memory limit.

        Args:
            demanded: workspace bytes of each distinct call, for its first and its later runs.

        Returns:
            By the index of the allocation; empty unless in benchmark mode.
        """
        return self._step.lines.choices([(size,) for size in demanded], self._timed)


def _within_least(
    unrolled: Unrolled, settings: AllocatorSettings, streams: Streams, clock: EventClock
) -> Replay:
    """Replays events under the smallest of a few memory limits at which they complete with allocator retries.

    While a model generates text, its KV cache moves into a larger block with every token, and the old block
    is soon too small for any request; outputs that are concatenated one by one do the same. Without a limit,
    reserved memory grows until the card is full and the allocator releases its cached memory, so the
    reserved peak depends on the card instead of the step. A limit close to the bytes that are alive gives a
    peak of the step itself.

    Returns:
        The replay; one without a limit if the events complete under none of the limits.
    """
    within = functools.partial(replay, *unrolled, settings=settings, streams=streams, clock=clock)
    most_alive = live_peak_bytes(*unrolled)
    for share in _LEAST_SHARES:
        result = within(limit_bytes=int(share * most_alive))
        if result.completed:
            return result
    return within()
