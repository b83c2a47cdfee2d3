"""A step at one batch size under conditions: its predicted peaks, and whether it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from autofit_workers.replay.allocator import EventClock, Replay
from autofit_workers.replay.curve import mixed_convolutions, refusals
from autofit_workers.replay.curve.conditions import Call, Conditions, Level, demands
from autofit_workers.replay.curve.lines.step_lines import Demanded
from autofit_workers.replay.curve.peak_estimate import PeakEstimate, by_category, live_after
from autofit_workers.replay.curve.planned_step import PlannedStep
from autofit_workers.replay.curve.refusals import Refusal
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.replay.spans import Workspace
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.work import Convolution


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


class WithinLimit(NamedTuple):
    """What becomes of a step's likely replay where no more than a limit can be reserved.

    Attributes:
        verdict: `FITS` where nothing was retried, `THRASH` or `OOM`.
        allocated_bytes, reserved_bytes: the peaks; of `OOM` up to where memory ran out.
        num_alloc_retries: how often all that was cached was given back for a request, in all steps.
    """

    verdict: Verdict
    allocated_bytes: int
    reserved_bytes: int
    num_alloc_retries: int


class StepOnCard:
    """Peaks and verdicts of a step at one batch size under conditions.

    Args:
        step: at a batch size.
        conditions: that it runs under.

    Attributes:
        step, conditions: as given.
    """

    def __init__(self, step: SizedStep, conditions: Conditions) -> None:
        self.step = step
        self.conditions = conditions

    @cached_property
    def by_source(self) -> tuple[PlannedStep, ...]:
        """The step by the plans of each of the conditions' sources."""
        return tuple(PlannedStep(self.step, self.conditions, s) for s in self.conditions.sources)

    @property
    def by_first_source(self) -> PlannedStep:
        """The step by the plans of the first source."""
        return self.by_source[0]

    def reserved_bytes(self, level: Level = Level.HIGH, *, stop_above_bytes: int | None = None) -> int:
        """The reserved peak up to a level, with `stop_above_bytes` as soon as it is above that."""
        if level is Level.LIKELY and len(self.by_source) > 1:
            return self._typical.replay().peak_reserved_bytes
        highest = 0
        # A replay reserves no less than what is alive, which tells of large workspaces sooner; of likely ones
        # it seldom does.
        most_alive = None if level is Level.LIKELY else stop_above_bytes
        for planned, demanded, clock in self._distinct(level.up_to):
            if most_alive is not None and (live := planned.live_bytes(demanded)) > most_alive:
                return live
            result = planned.replay_with(demanded, clock=clock, stop_above_bytes=stop_above_bytes)
            highest = max(highest, result.peak_reserved_bytes)
            if stop_above_bytes is not None and highest > stop_above_bytes:
                break
        return highest

    def runs_within(self, limit_bytes: int, level: Level = Level.HIGH) -> bool:
        """Whether it runs under a limit, retries and smaller plans allowed.

        What PyTorch refuses runs under no limit.
        """
        if self.refusal() is not None:
            return False
        return level.settles(p.replay_within(limit_bytes, level).completed for p in self.by_source)

    def verdict(self, budget_bytes: int | None, level: Level = Level.HIGH) -> Verdict:
        """Whether it fits a budget without a retry of the allocator, fits thrashing, or fails."""
        if self.refusal() is not None:
            return Verdict.OOM
        if budget_bytes is None:
            return Verdict.FITS
        if self.step.lower_bound_bytes > budget_bytes:
            return Verdict.OOM  # whatever its convolutions take, which costs more to find out
        if self.reserved_bytes(level, stop_above_bytes=budget_bytes) <= budget_bytes:
            return Verdict.FITS
        return Verdict.THRASH if self.runs_within(budget_bytes, level) else Verdict.OOM

    def likely_within(self, limit_bytes: int) -> WithinLimit:
        """The likely replay under a limit, retries and smaller plans allowed."""
        verdict, typical = self.verdict(limit_bytes, Level.LIKELY), self._typical
        fits = verdict is Verdict.FITS
        replay = typical.replay() if fits else typical.replay_within(limit_bytes)
        return WithinLimit(
            verdict=verdict,
            allocated_bytes=replay.peak_allocated_bytes,
            reserved_bytes=replay.peak_reserved_bytes,
            num_alloc_retries=0 if fits else replay.num_alloc_retries,
        )

    def least_bytes(self) -> int:
        """About the least memory that the likely replay runs in, see `PlannedStep.least`."""
        return self._typical.least().peak_reserved_bytes

    def refusal(self) -> Refusal | None:
        """What PyTorch cannot run whatever memory there is; None where it can all."""
        lines, allocations = self.step.lines, self.step.trace.allocations
        for index, shape in lines.refusable_at(self.step.batch_size):
            operator = allocations[index].operator
            why = refusals.why_not_taken(operator, shape, self.conditions, lines.torch_release)
            if why is not None:
                return Refusal(index, allocations[index].module, why)
        for index, call in self.step.convolutions.items():
            why = refusals.why_not_convolved(call, self.conditions, lines.torch_release)
            if why is not None:
                return Refusal(index, allocations[index].module, why)
        return None

    def likely(self) -> LikelyReplay:
        """The replay that an estimate's likely peaks are of, and what it was made of."""
        typical = self._typical
        return LikelyReplay(
            sizes=typical.sizes(Level.LIKELY),
            found_bytes=typical.found_bytes(Level.LIKELY),
            replay=typical.replay(),
        )

    def likely_bytes(self, calls: Sequence[Call]) -> list[int]:
        """What calls like those of the step likely take, of whatever shapes."""
        found = demands(calls, self.conditions, self.conditions.sources[0], self.step.lines.torch_release)
        return [each.likely_bytes for each in found]

    def estimate(self) -> PeakEstimate:
        """All that a report needs."""
        typical = self._typical
        likely = typical.replay()
        replays = [
            planned.replay_with(demanded, clock=clock)
            for planned, demanded, clock in self._distinct((Level.LOW, Level.LIKELY, Level.HIGH))
        ]
        reserved = [replay.peak_reserved_bytes for replay in replays]
        allocated = [replay.peak_allocated_bytes for replay in replays]
        live = live_after(self.step.trace, likely.peak_allocated_position, typical.sizes(Level.LIKELY))
        return PeakEstimate(
            batch_size=self.step.batch_size,
            allocated_bytes=likely.peak_allocated_bytes,
            reserved_bytes=likely.peak_reserved_bytes,
            low_bytes=min(reserved),
            high_bytes=max(reserved),
            allocated_low_bytes=min(allocated),
            allocated_high_bytes=max(allocated),
            workspace_low_bytes=typical.largest_workspace_bytes(Level.LOW),
            workspace_likely_bytes=typical.largest_workspace_bytes(Level.LIKELY),
            workspace_high_bytes=typical.largest_workspace_bytes(Level.HIGH),
            breakdown=by_category(live, likely.peak_allocated_bytes),
            live=tuple(live),
        )

    def convolution_options(
        self, names: Sequence[str] = ()
    ) -> dict[Convolution, list[mixed_convolutions.Candidate]]:
        """The algorithms for each different layer, with what they take.

        Args:
            names: of those to choose from; without any, the candidates for a plan.
        """

        def under(conv_algo: str) -> tuple[Workspace, ...]:
            one = dataclasses.replace(self.conditions, conv_algo=conv_algo)
            return demands(self.step.calls, one, one.sources[0], self.step.lines.torch_release)

        names = names or mixed_convolutions.candidates("cuda")
        return mixed_convolutions.options(self.step.calls, under, names)

    def largest_plan_bytes(self, level: Level) -> int:
        """The largest workspace of any one convolution's plan; those that shapes decide do not count."""
        return max((num_bytes for num_bytes, _ in self._typical.plans(level)), default=0)

    def largest_plan_modules(self, level: Level) -> tuple[str, ...]:
        """The modules whose convolution has that workspace; none where none takes any."""
        plans = self._typical.plans(level)
        num_bytes, call = max(plans, key=lambda plan: plan[0], default=(0, None))
        if call is None or not num_bytes:
            return ()
        return self.step.convolution_modules()[mixed_convolutions.layer_of(call)]

    def reserved_with(self, workspaces: Mapping[Convolution, int], level: Level) -> int:
        """The reserved peak where convolutions take what they are given, the rest a level of what it does."""
        planned = self.by_first_source
        sizes = tuple(
            workspaces[call] if isinstance(call, Convolution) else getattr(span, f"{level}_bytes")
            for call, span in zip(self.step.calls, planned.spans, strict=True)
        )
        return planned.replay_with(2 * sizes, clock=planned.clock(level)).peak_reserved_bytes

    @cached_property
    def _typical(self) -> PlannedStep:
        """The step by the source whose likely reserved peak is the lower median.

        Of sources with that peak it is the same one in whatever order they stand.
        """
        if len(self.by_source) == 1:
            return self.by_first_source

        def peaks(planned: PlannedStep) -> tuple[int, int, Demanded]:
            demanded = planned.demanded(Level.LIKELY)
            result = planned.replay_with(demanded)
            return result.peak_reserved_bytes, result.peak_allocated_bytes, demanded

        return sorted(self.by_source, key=peaks)[(len(self.by_source) - 1) // 2]

    def _distinct(self, levels: Sequence[Level]) -> Iterator[tuple[PlannedStep, Demanded, EventClock]]:
        """What calls take at some levels by each of the sources, and the clock, what is the same but once."""
        seen = set()
        for level in levels:
            for planned in self.by_source:
                assumed = (planned.demanded(level), planned.clock(level))
                if assumed not in seen:
                    seen.add(assumed)
                    yield planned, *assumed
