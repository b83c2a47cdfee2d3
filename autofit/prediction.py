"""Predictions: traces from a worker, kept by their digest, and the curves that they make."""

from __future__ import annotations

import copy
import dataclasses
import gzip
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autofit import paths
from autofit.budget import DEFAULT_ARCHITECTURE
from autofit.confidence import Calibration, Residuals, Risk, classify, shipped_residuals
from autofit.dispatch.base import Runner
from autofit.errors import DispatchError, InfrastructureError, UsageError, WorkloadFailedError
from autofit.plan_sources import plan_source
from autofit.report.estimate import Breakdown, Estimate, Interval, LargeTensor, WorkspaceSpan
from autofit.service.events import EventSink, Progress, ignore
from workers.predict.conditions import Conditions, Level
from workers.predict.curve import (
    BatchDependentEventsError,
    LiveAllocation,
    PeakCurve,
    PeakEstimate,
    TracedCurve,
)
from workers.predict.grid_plans import GridPlans
from workers.predict.host_blocks import HostBlocks
from workers.predict.plans import PlanSource
from workers.protocol import (
    HOST_ARCHITECTURE,
    Device,
    Evidence,
    Knobs,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from workers.trace import Category, Trace

# Small sizes trace fast; 1 and 2 are avoided because shapes of 1 take branches of their own.
TRACED_BATCH_SIZES = (4, 6, 10)
# Kinds of failure that say nothing against the workload: it has to be measured.
UNPREDICTABLE = ("data-dependent", "unsupported", "dispatch", "infrastructure")
_LEVELS = {Risk.SAFE: Level.HIGH, Risk.LIKELY: Level.LIKELY, Risk.WORST: Level.WORST}
_NUM_LARGEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The card that a prediction is for.

    Attributes:
        name: of the catalogue, or what stands for it where only the memory is known.
    """

    name: str
    architecture: str
    context_bytes: int


PlanSources = Callable[[str], PlanSource]  # by architecture


class Predictor:
    """Asks for traces of one workload and makes peak curves of them.

    Knob settings that differ in the convolution policy alone share their traces: the policy
    decides workspaces, and those are added when a trace is replayed.

    Args:
        workload: what is traced.
        run: runs a predict trial.
        mode: `train`, `infer` or None for the workload's own.
        emit: is told of each trace before it is made.
        residuals: how far predictions may be off; those of this version unless given.
        plans: who knows cuDNN's plans on a card of an architecture.
        for_host: traces are of the CPU, for `host_blocks`.
        num_threads: of the trials there.
    """

    def __init__(
        self,
        workload: WorkloadRef,
        run: Runner,
        *,
        mode: str | None = None,
        emit: EventSink = ignore,
        residuals: Residuals | None = None,
        plans: PlanSources = plan_source,
        for_host: bool = False,
        num_threads: int | None = None,
    ) -> None:
        self._plans = plans
        self._architecture = HOST_ARCHITECTURE if for_host else DEFAULT_ARCHITECTURE
        self._num_threads = num_threads
        self._workload = workload
        self._run = run
        self._mode = mode
        self._emit = emit
        self._residuals = residuals or shipped_residuals()
        self._traces: dict[tuple[Knobs, int], Trace] = {}
        self._curves: dict[Knobs, PeakCurve | TracedCurve] = {}

    def curve(self, knobs: Knobs, card: Card, *, risk: Risk = Risk.SAFE) -> PredictedCurve:
        """The curve of a knob setting on a card; the first of its kind costs three traces.

        Args:
            risk: the level that the curve's peaks, verdicts and outcomes are of.

        Raises:
            WorkloadFailedError: the workload cannot be traced.
        """
        traced = _traced_knobs(knobs)
        if traced not in self._curves:
            self._curves[traced] = self._trace_curve(traced)
        return self._predicted(knobs, card, self._curves[traced], risk, self._plans_on_a_grid)

    def host_blocks(self, knobs: Knobs) -> HostBlocks | None:
        """The blocks of a step on the CPU; None where every batch size would cost a trace.

        Raises:
            WorkloadFailedError: the workload cannot be traced.
        """
        curve = self._trace_curve(_traced_knobs(knobs))
        return None if isinstance(curve, TracedCurve) else HostBlocks(curve)

    def confirm(self, knobs: Knobs, batch_size: int) -> bool:
        """Whether a trace at a size is what the curve says; else the curve gives way to traces.

        Returns:
            False if the curves handed out for this knob setting before are no longer to be used.
        """
        traced = _traced_knobs(knobs)
        curve = self._curves[traced]
        if isinstance(curve, TracedCurve) or curve.agrees_with(self.trace(knobs, batch_size)):
            return True
        self._curves[traced] = self._traced_curve(traced)
        return False

    def estimate(self, knobs: Knobs, card: Card, batch_size: int) -> Estimate:
        """The estimate of one batch size from one trace, at that size."""
        return self.curve_at(knobs, card, batch_size)(batch_size)

    def curve_at(self, knobs: Knobs, card: Card, batch_size: int) -> PredictedCurve:
        """The curve that knows this batch size alone, from one trace.

        Raises:
            UsageError: there is no such batch size or mode.
            WorkloadFailedError: the workload cannot be traced.
        """
        curve = PeakCurve([self.trace(knobs, batch_size)])
        return self._predicted(knobs, card, curve, Risk.SAFE, self._plans)

    def trace(self, knobs: Knobs, batch_size: int) -> Trace:
        """The trace at a batch size, from a worker and into the state directory.

        Raises:
            UsageError: there is no such batch size or mode.
            WorkloadFailedError: the workload cannot be traced.
        """
        key = (_traced_knobs(knobs), batch_size)
        if key not in self._traces:
            try:
                spec = TrialSpec(
                    workload=self._workload,
                    batch_size=batch_size,
                    probe=Probe.PREDICT,
                    knobs=key[0],
                    mode=self._mode,
                    architecture=self._architecture,
                    num_threads=self._num_threads,
                )
            except ValueError as error:
                raise UsageError(str(error)) from error
            self._emit(Progress(stage=f"tracing batch {batch_size}"))
            outcome = self._run(spec)
            raise_if_failed(outcome)
            assert outcome.trace_json is not None
            self._traces[key] = trace = Trace.from_json(outcome.trace_json)
            _keep(trace)
        return self._traces[key]

    def _predicted(
        self,
        knobs: Knobs,
        card: Card,
        curve: PeakCurve | TracedCurve,
        risk: Risk,
        plans: PlanSources,
    ) -> PredictedCurve:
        name = self._workload.name
        return PredictedCurve(name, knobs, card, curve, residuals=self._residuals, plans=plans, risk=risk)

    def _plans_on_a_grid(self, architecture: str) -> PlanSource:
        """Plans for many batch sizes, of which cuDNN is not asked each."""
        return GridPlans(self._plans(architecture))

    def _trace_curve(self, knobs: Knobs) -> PeakCurve | TracedCurve:
        traces = [self.trace(knobs, batch_size) for batch_size in TRACED_BATCH_SIZES]
        try:
            return PeakCurve(traces)
        except BatchDependentEventsError:
            return self._traced_curve(knobs)

    def _traced_curve(self, knobs: Knobs) -> TracedCurve:
        return TracedCurve(lambda batch_size: self.trace(knobs, batch_size))


class PredictedCurve:
    """Predicted peaks of one knob setting on one card; call it with a batch size.

    After the traces each size costs milliseconds, unless `needs_traces`. An estimate has the whole
    interval; peaks, verdicts and outcomes are those of one level of it.

    Attributes:
        risk: that level.
    """

    def __init__(
        self,
        workload: str,
        knobs: Knobs,
        card: Card,
        curve: PeakCurve | TracedCurve,
        *,
        residuals: Residuals,
        plans: PlanSources,
        risk: Risk = Risk.SAFE,
    ) -> None:
        self.risk = risk
        self._plans = plans
        self._workload = workload
        self._knobs = knobs
        self._card = card
        self._curve = curve
        self._residuals = residuals
        self._conditions = Conditions(
            conv_algo=knobs.conv_algo,
            architecture=card.architecture,
            plans=(plans(card.architecture),),
            allow_tf32=knobs.tf32_in_convolutions,
        )
        # By the trace's batch size: a digest takes longer than a replay, a calibration as long.
        self._digests: dict[int, str] = {}
        self._calibrations: dict[int, Calibration] = {}

    @property
    def needs_traces(self) -> bool:
        """Whether the step allocates differently at every size, so that each costs a trace."""
        return isinstance(self._curve, TracedCurve)

    def __call__(self, batch_size: int) -> Estimate:
        """The estimate at a batch size; `UsageError` for one below 1."""
        curve = self._at(batch_size)
        peak = curve.estimate(batch_size, self._conditions)
        calibration = self._calibration(curve)
        return Estimate(
            workload=self._workload,
            batch_size=batch_size,
            knobs=self._knobs,
            mode=curve.trace.mode,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            device_peak_bytes=peak.reserved_bytes + self._card.context_bytes,
            context_bytes=self._card.context_bytes,
            breakdown=_breakdown(peak.breakdown),
            interval=Interval(
                low_bytes=calibration.low_end(peak.low_bytes),
                likely_bytes=peak.reserved_bytes,
                high_bytes=calibration.high_end(peak.high_bytes),
            ),
            evidence=Evidence.PREDICTED,
            device=Device(kind="cuda", name=self._card.name),
            calibration=calibration,
            workspace_source=self._conditions.workspace_source,
            workspace_bytes=_workspace_span(peak),
            largest=_largest(peak.live),
            trace_digest=self._digest(curve.trace),
        )

    def on(self, card: Card) -> PredictedCurve:
        """The same step on another card."""
        return PredictedCurve(
            self._workload,
            self._knobs,
            card,
            self._curve,
            residuals=self._residuals,
            plans=self._plans,
            risk=self.risk,
        )

    def at_risk(self, risk: Risk) -> PredictedCurve:
        """The same curve, asked for another level."""
        other = copy.copy(self)
        other.risk = risk
        return other

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        """The peak at the curve's risk; see `autofit.search.boundary.Curve`."""
        curve = self._at(batch_size)
        if stop_above_bytes is not None:
            stop_above_bytes = self._before_widening(curve, stop_above_bytes)
        return self._widened(
            curve,
            curve.reserved_bytes(
                batch_size, self._conditions, _LEVELS[self.risk], stop_above_bytes=stop_above_bytes
            ),
        )

    def lower_bound_bytes(self, batch_size: int) -> int:
        """What the peak at the curve's risk cannot be below: live bytes, without any workspace."""
        curve = self._at(batch_size)
        return self._widened(curve, curve.lower_bound_bytes(batch_size))

    def live_bytes(self, batch_size: int) -> int:
        """Live bytes at their peak, without any workspace."""
        return self._at(batch_size).lower_bound_bytes(batch_size)

    def outcome(self, batch_size: int, budget_bytes: int) -> TrialOutcome:
        """What a predict trial of this size under this budget would return, without its trace."""
        curve = self._at(batch_size)
        reserved_bytes = self.peak_reserved_bytes(batch_size)
        peaks = Peaks(
            allocated_bytes=curve.replay(batch_size, self._conditions).peak_allocated_bytes,
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
            environment={**curve.trace.versions, "trace_sha256": self._digest(curve.trace)},
        )

    def verdict(self, batch_size: int, budget_bytes: int) -> Verdict:
        """Whether the peak at the curve's risk is within the budget, or it would run thrashing."""
        curve = self._at(batch_size)
        within_bytes = self._before_widening(curve, budget_bytes)
        return curve.verdict(batch_size, self._conditions, within_bytes, _LEVELS[self.risk])

    def cannot_run(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether even the low end fails under the budget, with all that the allocator can release."""
        curve = self._at(batch_size)
        limit_bytes = self._calibration(curve).within_low_end(budget_bytes)
        return not any(
            curve.runs_within(batch_size, self._conditions, limit_bytes, level)
            for level in (Level.LOW, Level.LIKELY, Level.HIGH)
        )

    def runs_with_smallest_plans(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether it runs where everything but the workspaces is as large as the high end has it.

        Near the limit cuDNN takes the plans that need least, once the allocator has released its cache.
        """
        curve = self._at(batch_size)
        limit_bytes = self._calibration(curve).within_high_end(budget_bytes)
        return curve.runs_within(batch_size, self._conditions, limit_bytes, Level.LOW)

    @property
    def trace_digest(self) -> str:
        """Names the trace at the first of the sizes that every curve is traced at."""
        return self._digest(self._at(TRACED_BATCH_SIZES[0]).trace)

    def _at(self, batch_size: int) -> PeakCurve:
        if batch_size < 1:
            raise UsageError(f"a batch size is a whole number of 1 or more; got {batch_size}")
        return self._curve.at(batch_size)

    def _widened(self, curve: PeakCurve, num_bytes: int) -> int:
        """A peak with the residuals that the curve's risk allows for."""
        return num_bytes if self.risk is Risk.LIKELY else self._calibration(curve).high_end(num_bytes)

    def _before_widening(self, curve: PeakCurve, limit_bytes: int) -> int:
        """The largest peak that is within a limit once it is widened."""
        if self.risk is Risk.LIKELY:
            return limit_bytes
        return self._calibration(curve).within_high_end(limit_bytes)

    def _calibration(self, curve: PeakCurve) -> Calibration:
        size = curve.trace.batch_size
        if size not in self._calibrations:
            model_class = classify(curve.trace)
            self._calibrations[size] = self._residuals.of(model_class, self._card.architecture)
        return self._calibrations[size]

    def _digest(self, trace: Trace) -> str:
        if trace.batch_size not in self._digests:
            self._digests[trace.batch_size] = trace.digest
        return self._digests[trace.batch_size]


def raise_if_failed(outcome: TrialOutcome) -> None:
    """Turns an outcome that says nothing about memory into the error that ends the command.

    Raises:
        WorkloadFailedError: the workload failed (FAILED) or did not do the work (INVALID).
        DispatchError: the worker died (LOST) or hung (TIMEOUT).
        InfrastructureError: the machine lacks what the trial needs, or the worker is another version.
    """
    if outcome.verdict.is_about_memory:
        return
    error = outcome.error
    message = error.message if error is not None else f"the trial ended {outcome.verdict}"
    if outcome.verdict in (Verdict.LOST, Verdict.TIMEOUT):
        raise DispatchError(f"batch {outcome.batch_size}: {message}")
    if error is not None and error.kind in ("environment", "protocol"):
        raise InfrastructureError(message)
    kind = "workload" if error is None or error.kind == "user" else error.kind
    raise WorkloadFailedError(message, kind=kind, traceback="" if error is None else error.traceback)


def _traced_knobs(knobs: Knobs) -> Knobs:
    return dataclasses.replace(knobs, conv_algo="cudnn")


def _keep(trace: Trace) -> None:
    path = paths.traces_dir() / f"{trace.digest}.json.gz"
    if not path.exists():
        paths.write_atomically(path, gzip.compress(trace.to_json().encode(), compresslevel=1, mtime=0))


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
