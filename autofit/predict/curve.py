"""Predicted peaks of one knob setting on one card, by batch size."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from autofit.errors import UsageError
from autofit.explain.profile import Profile, phase_peaks
from autofit.explain.timing import Timing
from autofit.identity import versions
from autofit.predict.convolutions.costs import ConvCosts
from autofit.predict.convolutions.plan import ConvPlan, ConvPlanner
from autofit.predict.estimate import AssumedSize, Estimate, Interval, PhasePeak, PhasePeaks
from autofit.predict.estimate_parts import breakdown, largest, unknowns, workspace_span
from autofit.predict.intervals.widening import spanning
from autofit.predict.limited import limited, on_any_card
from autofit.predict.peaks_on_card import PeaksOnCard
from autofit.predict.times.step_times import StepTime, why_untimed
from autofit.predict.times.timings import timing_of
from autofit.predict.whole_run import LineGrowth, RunGrowth, SeenPart
from autofit.settings.goals import Risk
from autofit_workers.replay.allocator import given_blocks
from autofit_workers.replay.curve.conditions import MIXED, Level
from autofit_workers.replay.curve.mixed_convolutions import Candidate, smallest
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.conv_algorithms import ConvPolicy
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import BatchCount, Trace
from autofit_workers.spec.vendors import Facts
from autofit_workers.spec.work import Convolution

_NO_WORK = "no step time is given, as the step at this batch size was not traced"
_SEVERAL_STREAMS = (
    "operators of a rank have no times of their own, as collectives run beside them: "
    "estimate tells the step's"
)


class PredictedCurve(PeaksOnCard):
    """Predicted peaks of one knob setting on one card: `curve(batch_size)` is an `Estimate`.

    `autofit.peak_curve` makes one. After its traces each batch size costs milliseconds, unless
    `needs_traces`. An estimate has the whole interval, whatever the risk.
    """

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
        """Estimate of one batch size on a card of unlimited memory."""
        on_card = self._at(batch_size)
        trace, peak = on_card.step.trace, self._widening.counted(on_card)
        lengths = self.run_lengths(on_card, None)
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
            workload=self._workload,
            batch_size=batch_size // trace.batch_count.num_parts,
            batch_source=trace.batch_count.source,
            num_batches=trace.batch_count.num_batches,
            knobs=self._knobs,
            mode=trace.mode,
            batch_kind=trace.batch_kind,
            num_ranks=trace.num_ranks,
            parallel=trace.among_ranks,
            rank=trace.rank,
            communicators=trace.groups,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            device_peak_bytes=peak.reserved_bytes + self._card.context_bytes,
            context_bytes=self._card.context_bytes,
            breakdown=breakdown(peak.breakdown),
            interval=Interval(
                low_bytes=calibration.low_end(peak.low_bytes),
                likely_bytes=peak.reserved_bytes,
                high_bytes=calibration.high_end(max(most_bytes, peak.high_bytes)),
            ),
            evidence=Evidence.PREDICTED,
            device=Device(kind=GPU_KIND, name=self._card.name),
            calibration=calibration,
            convolves=trace.convolves,
            workspace_source=self._conditions.workspace_source if trace.convolves else "",
            workspace_bytes=workspace_span(peak),
            largest=largest(peak.live),
            architectures=self._card.architectures,
            trace_digest=trace.digest,
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
            phases=PhasePeaks(functools.partial(self._phases, on_card)),
            seen=SeenPart.of(trace, batch_size),
            lengths=lengths,
            growth=self._growth_on_card(batch_size),
        )

    def within(self, batch_size: int, limit_bytes: int) -> Estimate:
        """Estimate of one batch size where the allocator can reserve no more than `limit_bytes`.

        At the limit the allocator gives back what it has cached and asks again, before memory runs out.
        """
        on_card = self._at(batch_size)
        lengths, there = self.run_lengths(on_card, limit_bytes), on_card.likely_within(limit_bytes)
        if lengths is not None:
            there = lengths.within(limit_bytes, there)
        estimate = dataclasses.replace(self.unlimited(batch_size), lengths=lengths)
        calibration = self._widening.calibration(on_card)
        return limited(estimate, there, on_card.least_bytes, calibration, limit_bytes)

    def growth(self, batch_size: int, usable_bytes: int) -> tuple[LineGrowth, ...]:
        """Source lines that keep more memory each step, with the step at which they fill `usable_bytes`."""
        reserved_bytes = self._widening.counted(self._at(batch_size)).reserved_bytes
        return self._run_growth(batch_size).within(reserved_bytes, usable_bytes)

    def _growth_on_card(self, batch_size: int) -> tuple[LineGrowth, ...]:
        limit_bytes = self._card.limit_bytes
        if limit_bytes is None:
            return self._run_growth(batch_size).lines
        return self.growth(batch_size, limit_bytes)

    def _run_growth(self, batch_size: int) -> RunGrowth:
        on_card = self._at(batch_size)
        return RunGrowth.of(on_card.step.trace, batch_size, on_card.likely().sizes)

    def step_time(self, batch_size: int, budget_bytes: int | None = None) -> StepTime | None:
        """Predicted time of a step; None if step times are not predicted, see `why_untimed`.

        Args:
            budget_bytes: the budget that a convolution plan has to fit; without one, `mixed` takes for each
                layer the algorithm with the least memory.
        """
        if self.why_untimed is not None:
            return None
        return self._timer.time(
            self._curve,
            batch_size,
            self._knobs,
            self._card,
            conv_cost=lambda: self.conv_cost(batch_size, budget_bytes),
        )

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
        """Number of batches in the traced step, and how the batch size was determined."""
        return self._curve.trace.batch_count

    @property
    def why_untimed(self) -> str | None:
        """Reason why no step times are predicted on the card; None if they are predicted."""
        return why_untimed(self._card, self.parallel)

    def _phases(self, on_card: StepOnCard) -> tuple[PhasePeak, ...]:
        """Likely allocated peak of each phase, the highest over all traced steps."""
        peaks = phase_peaks(on_card.step.trace, self._block_bytes(on_card))
        return tuple(PhasePeak(name=name, num_bytes=num_bytes) for name, num_bytes in peaks.items())

    def _block_bytes(self, on_card: StepOnCard) -> Sequence[int]:
        """Bytes of each allocation's block when the step is replayed with likely sizes."""
        sizes, found, _ = on_card.likely()
        events = on_card.step.trace.events
        return given_blocks(events, sizes, settings=self._conditions.settings, found=found)

    def profile(self, batch_size: int) -> Profile:
        """Profile of a traced batch size: its events, sizes and likely peaks, from which views are made.

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
        time = self.step_time(batch_size)
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
            timing=None if time is None or self.parallel else self._timing(batch_size, time),
            time_note=self._note_of_operators(time),
        )

    def _note_of_operators(self, time: StepTime | None) -> str:
        if time is None:
            return self.why_untimed or _NO_WORK
        return _SEVERAL_STREAMS if self.parallel else time.note

    def _timing(self, batch_size: int, time: StepTime) -> Timing | None:
        """Predicted time of each operator of a step; None if the step cannot be timed."""
        found = self._timer.clocked(
            self._curve,
            batch_size,
            self._knobs,
            self._card,
            conv_cost=lambda: self.conv_cost(batch_size),
        )
        return None if found is None else timing_of(found, time)

    def outcome(self, batch_size: int, budget_bytes: int) -> TrialOutcome:
        """Outcome that a predict trial of a batch size under a budget would return, without its trace."""
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
            device=Device(kind=GPU_KIND, name=self._card.name),
            batch_size=batch_size,
            knobs=self._knobs,
            first_step=peaks,
            steady=peaks,
            conv_cost=self.conv_cost(batch_size, budget_bytes),
            environment={**trace.versions, "trace_sha256": trace.digest},
        )

    def conv_plan(self, batch_size: int, budget_bytes: int) -> ConvPlan | None:
        """Cheapest convolution plan with which a batch size fits the budget; None if no plan fits."""
        on_card = self._at(batch_size, self._level)
        if self.risk is Risk.LIKELY:
            return ConvPlanner(on_card, self._conv_costs, level=Level.LIKELY).within_budget(budget_bytes)
        planner = ConvPlanner(
            on_card,
            self._conv_costs,
            level=self._replayed_level(on_card),
            on_top=self._widening.of_other_runs(on_card).on_top,
        )
        return planner.within_budget(self._widening.calibration(on_card).within_high_end(budget_bytes))

    def conv_cost(self, batch_size: int, budget_bytes: int | None = None) -> float | None:
        """Ratio of all convolutions' predicted time to that under the backend's own choice.

        None on cards of whose convolutions no times are known, as AMD's.

        Args:
            budget_bytes: see `step_time`; infinite where no plan fits it.
        """
        if not self._vendor.knows_times:
            return None
        algorithm = conv.find(self._knobs.conv_algo)
        if isinstance(algorithm, ConvPolicy) and algorithm.enabled:
            return 1.0
        on_card = self._at(batch_size, self._level)
        if self._knobs.conv_algo != MIXED:
            calls = on_card.step.convolutions.values()
            return self._conv_costs.relative((call, self._knobs.conv_algo) for call in calls)
        if budget_bytes is None:
            return self._conv_costs.relative(_by_least_memory(on_card))
        plan = self.conv_plan(batch_size, budget_bytes)
        return math.inf if plan is None else plan.relative_cost

    @property
    def _conv_costs(self) -> ConvCosts:
        return ConvCosts(self._timer.costs(self._card, self._knobs))

    def convolution_options(
        self, batch_size: int, names: Sequence[str]
    ) -> dict[Convolution, list[Candidate]]:
        """Convolution algorithms among `names` that apply, for each distinct convolution."""
        return self._at(batch_size).convolution_options(names)

    def convolution_modules(self, batch_size: int) -> dict[Convolution, tuple[str, ...]]:
        """Paths of the modules that call each distinct convolution."""
        return self._at(batch_size).step.convolution_modules()

    @property
    def trace_identity(self) -> str:
        """Identity of the traced step, taken from the first batch size that every curve is traced at."""
        return self._curve.trace.identity

    def _spans_of(self, trace: Trace) -> str:
        """Phrase that names the sizes of a step known only as a range, such as workspaces."""
        workspaces = "workspaces of convolutions" if trace.convolves else ""
        if self._vendor.spanned_libraries:
            workspaces = f"workspaces of {self._vendor.spanned_libraries}"
        found = (*((workspaces,) if workspaces else ()), *spanning(trace))
        return " and ".join(found or ("workspaces of libraries",))

    @property
    def _vendor(self) -> Facts:
        return Architecture.of(self._card.architecture).vendor.facts


def _by_least_memory(on_card: StepOnCard) -> Iterator[tuple[Convolution, str]]:
    """Yields each convolution call with the applicable algorithm that takes the least memory."""
    modules = on_card.step.convolution_modules()
    for layer, choices in on_card.convolution_options().items():
        least = smallest(choices)
        for _ in modules[layer]:
            yield from ((call, least.algorithm) for call in least.spans)


def likely_bytes(curves: Mapping[Knobs, PredictedCurve], knobs: Knobs, batch_size: int) -> int | None:
    """Likely reserved peak of a configuration in bytes, to be compared with what is measured.

    Returns:
        None where there is no prediction, or it would cost a trace.
    """
    curve = curves.get(knobs)
    return None if curve is None or curve.needs_traces else curve(batch_size).interval.likely_bytes
