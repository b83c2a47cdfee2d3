"""Predicted peaks of one knob setting on one card, by batch size."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from autofit.errors import UsageError
from autofit.explain.profile import Profile, phase_peaks
from autofit.explain.timing import GenerationTime, Timing
from autofit.hardware.card import Card
from autofit.identity import versions
from autofit.notebooks.shown import ShownInNotebooks
from autofit.predict.confidence import Residuals
from autofit.predict.convolutions.costs import ConvCosts
from autofit.predict.convolutions.plan import ConvPlan, ConvPlanner
from autofit.predict.estimate import AssumedSize, Estimate, Interval, PhasePeak, PhasePeaks, RankEstimate
from autofit.predict.estimate_parts import breakdown, largest, unknowns, workspace_span
from autofit.predict.intervals.observations import Residual
from autofit.predict.intervals.widening import Widening, spanning
from autofit.predict.limited import limited, on_any_card
from autofit.predict.over_ranks import at_worst_rank, first_reason, over_ranks, shortest, slowest, worst
from autofit.predict.plan_sources import CardPlans
from autofit.predict.risk_level import RiskLevel
from autofit.predict.times.step_times import StepTime, Timer, why_untimed
from autofit.predict.times.timings import timing_of
from autofit.predict.unpredictable import why_unpredictable
from autofit.predict.whole_run import LineGrowth, RunGrowth, SeenPart
from autofit.search.curves import KnownPeaks
from autofit.settings.goals import Risk
from autofit_workers.replay.allocator import AllocatorSettings, given_blocks
from autofit_workers.replay.curve.conditions import MIXED, Conditions, Level
from autofit_workers.replay.curve.mixed_convolutions import Candidate, smallest
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.peak_estimate import PeakEstimate
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.conv_algorithms import ConvPolicy
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import AlikeRanks, BatchCount, Trace
from autofit_workers.spec.vendors import Facts
from autofit_workers.spec.work import Convolution

_NO_WORK = "no step time is given, as the step at this batch size was not traced"
_SEVERAL_STREAMS = (
    "operators of a rank have no times of their own, as collectives run beside them: "
    "estimate tells the step's"
)
# For each risk, those whose peaks are never above its own, because it replays all that they replay.
_LOWER_RISKS = {Risk.LIKELY: (), Risk.SAFE: (Risk.LIKELY,), Risk.WORST: (Risk.LIKELY, Risk.SAFE)}
_MOST_STEPS = 512  # in the cache; some kB each, in addition to the caches of the step's curve


class PredictedCurve(ShownInNotebooks):
    """Predicted peaks of one knob setting on one card: `curve(batch_size)` is an `Estimate`.

    `autofit.peak_curve` makes one. Once the step is traced, each batch size takes milliseconds, unless
    `needs_traces`. An estimate has the whole interval of a peak. The risk says which value of it has to fit:
    the likely one, the high end, or the worst case; `peak_reserved_bytes` and `verdict` are for this value.
    If ranks differ in their memory (`of_ranks`), all results are those of the rank that needs the most.

    Args:
        workload: name of the workload.
        knobs: knob setting: precision, optimizer and so on.
        card: card that the peaks are for.
        curve: traced step at any batch size.
        residuals: past errors of predictions, by which peaks are widened to intervals.
        plans: which kernels cuDNN chooses for convolutions.
        on_grid: whether many batch sizes will be evaluated; cuDNN's choices are then interpolated between a
            few.
        at_most: if sizes depend on the values of tensors, such as a mask, the step with the largest sizes
            that are possible, which determines the high end; None for other steps.
        observed: returns by how much peaks that the user observed, for this knob setting and card, differ
            from their predictions; called when an interval is first needed.
        timer: predicts the times of the workload's steps; None for a new one.

    Attributes:
        workload, knobs, card: as given.
        ranks: where ranks differ in their memory, the curve of one rank for each group of ranks that need
            equal memory; otherwise empty.
    """

    def __init__(
        self,
        workload: str,
        knobs: Knobs,
        card: Card,
        curve: PeakCurve,
        *,
        residuals: Residuals,
        plans: CardPlans,
        on_grid: bool,
        risk: Risk = Risk.SAFE,
        at_most: PeakCurve | None = None,
        observed: Callable[[PredictedCurve], tuple[Residual, ...]] | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.ranks: Mapping[AlikeRanks, Self] = {}
        self._num_kinds = 1
        self._timer = timer or Timer()
        self._observed = observed
        self._at_most = at_most
        self._plans = plans
        self._on_grid = on_grid
        self.workload = workload
        self.knobs = knobs
        self.card = card
        self._curve = curve
        self._residuals = residuals
        self._conditions = Conditions(
            conv_algo=knobs.conv_algo,
            architecture=card.architecture,
            plans=(plans.source(card, on_grid=on_grid),),
            elsewhere=plans.others(card),
            allow_tf32=knobs.tf32_in_convolutions,
            settings=AllocatorSettings.of_knob(knobs.allocator),
            multiprocessors=card.multiprocessors,
        )
        self._widening = Widening(
            residuals,
            card.architectures,
            observed=None if observed is None else functools.partial(observed, self),
        )
        self._peaks = {each: KnownPeaks() for each in Risk}
        self._steps: dict[tuple[PeakCurve, int], StepOnCard] = {}
        self._last_unlimited: tuple[int, Estimate] | None = None
        self._risk = RiskLevel(risk, self._widening)

    @classmethod
    def of_ranks(cls, ranks: Mapping[AlikeRanks, Self], *, num_kinds: int) -> Self:
        """Curve of a workload whose ranks differ in memory; at each batch size the rank with the most counts.

        Args:
            ranks: curve of one rank for each traced group of ranks that need equal memory, rank 0's first.
            num_kinds: number of such groups, including those that were not traced.
        """
        curve = copy.copy(next(iter(ranks.values())))
        curve.ranks, curve._num_kinds = ranks, num_kinds  # noqa: SLF001 - a copy
        return curve

    @property
    def risk(self) -> Risk:
        """Risk of the curve: whether a peak's likely value, high end or worst case has to fit."""
        return self._risk.risk

    @property
    @over_ranks(any)
    def needs_traces(self) -> bool:
        """Whether the step allocates differently at every batch size, so each size costs a trace."""
        return self._curve.needs_traces

    @at_worst_rank
    def spans(self, batch_size: int) -> PeakEstimate:
        """Peaks at a batch size, with low and high ends due to uncertain sizes such as workspaces alone.

        Such are convolution workspaces. The widening by past errors of predictions is not included.
        """
        peak = self._widening.counted(self._at(batch_size))
        if self._at_most is None:
            return peak
        most = self._widening.counted(self._at(batch_size, Level.HIGH))
        return dataclasses.replace(
            peak,
            high_bytes=max(peak.high_bytes, most.high_bytes),
            allocated_high_bytes=max(peak.allocated_high_bytes, most.allocated_high_bytes),
        )

    @over_ranks(first_reason)
    def why_unpredictable_on(self, card: Card, batch_size: int) -> str | None:
        """Reason why a batch size cannot be predicted on another card; None if `on(card)` can predict it."""
        return why_unpredictable(self.knobs, self._at(batch_size).step.trace, card)

    def on(self, card: Card) -> Self:
        """Curve of the same step on another card, for which `why_unpredictable_on` must be None."""
        if self.ranks:
            return self._each(lambda rank: rank.on(card))
        return type(self)(
            self.workload,
            self.knobs,
            card,
            self._curve,
            residuals=self._residuals,
            plans=self._plans,
            on_grid=self._on_grid,
            risk=self.risk,
            at_most=self._at_most,
            observed=self._observed,
            timer=self._timer,
        )

    def at_risk(self, risk: Risk) -> Self:
        """Copy of the curve for another risk: a peak's likely value, high end or worst case has to fit."""
        if self.ranks:
            return self._each(lambda rank: rank.at_risk(risk))
        other = copy.copy(self)
        other._risk, other._last_unlimited = self._risk.of(risk), None  # noqa: SLF001 - a copy of this one
        return other

    def _each(self, change: Callable[[Self], Self]) -> Self:
        ranks = {kind: change(rank) for kind, rank in self.ranks.items()}
        return self.of_ranks(ranks, num_kinds=self._num_kinds)

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        """Reserved peak in bytes at a batch size: the value that has to fit by the curve's risk.

        Args:
            stop_above_bytes: if the peak exceeds this limit, any value above the limit may be returned that
                the peak reaches; None for the exact peak.
        """
        if self.ranks:
            of_ranks = (
                rank.peak_reserved_bytes(batch_size, stop_above_bytes=stop_above_bytes)
                for rank in self.ranks.values()
            )
            return _highest(of_ranks, stop_above_bytes)
        return self._peaks[self._risk.risk].peak(
            batch_size, stop_above_bytes, lambda: self._peak_reserved_bytes(batch_size, stop_above_bytes)
        )

    def _peak_reserved_bytes(self, batch_size: int, stop_above_bytes: int | None) -> int:
        steps = self._decisive(batch_size, self._risk.level)
        if stop_above_bytes is not None:
            least_bytes = self._known_of_lower_risks(steps[0])
            if least_bytes > stop_above_bytes:
                return least_bytes
        peaks = (self._risk.peak_bytes(on_card, stop_above_bytes) for on_card in steps)
        return _highest(peaks, stop_above_bytes)

    def _known_of_lower_risks(self, on_card: StepOnCard) -> int:
        """Lower bound of a peak in bytes, known from earlier calls for milder risks; 0 if there were none.

        Args:
            on_card: the step at the batch size of the peak.
        """
        lower = _LOWER_RISKS[self.risk]
        if not lower:
            return 0
        if self._widening.calibration(on_card).high_share < 0:  # real runs reserved less than the likely peak
            lower = lower[1:]
        return max((self._peaks[risk].least_bytes(on_card.step.batch_size) for risk in lower), default=0)

    @over_ranks(max)
    def lower_bound_bytes(self, batch_size: int) -> int:
        """Lower bound of `peak_reserved_bytes`, from live bytes alone, without any scratch memory."""
        steps = self._decisive(batch_size, self._risk.level)
        least_bytes = max(on_card.step.lower_bound_bytes for on_card in steps)
        if self.risk is Risk.LIKELY:
            return least_bytes
        return self._widening.calibration(steps[0]).high_end(least_bytes)

    @over_ranks(worst)
    def verdict(self, batch_size: int, budget_bytes: int) -> Verdict:
        """Verdict on a batch size, for the value of its peak that has to fit by the curve's risk.

        Args:
            budget_bytes: bytes that the allocator may reserve.

        Returns:
            `FITS`, `THRASH` (it runs only with retries of the allocator) or `OOM`.
        """
        steps = self._decisive(batch_size, self._risk.level)
        return worst(self._risk.verdict(on_card, budget_bytes) for on_card in steps)

    @over_ranks(shortest)
    def accepted(self, sizes: Sequence[int]) -> Sequence[int]:
        """Part of the ascending `sizes` before the first that a PyTorch kernel refuses to run.

        If each size would cost a trace, all are returned.
        """
        if self.needs_traces:
            return sizes  # each would cost a trace
        return sizes[: bisect.bisect_left(sizes, True, key=lambda size: self.why_refused(size) is not None)]

    @over_ranks(first_reason)
    def why_refused(self, batch_size: int) -> str | None:
        """Reason why a batch size cannot run even with unlimited memory; None if it can."""
        refusal = self._at(batch_size).refusal()
        return refusal and f"batch {batch_size} cannot be run: {refusal.module} {refusal.reason}"

    @over_ranks(any)
    def cannot_run(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether a step does not run even by the low end of the prediction, with all cached memory released.

        Args:
            budget_bytes: bytes that the allocator may reserve.
        """
        on_card = self._at(batch_size)
        limit_bytes = self._widening.calibration(on_card).within_low_end(budget_bytes)
        levels = (Level.LOW, Level.LIKELY, Level.HIGH)
        orders = self._risk.orders(on_card)
        if orders is not None and not orders.share_within(limit_bytes):
            return True
        return not any(on_card.runs_within(limit_bytes, level) for level in levels)

    @over_ranks(all)
    def runs_with_smallest_plans(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether a batch runs with the smallest convolution workspaces, and all other sizes at the high end.

        This is how steps run near the limit: when memory is short even after the allocator has released its
        cache, PyTorch takes kernels of cuDNN with smaller workspaces.
        """
        steps = self._decisive(batch_size, Level.HIGH)
        limit_bytes = self._widening.calibration(steps[0]).within_high_end(budget_bytes)
        return all(on_card.runs_within(limit_bytes, Level.LOW) for on_card in steps)

    def __call__(self, batch_size: int) -> Estimate:
        """Predicts the peak at one batch size, limited to the card's memory if its size is known.

        Args:
            batch_size: 1 or more.

        Returns:
            The estimate, with all sizes in bytes.

        Raises:
            UsageError: the batch size is below 1.
        """
        limit_bytes = self.card.limit_bytes
        if limit_bytes is None:
            return on_any_card(self.unlimited(batch_size))
        return self.within(batch_size, limit_bytes)

    def unlimited(self, batch_size: int) -> Estimate:
        """Estimate of one batch size as if the card had unlimited memory.

        Its field `ranks` has an entry for each traced group of ranks that need equal memory.
        """
        if self.ranks:
            return self._of_worst_rank(lambda rank: rank.unlimited(batch_size))
        known = self._last_unlimited  # a table of cards asks for it once for each of them
        if known is None or known[0] != batch_size:
            known = self._last_unlimited = batch_size, self._unlimited(batch_size)
        return known[1]

    def _unlimited(self, batch_size: int) -> Estimate:
        on_card = self._at(batch_size)
        trace, peak = on_card.step.trace, self._widening.counted(on_card)
        lengths = self._risk.run_lengths(on_card, None)
        if lengths is not None:
            peak = lengths.raised(peak)
        time = self.step_time(batch_size)
        seconds = None if time is None else time.stated
        calibration = self._widening.calibration(on_card)
        most_bytes = (
            self._widening.counted(self._at(batch_size, Level.HIGH)).high_bytes
            if self._at_most
            else peak.high_bytes
        )
        return Estimate(
            workload=self.workload,
            batch_size=batch_size // trace.batch_count.num_parts,
            batch_source=trace.batch_count.source,
            num_batches=trace.batch_count.num_batches,
            num_parts=trace.batch_count.num_parts,
            knobs=self.knobs,
            mode=trace.mode,
            batch_kind=trace.batch_kind,
            num_ranks=trace.num_ranks,
            parallel=trace.among_ranks,
            rank=trace.rank,
            communicators=trace.groups,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            device_peak_bytes=peak.reserved_bytes + self.card.context_bytes,
            context_bytes=self.card.context_bytes,
            breakdown=breakdown(peak.breakdown),
            interval=Interval(
                low_bytes=calibration.low_end(peak.low_bytes),
                likely_bytes=peak.reserved_bytes,
                high_bytes=calibration.high_end(max(most_bytes, peak.high_bytes)),
            ),
            evidence=Evidence.PREDICTED,
            device=Device(kind=GPU_KIND, name=self.card.name),
            calibration=calibration,
            convolves=trace.convolves,
            workspace_source=self._conditions.workspace_source if trace.convolves else "",
            workspace_bytes=workspace_span(peak),
            largest=largest(peak.live),
            architectures=self.card.architectures,
            trace_digest=trace.digest,
            versions=versions(_followed(trace)),
            assumptions=tuple(
                AssumedSize(
                    site=each.site,
                    what=each.what,
                    size=each.size,
                    largest=each.largest,
                    moves_bytes=max(0, most_bytes - peak.high_bytes),
                    batch_size=trace.batch_size,
                )
                for each in trace.assumptions
            ),
            unknowns=unknowns(
                peak,
                most_bytes,
                calibration,
                workspaces=self._spans_of(trace),
                modules=on_card.largest_plan_modules(self._widening.end_level(on_card)),
            ),
            model_class=None if trace.model is None else trace.model.model_class,
            num_parameters=None if trace.model is None else trace.model.num_parameters,
            inputs={} if trace.model is None else trace.model.inputs,
            notes=(*(() if trace.model is None else trace.model.sentences), *trace.notes),
            step_seconds=seconds,
            samples_per_second=None if time is None or seconds is None else time.samples_per_second,
            step_time_note=(self.why_untimed or _NO_WORK) if time is None else time.note,
            generation=self._generation(time),
            phases=PhasePeaks(functools.partial(self._phases, on_card)),
            seen=SeenPart.of(trace, batch_size),
            lengths=lengths,
            growth=self._growth_on_card(batch_size),
        )

    def within(self, batch_size: int, limit_bytes: int) -> Estimate:
        """Estimate of one batch size where the allocator can reserve no more than `limit_bytes`.

        At the limit the allocator releases its cached memory and retries, before memory runs out.
        """
        if self.ranks:
            return self._of_worst_rank(lambda rank: rank.within(batch_size, limit_bytes))
        on_card = self._at(batch_size)
        lengths, there = self._risk.run_lengths(on_card, limit_bytes), on_card.likely_within(limit_bytes)
        if lengths is not None:
            there = lengths.within(limit_bytes, there)
        estimate = dataclasses.replace(self.unlimited(batch_size), lengths=lengths)
        calibration = self._widening.calibration(on_card)
        return limited(estimate, there, on_card.least_bytes, calibration, limit_bytes)

    def _of_worst_rank(self, estimate_of: Callable[[Self], Estimate]) -> Estimate:
        """Estimate of the rank that needs the most memory; its field `ranks` has the peaks of all groups.

        Args:
            estimate_of: returns the estimate of one rank, from its curve.
        """
        estimates = {kind: estimate_of(rank) for kind, rank in self.ranks.items()}
        ranks = tuple(
            RankEstimate(
                rank=kind.first,
                num_alike=kind.num_ranks,
                peak_allocated_bytes=each.peak_allocated_bytes,
                interval=each.interval,
                need=each.need,
            )
            for kind, each in estimates.items()
        )
        largest_need = max(
            estimates.values(), key=lambda each: (each.needed.high_bytes, each.needed.likely_bytes)
        )
        return dataclasses.replace(largest_need, ranks=ranks, num_kinds_of_ranks=self._num_kinds)

    @at_worst_rank
    def growth(self, batch_size: int, usable_bytes: int) -> tuple[LineGrowth, ...]:
        """Source lines that keep more memory with each step of a run.

        Returns:
            The lines, each with the step at which all growing memory together fills `usable_bytes`; empty if
            nothing grows.
        """
        growth = self._run_growth(batch_size)
        if not growth.lines:
            return ()
        reserved_bytes = self._widening.counted(self._at(batch_size)).reserved_bytes
        return growth.within(reserved_bytes, usable_bytes)

    def _growth_on_card(self, batch_size: int) -> tuple[LineGrowth, ...]:
        limit_bytes = self.card.limit_bytes
        if limit_bytes is None:
            return self._run_growth(batch_size).lines
        return self.growth(batch_size, limit_bytes)

    def _run_growth(self, batch_size: int) -> RunGrowth:
        on_card = self._at(batch_size)
        return RunGrowth.of(on_card.step.trace, batch_size, on_card.likely().sizes)

    @over_ranks(slowest)
    def step_time(self, batch_size: int, budget_bytes: int | None = None) -> StepTime | None:
        """Predicted time of a step; None if step times are not predicted, see `why_untimed`.

        Args:
            budget_bytes: only for the convolution algorithm `mixed`: bytes that the step has to fit in, by
                which the algorithms of layers are chosen. If None, each layer gets the algorithm with the
                least memory.
        """
        if self.why_untimed is not None:
            return None
        return self._timer.time(
            self._curve,
            batch_size,
            self.knobs,
            self.card,
            conv_cost=lambda: self.conv_cost(batch_size, budget_bytes),
        )

    def _generation(self, time: StepTime | None) -> GenerationTime | None:
        """Predicted times of a text generation's tokens; None for other steps, or without a step time."""
        if time is None or self.knobs.new_tokens is None:
            return None
        return time.of_tokens(self.knobs.new_tokens, time.samples)

    @property
    def mode(self) -> str:
        """Mode of the step: `train`, `infer` or `generate`."""
        return self._curve.trace.mode

    @property
    def parallel(self) -> Parallel:
        """Parallelism by which the ranks of the step share the work."""
        return Parallel.named(self._curve.trace.among_ranks)

    @property
    def batch_count(self) -> BatchCount:
        """Number of batches in the traced step, and where the batch size is from."""
        return self._curve.trace.batch_count

    @property
    def why_untimed(self) -> str | None:
        """Reason why no step times are predicted on the card; None if they are predicted."""
        return why_untimed(self.card, self.parallel)

    def _phases(self, on_card: StepOnCard) -> tuple[PhasePeak, ...]:
        """Likely allocated peak of each phase, such as forward pass; the highest of all traced steps."""
        peaks = phase_peaks(on_card.step.trace, self._block_bytes(on_card))
        return tuple(PhasePeak(name=name, num_bytes=num_bytes) for name, num_bytes in peaks.items())

    def _block_bytes(self, on_card: StepOnCard) -> Sequence[int]:
        """Size of the allocator's block for each allocation of the step, in bytes, at likely sizes."""
        sizes, found, _ = on_card.likely()
        events = on_card.step.trace.events
        return given_blocks(events, sizes, settings=self._conditions.settings, found=found)

    @at_worst_rank
    def profile(self, batch_size: int) -> Profile:
        """Memory profile of a step: its allocations with their sizes and origins, and the likely peaks.

        Args:
            batch_size: a batch size that was traced.

        Raises:
            UsageError: the curve was not made from a trace at that batch size.
        """
        on_card = self._at(batch_size)
        trace = on_card.step.trace
        if trace.batch_size != batch_size:
            raise UsageError(
                f"a profile needs a trace at its own batch size: this one is at {trace.batch_size}"
            )
        sizes, found_bytes, likely = on_card.likely()
        time = self.step_time(batch_size)
        return Profile(
            trace=trace,
            knobs=self.knobs,
            card=self.card.name,
            architecture=self.card.architecture,
            requested_bytes=tuple(sizes),
            block_bytes=tuple(self._block_bytes(on_card)),
            found_bytes=found_bytes,
            context_bytes=self.card.context_bytes,
            peak_allocated_bytes=likely.peak_allocated_bytes,
            peak_reserved_bytes=likely.peak_reserved_bytes,
            workspace_source=self._conditions.workspace_source,
            versions=versions(_followed(trace)),
            timing=None if time is None or self.parallel else self._timing(batch_size, time),
            time_note=self._note_of_operators(time),
        )

    def _note_of_operators(self, time: StepTime | None) -> str:
        if time is None:
            return self.why_untimed or _NO_WORK
        return _SEVERAL_STREAMS if self.parallel else time.note

    def _timing(self, batch_size: int, time: StepTime) -> Timing | None:
        """Predicted time of each operator of a step; None if there are no times for the step.

        Args:
            time: predicted time of the whole step.
        """
        found = self._timer.clocked(
            self._curve,
            batch_size,
            self.knobs,
            self.card,
            conv_cost=lambda: self.conv_cost(batch_size),
        )
        return None if found is None else timing_of(found, time)

    @at_worst_rank
    def outcome(self, batch_size: int, budget_bytes: int) -> TrialOutcome:
        """Outcome of a trial (one run of a configuration) as it is predicted for a budget.

        It has no trace.
        """
        steps = self._decisive(batch_size, self._risk.level)
        trace = self._at(batch_size).step.trace
        reserved_bytes = self.peak_reserved_bytes(batch_size)
        peaks = Peaks(
            allocated_bytes=max(step.by_first_source.replay().peak_allocated_bytes for step in steps),
            reserved_bytes=reserved_bytes,
            device_bytes=reserved_bytes + self.card.context_bytes,
        )
        return TrialOutcome(
            verdict=self.verdict(batch_size, budget_bytes),
            evidence=Evidence.PREDICTED,
            device=Device(kind=GPU_KIND, name=self.card.name),
            batch_size=batch_size,
            knobs=self.knobs,
            first_step=peaks,
            steady=peaks,
            conv_cost=self.conv_cost(batch_size, budget_bytes),
            environment={**trace.versions, "trace_sha256": trace.digest},
        )

    @at_worst_rank
    def conv_plan(self, batch_size: int, budget_bytes: int) -> ConvPlan | None:
        """Fastest choice of an algorithm for each layer with which a batch fits a budget; else None."""
        on_card = self._at(batch_size, self._risk.level)
        if self.risk is Risk.LIKELY:
            return ConvPlanner(on_card, self._conv_costs, level=Level.LIKELY).within_budget(budget_bytes)
        planner = ConvPlanner(
            on_card,
            self._conv_costs,
            level=self._risk.replayed(on_card),
            on_top=self._widening.of_other_runs(on_card).on_top,
        )
        return planner.within_budget(self._widening.calibration(on_card).within_high_end(budget_bytes))

    @at_worst_rank
    def conv_cost(self, batch_size: int, budget_bytes: int | None = None) -> float | None:
        """Predicted time of all convolutions, divided by that with the backend's own choice of algorithms.

        It is None on cards for which no times of convolutions are known, such as AMD's.

        Args:
            budget_bytes: see `step_time`; the ratio is infinite if no choice of algorithms fits the budget.
        """
        if not self._vendor.knows_times:
            return None
        algorithm = conv.find(self.knobs.conv_algo)
        if isinstance(algorithm, ConvPolicy) and algorithm.enabled:
            return 1.0
        on_card = self._at(batch_size, self._risk.level)
        if self.knobs.conv_algo != MIXED:
            calls = on_card.step.convolutions.values()
            return self._conv_costs.relative((call, self.knobs.conv_algo) for call in calls)
        if budget_bytes is None:
            return self._conv_costs.relative(_by_least_memory(on_card))
        plan = self.conv_plan(batch_size, budget_bytes)
        return math.inf if plan is None else plan.relative_cost

    @property
    def _conv_costs(self) -> ConvCosts:
        return ConvCosts(self._timer.costs(self.card, self.knobs))

    @at_worst_rank
    def convolution_options(
        self, batch_size: int, names: Sequence[str]
    ) -> dict[Convolution, list[Candidate]]:
        """Algorithms among `names` that can run each distinct convolution, with their workspaces."""
        return self._at(batch_size).convolution_options(names)

    @property
    def trace_identity(self) -> str:
        """Digest of the traced step, by which equal steps are recognized.

        It is that of the trace at the first batch size, which every curve has.
        """
        return self._curve.trace.identity

    def _at(self, batch_size: int, level: Level = Level.LIKELY) -> StepOnCard:
        """Traced step at a batch size on the curve's card.

        Args:
            level: value of the peak that is wanted. For the high end and the worst case, sizes that depend on
                data values are as large as possible.
        """
        if batch_size < 1:
            raise UsageError(f"the batch size must be a whole number, 1 or more; got {batch_size}")
        is_high = self._at_most is not None and level in (Level.HIGH, Level.WORST)
        curve = self._at_most if is_high and self._at_most is not None else self._curve
        step = self._steps.get((curve, batch_size))
        if step is None:
            if len(self._steps) >= _MOST_STEPS:
                self._steps.clear()
            step = self._steps[curve, batch_size] = curve.on_card(batch_size, self._conditions)
        return step

    def _decisive(self, batch_size: int, level: Level) -> tuple[StepOnCard, ...]:
        """Steps to simulate at a batch size; the highest of their peaks and worst of their verdicts count.

        Usually there is one. If sizes depend on data values, the first step has the largest possible sizes,
        and the second the assumed ones, which may reserve more, as the allocator places their blocks
        differently.

        Args:
            level: value of the peak that is wanted: the likely one, the high end, or the worst case.
        """
        typical = self._at(batch_size)
        if self._at_most is None:
            return (typical,)
        first = self._at(batch_size, level)
        return (first,) if first is typical else (first, typical)

    def _spans_of(self, trace: Trace) -> str:
        """Phrase for the sizes of a step that are only known within bounds, such as workspaces."""
        workspaces = "workspaces of convolutions" if trace.convolves else ""
        if self._vendor.spanned_libraries:
            workspaces = f"workspaces of {self._vendor.spanned_libraries}"
        found = (*((workspaces,) if workspaces else ()), *spanning(trace))
        return " and ".join(found or ("workspaces of libraries",))

    @property
    def _vendor(self) -> Facts:
        return Architecture.of(self.card.architecture).vendor.facts


def _highest(peaks: Iterable[int], stop_above_bytes: int | None) -> int:
    """Largest of some peaks in bytes; peaks after the first one above the limit are not looked at."""
    highest_bytes = 0
    for peak_bytes in peaks:
        highest_bytes = max(highest_bytes, peak_bytes)
        if stop_above_bytes is not None and highest_bytes > stop_above_bytes:
            break
    return highest_bytes


def _by_least_memory(on_card: StepOnCard) -> Iterator[tuple[Convolution, str]]:
    """Yields each convolution call with the name of the algorithm that takes the least memory for it."""
    modules = on_card.step.convolution_modules()
    for layer, choices in on_card.convolution_options().items():
        least = smallest(choices)
        for _ in modules[layer]:
            yield from ((call, least.algorithm) for call in least.spans)


def likely_bytes(curves: Mapping[Knobs, PredictedCurve], knobs: Knobs, batch_size: int) -> int | None:
    """Likely reserved peak of a configuration in bytes, to be compared with its measured peak.

    Returns:
        None if there is no curve for the knob setting, or if a prediction would cost another trace.
    """
    curve = curves.get(knobs)
    return None if curve is None or curve.needs_traces else curve(batch_size).interval.likely_bytes


def _followed(trace: Trace) -> str | None:
    """Release of PyTorch that a trace follows by `--torch`; None for the one that made it."""
    return trace.versions["torch"] if "traced_with" in trace.versions else None
