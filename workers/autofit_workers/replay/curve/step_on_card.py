"""Step at one batch size on a card: its predicted peaks, and whether it runs."""

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
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.work import Convolution


class LikelyReplay(NamedTuple):
    """Replay of a step with the likely workspaces, and the bytes of the allocations.

    Attributes:
        sizes: bytes of every allocation.
        found_bytes: workspace bytes of the plan that cuDNN's benchmark mode finds fastest, by the index of
            the allocation in which the plans are timed; empty in other modes.
    """

    sizes: list[int]
    found_bytes: dict[int, int]
    replay: Replay


class WithinLimit(NamedTuple):
    """Result of replaying a step with likely workspaces under a limit of reserved memory.

    Attributes:
        verdict: `FITS` if no request was retried, `THRASH` if the step completed with retries, else `OOM`.
        allocated_bytes, reserved_bytes: the peaks; for `OOM`, the peaks until memory ran out.
        num_alloc_retries: number of requests for which the allocator released its cached memory, over all
            replayed steps.
    """

    verdict: Verdict
    allocated_bytes: int
    reserved_bytes: int
    num_alloc_retries: int


class StepOnCard:
    """Step at one batch size on a card; computes its peaks, and whether it fits into a budget.

    How cautious a result is, its level says (low, likely, high, worst): it decides which workspaces are
    assumed for convolutions whose cuDNN plan is not certain.

    Args:
        step: the step at one batch size.
        conditions: card, convolution algorithm and allocator settings.

    Attributes:
        step, conditions: as given.
    """

    def __init__(self, step: SizedStep, conditions: Conditions) -> None:
        self.step = step
        self.conditions = conditions

    @cached_property
    def by_source(self) -> tuple[PlannedStep, ...]:
        """Step with the workspaces of each source of cuDNN's plans, in the order of `conditions.sources`."""
        return tuple(PlannedStep(self.step, self.conditions, s) for s in self.conditions.sources)

    @property
    def by_first_source(self) -> PlannedStep:
        """Step with the workspaces of the first source of cuDNN's plans."""
        return self.by_source[0]

    def reserved_bytes(self, level: Level = Level.HIGH, *, stop_above_bytes: int | None = None) -> int:
        """Reserved peak in bytes at a level: the largest over this and all lower levels and all plan sources.

        At the likely level only likely workspaces count; of several plan sources, the one with the median
        peak.

        Args:
            level: low, likely, high or worst.
            stop_above_bytes: stop as soon as a peak exceeds this, and return a number above it; None to
                compute the largest.
        """
        if level is Level.LIKELY and len(self.by_source) > 1:
            return self._typical.replay().peak_reserved_bytes
        highest = 0
        # Live bytes are a lower bound of the reserved peak and cheaper to compute. With large workspaces they
        # often exceed the limit already; with likely ones they seldom do.
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
        """Whether the step completes within a limit of reserved memory, even if only with allocator retries.

        When memory is short, convolutions fall back to plans with smaller workspaces. False under every limit
        if PyTorch or a kernel refuses a call of the step.

        Args:
            limit_bytes: most bytes that may be reserved.
            level: low, likely, high or worst workspaces.
        """
        if self.refusal() is not None:
            return False
        return level.settles(p.replay_within(limit_bytes, level).completed for p in self.by_source)

    def verdict(self, budget_bytes: int | None, level: Level = Level.HIGH) -> Verdict:
        """Verdict under a budget: `FITS`, `THRASH` if it completes only with allocator retries, or `OOM`.

        A call that PyTorch or a kernel refuses at this size makes it `OOM` too.

        Args:
            budget_bytes: most bytes that may be reserved; None for no limit.
            level: low, likely, high or worst workspaces.
        """
        if self.refusal() is not None:
            return Verdict.OOM
        if budget_bytes is None:
            return Verdict.FITS
        if self.step.lower_bound_bytes > budget_bytes:
            return Verdict.OOM  # without computing workspaces, which takes longer
        if self.reserved_bytes(level, stop_above_bytes=budget_bytes) <= budget_bytes:
            return Verdict.FITS
        return Verdict.THRASH if self.runs_within(budget_bytes, level) else Verdict.OOM

    def likely_within(self, limit_bytes: int) -> WithinLimit:
        """Verdict and peaks with likely workspaces under a limit of reserved memory.

        When memory is short, the allocator retries and convolutions fall back to smaller workspaces.
        """
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
        """Reserved bytes that about suffice for the step with likely workspaces, if the allocator retries.

        See `PlannedStep.least`.
        """
        return self._typical.least().peak_reserved_bytes

    def refusal(self) -> Refusal | None:
        """First call that PyTorch or a kernel refuses however much memory there is; None if all can run."""
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
        """Replay of the step with the likely workspaces, and the bytes of its allocations."""
        typical = self._typical
        return LikelyReplay(
            sizes=typical.sizes(Level.LIKELY),
            found_bytes=typical.found_bytes(Level.LIKELY),
            replay=typical.replay(),
        )

    def likely_bytes(self, calls: Sequence[Call]) -> list[int]:
        """Likely workspace bytes on the step's card of given calls, which may be of another step."""
        found = demands(calls, self.conditions, self.conditions.sources[0], self.step.lines.torch_release)
        return [each.likely_bytes for each in found]

    def estimate(self) -> PeakEstimate:
        """Predicted peaks of the step, and the allocations alive at the allocated peak."""
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
        """Algorithms that can compute each distinct convolution layer, with their workspaces.

        Args:
            names: names of the algorithms to choose from; if empty, those that the algorithm `mixed` chooses
                from.
        """

        def under(conv_algo: str) -> tuple[Workspace, ...]:
            one = dataclasses.replace(self.conditions, conv_algo=conv_algo)
            return demands(self.step.calls, one, one.sources[0], self.step.lines.torch_release)

        names = names or mixed_convolutions.candidates(GPU_KIND)
        return mixed_convolutions.options(self.step.calls, under, names)

    def largest_plan_bytes(self, level: Level) -> int:
        """Largest workspace in bytes of the convolutions whose plan cuDNN chooses; 0 if there are none.

        Args:
            level: low, likely, high or worst workspaces.
        """
        return max((num_bytes for num_bytes, _ in self._typical.plans(level)), default=0)

    def largest_plan_modules(self, level: Level) -> tuple[str, ...]:
        """Names of the modules that call the convolution with the largest workspace of a cuDNN plan.

        Empty if no convolution has such a workspace.

        Args:
            level: low, likely, high or worst workspaces.
        """
        plans = self._typical.plans(level)
        num_bytes, call = max(plans, key=lambda plan: plan[0], default=(0, None))
        if call is None or not num_bytes:
            return ()
        return self.step.convolution_modules()[mixed_convolutions.layer_of(call)]

    def reserved_with(self, workspaces: Mapping[Convolution, int], level: Level) -> int:
        """Reserved peak in bytes if convolutions take given workspaces.

        Args:
            workspaces: workspace bytes of every distinct convolution call.
            level: low, likely, high or worst, for all other scratch memory and estimates.
        """
        planned = self.by_first_source
        sizes = tuple(
            workspaces[call] if isinstance(call, Convolution) else getattr(span, f"{level}_bytes")
            for call, span in zip(self.step.calls, planned.spans, strict=True)
        )
        return planned.replay_with(2 * sizes, clock=planned.clock(level)).peak_reserved_bytes

    @cached_property
    def _typical(self) -> PlannedStep:
        """Step with the workspaces of that source of plans whose likely reserved peak is the lower median.

        Sources with equal reserved peaks are ordered by allocated peak and workspaces, so that the choice
        does not depend on the order of the sources.
        """
        if len(self.by_source) == 1:
            return self.by_first_source

        def peaks(planned: PlannedStep) -> tuple[int, int, Demanded]:
            demanded = planned.demanded(Level.LIKELY)
            result = planned.replay_with(demanded)
            return result.peak_reserved_bytes, result.peak_allocated_bytes, demanded

        return sorted(self.by_source, key=peaks)[(len(self.by_source) - 1) // 2]

    def _distinct(self, levels: Sequence[Level]) -> Iterator[tuple[PlannedStep, Demanded, EventClock]]:
        """Yields the arguments of the replays for some levels and all plan sources, equal replays once.

        For each replay these are the step with the source's plans, the workspace bytes of its calls, and the
        assumption on when CUDA events complete.
        """
        seen = set()
        for level in levels:
            for planned in self.by_source:
                assumed = (planned.demanded(level), planned.clock(level))
                if assumed not in seen:
                    seen.add(assumed)
                    yield planned, *assumed
