"""Predicted peaks of one knob setting on one card, by batch size."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from autofit.errors import UsageError
from autofit.explain.profile import Profile, phase_peaks
from autofit.hardware.card import Card
from autofit.hardware.chips import properties_for
from autofit.identity import versions
from autofit.predict.confidence import Calibration, Residuals, classify
from autofit.predict.conv_costs import Rates, relative_cost
from autofit.predict.conv_plan import ConvPlan, ConvPlanner
from autofit.predict.estimate import (
    AssumedSize,
    Breakdown,
    Estimate,
    Interval,
    LargeTensor,
    PhasePeak,
    Unknown,
    WorkspaceSpan,
)
from autofit.predict.observations import Residual, sharpened
from autofit.predict.plan_sources import CardPlans
from autofit.predict.unpredictable import why_unpredictable
from autofit.search.curves import PeakMemory
from autofit.settings.goals import Risk
from workers.allocator import AllocatorSettings, given_blocks
from workers.architecture import Architecture, Vendor
from workers.knobs import Knobs
from workers.predict.curve.conditions import MIXED, Conditions, Level
from workers.predict.curve.mixed_convolutions import Candidate
from workers.predict.curve.peak_curve import TRACED_BATCH_SIZES, StepCurve
from workers.predict.curve.peak_estimate import LiveAllocation, PeakEstimate
from workers.predict.curve.step_on_card import StepOnCard
from workers.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict
from workers.trace import COMPILED_STEP, MANAGED_MEMORY, Category, Convolution, Trace

_LEVELS = {Risk.SAFE: Level.HIGH, Risk.LIKELY: Level.LIKELY, Risk.WORST: Level.WORST}
# Those whose peaks are never above a risk's own, the likely one first: their replays are among its replays.
_LOWER_RISKS = {Risk.LIKELY: (), Risk.SAFE: (Risk.LIKELY,), Risk.WORST: (Risk.LIKELY, Risk.SAFE)}
_NUM_LARGEST = 8
_SPANNING = {
    MANAGED_MEMORY: "pages of managed memory",
    COMPILED_STEP: "temporaries of the compiled optimizer step",
}
_MOST_STEPS = 512  # remembered; some kB each, beside what the step's curve remembers


class PredictedCurve:
    """Predicted peaks of one knob setting on one card: `curve(batch_size)` is an `Estimate`.

    `autofit.peak_curve` makes one. After its traces each batch size costs milliseconds, unless
    `needs_traces`. An estimate has the whole interval; `peak_reserved_bytes` and `verdict` are those of
    one level of it, the `risk`.

    Args:
        at_most: the same step with the largest sizes that values may give it, where its sizes depend on
            some: the high end is that one's.
        observed: finds the observed peaks of this setting on this card, once an interval is asked for.

    Attributes:
        risk: `safe` (the high end of the interval), `likely`, or `worst` (the largest workspace of every
            convolution).
    """

    def __init__(
        self,
        workload: str,
        knobs: Knobs,
        card: Card,
        curve: StepCurve,
        *,
        residuals: Residuals,
        plans: CardPlans,
        on_grid: bool,
        risk: Risk = Risk.SAFE,
        at_most: StepCurve | None = None,
        observed: Callable[[PredictedCurve], tuple[Residual, ...]] | None = None,
    ) -> None:
        self.risk = risk
        self._observed = observed
        self._residuals_seen: tuple[Residual, ...] | None = None
        self._at_most = at_most
        self._plans = plans
        self._on_grid = on_grid
        self._workload = workload
        self._knobs = knobs
        self._card = card
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
        # By the trace's batch size: a digest takes longer than a replay, a calibration as long.
        self._digests: dict[int, str] = {}
        self._calibrations: dict[int, Calibration] = {}
        self._peaks = {each: PeakMemory() for each in Risk}
        self._steps: dict[tuple[StepCurve, int], StepOnCard] = {}

    @property
    def needs_traces(self) -> bool:
        """True if the step allocates differently at every batch size, so that each size costs a trace."""
        return self._curve.needs_traces

    def __call__(self, batch_size: int) -> Estimate:
        """Predicts one batch size.

        Args:
            batch_size: 1 or more.

        Returns:
            The estimate, with all sizes in bytes.

        Raises:
            UsageError: the batch size is below 1.
        """
        on_card = self._at(batch_size)
        trace, peak = on_card.step.trace, self._counted(on_card)
        calibration = self._calibration(on_card)
        most_bytes = (
            self._counted(self._at(batch_size, Level.HIGH)).high_bytes if self._at_most else peak.high_bytes
        )
        phases = self._phases(on_card)
        return Estimate(
            workload=self._workload,
            batch_size=batch_size,
            knobs=self._knobs,
            mode=trace.mode,
            batch_kind=trace.batch_kind,
            num_ranks=trace.num_ranks,
            parallel=trace.among_ranks,
            rank=trace.rank,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            device_peak_bytes=peak.reserved_bytes + self._card.context_bytes,
            context_bytes=self._card.context_bytes,
            breakdown=_breakdown(peak.breakdown),
            interval=Interval(
                low_bytes=calibration.low_end(peak.low_bytes),
                likely_bytes=peak.reserved_bytes,
                high_bytes=calibration.high_end(max(most_bytes, peak.high_bytes)),
            ),
            evidence=Evidence.PREDICTED,
            device=Device(kind="cuda", name=self._card.name),
            calibration=calibration,
            convolves=trace.convolves,
            workspace_source=self._conditions.workspace_source if trace.convolves else "",
            workspace_bytes=_workspace_span(peak),
            largest=_largest(peak.live),
            architectures=self._card.architectures,
            trace_digest=self._digest(trace),
            versions=versions(),
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
            unknowns=_unknowns(
                peak,
                most_bytes,
                calibration,
                workspaces=self._spans_of(trace),
                modules=on_card.largest_plan_modules(self._end_level(on_card)),
            ),
            notes=trace.notes,
            phases=phases,
            peak_phase=max(phases, key=lambda phase: phase.num_bytes).name if phases else "",
        )

    def _phases(self, on_card: StepOnCard) -> tuple[PhasePeak, ...]:
        """The likely allocated peak of each phase, over the steps."""
        peaks = phase_peaks(on_card.step.trace, self._block_bytes(on_card))
        return tuple(PhasePeak(name=name, num_bytes=num_bytes) for name, num_bytes in peaks.items())

    def _block_bytes(self, on_card: StepOnCard) -> Sequence[int]:
        """The bytes of each allocation's block in the likely replay."""
        sizes, found, _ = on_card.likely()
        events = on_card.step.trace.events
        return given_blocks(events, sizes, settings=self._conditions.settings, found=found)

    def spans(self, batch_size: int) -> PeakEstimate:
        """The peaks with what workspaces may add, which no errors of real runs widen yet."""
        peak = self._counted(self._at(batch_size))
        if self._at_most is None:
            return peak
        most = self._counted(self._at(batch_size, Level.HIGH))
        return dataclasses.replace(
            peak,
            high_bytes=max(peak.high_bytes, most.high_bytes),
            allocated_high_bytes=max(peak.allocated_high_bytes, most.allocated_high_bytes),
        )

    @property
    def knobs(self) -> Knobs:
        """The setting that it is of."""
        return self._knobs

    @property
    def card(self) -> Card:
        """The card that it is for."""
        return self._card

    def profile(self, batch_size: int) -> Profile:
        """All that the likely peaks of a traced batch size were worked out from, for the views.

        Raises:
            UsageError: the curve is not of the trace at that size.
        """
        on_card = self._at(batch_size)
        trace = on_card.step.trace
        if trace.batch_size != batch_size:
            raise UsageError(
                f"a profile needs a trace at its own batch size: this one is at {trace.batch_size}"
            )
        sizes, found_bytes, likely = on_card.likely()
        return Profile(
            trace=trace,
            knobs=self._knobs,
            card=self._card.name,
            architecture=self._card.architecture,
            requested_bytes=tuple(sizes),
            block_bytes=tuple(self._block_bytes(on_card)),
            found_bytes=found_bytes,
            context_bytes=self._card.context_bytes,
            peak_allocated_bytes=likely.peak_allocated_bytes,
            peak_reserved_bytes=likely.peak_reserved_bytes,
            workspace_source=self._conditions.workspace_source,
            versions=versions(),
        )

    def why_unpredictable_on(self, card: Card, batch_size: int) -> str | None:
        """Why nothing is predicted of a size of the step on another card; None where `on` has its curve."""
        return why_unpredictable(self._knobs, self._at(batch_size).step.trace, card)

    def on(self, card: Card) -> PredictedCurve:
        """The same step on another card, one that it can be predicted on."""
        return PredictedCurve(
            self._workload,
            self._knobs,
            card,
            self._curve,
            residuals=self._residuals,
            plans=self._plans,
            on_grid=self._on_grid,
            risk=self.risk,
            at_most=self._at_most,
            observed=self._observed,
        )

    def at_risk(self, risk: Risk) -> PredictedCurve:
        """The same curve, asked for another level."""
        other = copy.copy(self)
        other.risk = risk
        return other

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        """The peak at the curve's risk, worked out once; see `autofit.search.curves.Curve`."""
        return self._peaks[self.risk].peak(
            batch_size, stop_above_bytes, lambda: self._peak_reserved_bytes(batch_size, stop_above_bytes)
        )

    def _peak_reserved_bytes(self, batch_size: int, stop_above_bytes: int | None) -> int:
        steps = self._decisive(batch_size, self._level)
        if stop_above_bytes is not None:
            least_bytes = self._known_of_lower_risks(steps[0])
            if least_bytes > stop_above_bytes:
                return least_bytes
        highest_bytes = 0
        for on_card in steps:
            highest_bytes = max(highest_bytes, self._peak_of_step(on_card, stop_above_bytes))
            if stop_above_bytes is not None and highest_bytes > stop_above_bytes:
                break
        return highest_bytes

    def _peak_of_step(self, on_card: StepOnCard, stop_above_bytes: int | None) -> int:
        if stop_above_bytes is not None:
            stop_above_bytes = self._before_widening(on_card, stop_above_bytes)
        reserved_bytes = on_card.reserved_bytes(
            self._replayed_level(on_card), stop_above_bytes=stop_above_bytes
        )
        if self.risk is Risk.LIKELY:
            return reserved_bytes
        return self._calibration(on_card).high_end(reserved_bytes + self._on_top_bytes(on_card))

    def _known_of_lower_risks(self, on_card: StepOnCard) -> int:
        """What peaks at lower risks were worked out to be, which bound this one's from below; 0 for none."""
        lower = _LOWER_RISKS[self.risk]
        if not lower:
            return 0
        if self._calibration(on_card).high_share < 0:  # real runs took less than is likely
            lower = lower[1:]
        return max((self._peaks[risk].least_bytes(on_card.step.batch_size) for risk in lower), default=0)

    def lower_bound_bytes(self, batch_size: int) -> int:
        """A lower bound of the peak at the curve's risk, in bytes: live bytes, without any workspace."""
        steps = self._decisive(batch_size, self._level)
        least_bytes = max(on_card.step.lower_bound_bytes for on_card in steps)
        if self.risk is Risk.LIKELY:
            return least_bytes
        return self._calibration(steps[0]).high_end(least_bytes)

    def outcome(self, batch_size: int, budget_bytes: int) -> TrialOutcome:
        """What a predict trial of this size under this budget would return, without its trace."""
        steps = self._decisive(batch_size, self._level)
        trace = self._at(batch_size).step.trace
        reserved_bytes = self.peak_reserved_bytes(batch_size)
        peaks = Peaks(
            allocated_bytes=max(step.by_first_source.replay().peak_allocated_bytes for step in steps),
            reserved_bytes=reserved_bytes,
            device_bytes=reserved_bytes + self._card.context_bytes,
        )
        return TrialOutcome(
            verdict=self.verdict(batch_size, budget_bytes),
            evidence=Evidence.PREDICTED,
            device=Device(kind="cuda", name=self._card.name),
            batch_size=batch_size,
            knobs=self._knobs,
            first_step=peaks,
            steady=peaks,
            conv_cost=self.conv_cost(batch_size, budget_bytes),
            environment={**trace.versions, "trace_sha256": self._digest(trace)},
        )

    def verdict(self, batch_size: int, budget_bytes: int) -> Verdict:
        """`FITS`, `THRASH` or `OOM`: the peak at the curve's risk against a budget in bytes."""
        verdict = Verdict.FITS
        for on_card in self._decisive(batch_size, self._level):
            of_step = self._verdict_of_step(on_card, budget_bytes)
            if of_step is Verdict.OOM:
                return of_step
            verdict = verdict if of_step is Verdict.FITS else of_step
        return verdict

    def _verdict_of_step(self, on_card: StepOnCard, budget_bytes: int) -> Verdict:
        if on_card.step.lower_bound_bytes > self._within(on_card, budget_bytes):
            return Verdict.OOM  # whatever workspaces may add, which costs more to find out
        return on_card.verdict(self._before_widening(on_card, budget_bytes), self._replayed_level(on_card))

    def conv_plan(self, batch_size: int, budget_bytes: int) -> ConvPlan | None:
        """For each layer the cheapest algorithm with which a size fits the budget; None where none does."""
        on_card = self._at(batch_size, self._level)
        if self.risk is Risk.LIKELY:
            return ConvPlanner(on_card, self._rates(on_card), level=Level.LIKELY).within_budget(budget_bytes)
        planner = ConvPlanner(
            on_card,
            self._rates(on_card),
            level=self._replayed_level(on_card),
            on_top=self._of_other_runs(on_card).on_top,
        )
        return planner.within_budget(self._calibration(on_card).within_high_end(budget_bytes))

    def conv_cost(self, batch_size: int, budget_bytes: int) -> float | None:
        """The predicted time of all convolutions, over that of the backend's own choice.

        None on AMD's cards, of whose convolutions no times are known.
        """
        if self._is_amds:
            return None
        if self._knobs.conv_algo == MIXED:
            plan = self.conv_plan(batch_size, budget_bytes)
            return math.inf if plan is None else plan.relative_cost
        on_card = self._at(batch_size, self._level)
        calls = on_card.step.convolutions.values()
        return relative_cost(calls, self._knobs.conv_algo, self._rates(on_card))

    def _rates(self, on_card: StepOnCard) -> Rates:
        """What the card can do for tensors of the type that the step convolves."""
        dtypes = [call.dtype for call in on_card.step.convolutions.values()]
        return Rates.of(
            properties_for(self._card.architecture, self._card.name),
            dtype=dtypes[0] if dtypes else "float32",
            allow_tf32=self._knobs.tf32_in_convolutions,
        )

    def largest_accepted(self, max_batch: int) -> int:
        """The largest batch up to a cap that PyTorch's kernels take, whatever memory there is; 0 for none."""
        if self.needs_traces:
            return max_batch  # each size would cost a trace
        sizes = range(1, max_batch + 1)
        return bisect.bisect_left(sizes, True, key=lambda size: self.why_refused(size) is not None)

    def why_refused(self, batch_size: int) -> str | None:
        """Why a size cannot be run, whatever memory there is; None where it can."""
        refusal = self._at(batch_size).refusal()
        return refusal and f"batch {batch_size} cannot be run: {refusal.module} {refusal.reason}"

    def cannot_run(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether even the low end fails under the budget, with all that the allocator can release."""
        on_card = self._at(batch_size)
        limit_bytes = self._calibration(on_card).within_low_end(budget_bytes)
        levels = (Level.LOW, Level.LIKELY, Level.HIGH)
        return not any(on_card.runs_within(limit_bytes, level) for level in levels)

    def runs_with_smallest_plans(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether it runs where everything but the workspaces is as large as the high end has it.

        Near the limit cuDNN takes the plans that need least, once the allocator has released its cache.
        """
        steps = self._decisive(batch_size, Level.HIGH)
        limit_bytes = self._calibration(steps[0]).within_high_end(budget_bytes)
        return all(on_card.runs_within(limit_bytes, Level.LOW) for on_card in steps)

    def convolution_options(
        self, batch_size: int, names: Sequence[str]
    ) -> dict[Convolution, list[Candidate]]:
        """Each different layer with those of some convolution algorithms that apply to it."""
        return self._at(batch_size).convolution_options(names)

    def convolution_modules(self, batch_size: int) -> dict[Convolution, tuple[str, ...]]:
        """The modules that call each different layer."""
        return self._at(batch_size).step.convolution_modules()

    @property
    def trace_digest(self) -> str:
        """Names the trace at the first of the sizes that every curve is traced at."""
        return self._digest(self._at(TRACED_BATCH_SIZES[0]).step.trace)

    def _spans_of(self, trace: Trace) -> str:
        """What is known as a span in a step, as a reader is told."""
        workspaces = "workspaces of convolutions" if trace.convolves else ""
        if self._is_amds:
            workspaces = "workspaces of hipBLASLt, hipBLAS and AOTriton"
        found = (*((workspaces,) if workspaces else ()), *_spanning(trace))
        return " and ".join(found or ("workspaces of libraries",))

    @property
    def _is_amds(self) -> bool:
        return Architecture.of(self._card.architecture).vendor is Vendor.AMD

    @property
    def _level(self) -> Level:
        return _LEVELS[self.risk]

    def _at(self, batch_size: int, level: Level = Level.LIKELY) -> StepOnCard:
        """The step at a size; of the high end with the largest sizes that values may give it."""
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
        """The steps whose worst a peak and a verdict of a level are.

        With the largest sizes, which come first, a step may reserve less than with those that were assumed:
        the allocator places its blocks otherwise.
        """
        first, typical = self._at(batch_size, level), self._at(batch_size)
        return (first,) if first is typical else (first, typical)

    def _counted(self, on_card: StepOnCard) -> PeakEstimate:
        """The peaks of a step, their ends with what workspaces may add."""
        peak, added = on_card.estimate(), self._on_top_bytes(on_card)
        if not self._of_other_runs(on_card).spans:
            likely, allocated = peak.reserved_bytes, peak.allocated_bytes
            peak = dataclasses.replace(
                peak,
                low_bytes=likely,
                high_bytes=likely,
                allocated_low_bytes=allocated,
                allocated_high_bytes=allocated,
            )
        return dataclasses.replace(
            peak,
            high_bytes=peak.high_bytes + added,
            allocated_high_bytes=peak.allocated_high_bytes + added,
        )

    def _end_level(self, on_card: StepOnCard) -> Level:
        """The level of the workspaces at the high end."""
        return Level.HIGH if self._of_other_runs(on_card).spans else Level.LIKELY

    def _replayed_level(self, on_card: StepOnCard) -> Level:
        """The level of the workspaces that a peak at the curve's risk is replayed with."""
        return self._end_level(on_card) if self.risk is Risk.SAFE else self._level

    def _on_top_bytes(self, on_card: StepOnCard) -> int:
        """What the largest workspace may add to a replayed peak."""
        return self._of_other_runs(on_card).on_top(on_card.largest_plan_bytes(self._end_level(on_card)))

    def _before_widening(self, on_card: StepOnCard, limit_bytes: int) -> int:
        """The largest replayed peak that is within a limit, with what may be added and widened."""
        within_bytes = self._within(on_card, limit_bytes)
        return (
            within_bytes if self.risk is Risk.LIKELY else max(0, within_bytes - self._on_top_bytes(on_card))
        )

    def _within(self, on_card: StepOnCard, limit_bytes: int) -> int:
        """The largest peak that is within a limit when it is widened; what may be added counts in it."""
        if self.risk is Risk.LIKELY:
            return limit_bytes
        return self._calibration(on_card).within_high_end(limit_bytes)

    def _of_other_runs(self, on_card: StepOnCard) -> Calibration:
        """The calibration by real runs of such steps, whatever was observed of this workload."""
        trace = on_card.step.trace
        if trace.batch_size not in self._calibrations:
            found = self._residuals.of(classify(trace), *self._card.architectures)
            spans = found.spans or bool(_spanning(trace))  # no real runs with such are among them
            self._calibrations[trace.batch_size] = dataclasses.replace(found, spans=spans)
        return self._calibrations[trace.batch_size]

    def _calibration(self, on_card: StepOnCard) -> Calibration:
        calibration = self._of_other_runs(on_card)
        if self._observed is None:
            return calibration
        if self._residuals_seen is None:
            self._residuals_seen = ()  # what is asked for meanwhile is about the spans alone
            self._residuals_seen = self._observed(self)
        return sharpened(calibration, self._residuals_seen, on_card.step.batch_size)

    def _digest(self, trace: Trace) -> str:
        if trace.batch_size not in self._digests:
            self._digests[trace.batch_size] = trace.digest
        return self._digests[trace.batch_size]


def likely_bytes(curves: Mapping[Knobs, PredictedCurve], knobs: Knobs, batch_size: int) -> int | None:
    """The likely peak of a configuration, to be compared with what is measured.

    Returns:
        None where there is no prediction, or it would cost a trace.
    """
    curve = curves.get(knobs)
    return None if curve is None or curve.needs_traces else curve(batch_size).interval.likely_bytes


def _breakdown(by_category: dict[Category, int]) -> Breakdown:
    return Breakdown(
        parameters=by_category[Category.PARAMETER],
        gradients=by_category[Category.GRADIENT],
        optimizer_state=by_category[Category.OPTIMIZER_STATE],
        activations=by_category[Category.ACTIVATION],
        inputs=by_category[Category.INPUT],
        workspace=by_category[Category.WORKSPACE],
        other=by_category[Category.OTHER],
    )


def _spanning(trace: Trace) -> tuple[str, ...]:
    """What of a step is known as a span alone, whatever the card and the runs that are known, in words."""
    operators = {a.operator for a in trace.allocations if a.span_bytes is not None}
    return tuple(words for operator, words in _SPANNING.items() if operator in operators)


def _unknowns(
    peak: PeakEstimate,
    most_bytes: int,
    calibration: Calibration,
    *,
    workspaces: str,
    modules: tuple[str, ...],
) -> tuple[Unknown, ...]:
    """What the interval is made of, the source that may add most first; what moves nothing is left out."""
    likely = peak.reserved_bytes
    ends = {
        workspaces: (peak.low_bytes, peak.high_bytes),
        "sizes that depend on values": (likely, likely + max(0, most_bytes - peak.high_bytes)),
        "what real runs were off by": (calibration.low_end(likely), calibration.high_end(likely)),
    }
    unknowns = [
        Unknown(
            source=source,
            low_bytes=min(low, likely),
            likely_bytes=likely,
            high_bytes=max(high, likely),
            modules=modules if source == workspaces else (),
        )
        for source, (low, high) in ends.items()
        if (low, high) != (likely, likely)
    ]
    return tuple(sorted(unknowns, key=lambda unknown: -unknown.high_bytes))


def _workspace_span(peak: PeakEstimate) -> WorkspaceSpan | None:
    low, high = peak.workspace_low_bytes, peak.workspace_high_bytes
    return None if low == high else WorkspaceSpan(low=low, likely=peak.workspace_likely_bytes, high=high)


def _largest(live: Iterable[LiveAllocation]) -> tuple[LargeTensor, ...]:
    """The largest holders of memory, those of one module, operator and line taken together."""
    sums: dict[tuple[str, str, str], int] = {}
    for item in live:
        origin = item.allocation
        key = (origin.module, origin.operator, origin.source)
        sums[key] = sums.get(key, 0) + item.num_bytes
    ordered = sorted(sums.items(), key=lambda pair: pair[1], reverse=True)
    return tuple(
        LargeTensor(module=module, operator=operator, source=source, num_bytes=num_bytes)
        for (module, operator, source), num_bytes in ordered[:_NUM_LARGEST]
    )
