"""Predictions: traces from a worker, kept by their digest, and the curves that they make."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Iterable
from dataclasses import dataclass

from autofit import paths
from autofit.dispatch.base import Runner
from autofit.errors import DispatchError, InfrastructureError, UsageError, WorkloadFailedError
from autofit.report.estimate import Breakdown, Estimate, Interval, LargeTensor
from autofit.search.boundary import CachedCurve, Curve
from autofit.service.events import EventSink, Progress, ignore
from workers.predict.curve import (
    BatchDependentEventsError,
    Conditions,
    LiveAllocation,
    PeakCurve,
    TracedCurve,
)
from workers.protocol import (
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
_NUM_LARGEST = 8
# A process that has imported PyTorch and run a convolution; 250 to 350 MiB were seen.
_HOST_PROCESS_BYTES = 300 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The card that a prediction is for.

    Attributes:
        name: of the catalogue, or what stands for it where only the memory is known.
    """

    name: str
    architecture: str
    context_bytes: int


class Predictor:
    """Asks for traces of one workload and makes peak curves of them.

    Knob settings that differ in the convolution policy alone share their traces: the policy
    decides workspaces, and those are added when a trace is replayed.

    Args:
        workload: what is traced.
        run: runs a predict trial.
        mode: `train`, `infer` or None for the workload's own.
        emit: is told of each trace before it is made.
    """

    def __init__(
        self,
        workload: WorkloadRef,
        run: Runner,
        *,
        mode: str | None = None,
        emit: EventSink = ignore,
    ) -> None:
        self._workload = workload
        self._run = run
        self._mode = mode
        self._emit = emit
        self._traces: dict[tuple[Knobs, int], Trace] = {}
        self._curves: dict[Knobs, PeakCurve | TracedCurve] = {}

    def curve(self, knobs: Knobs, card: Card) -> PredictedCurve:
        """The curve of a knob setting on a card; the first of its kind costs three traces.

        Raises:
            WorkloadFailedError: the workload cannot be traced.
        """
        traced = _traced_knobs(knobs)
        if traced not in self._curves:
            self._curves[traced] = self._trace_curve(traced)
        return PredictedCurve(self._workload.name, knobs, card, self._curves[traced])

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
        curve = PeakCurve([self.trace(knobs, batch_size)])
        return PredictedCurve(self._workload.name, knobs, card, curve)(batch_size)

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

    After the traces each size costs milliseconds, unless `needs_traces`.
    """

    def __init__(self, workload: str, knobs: Knobs, card: Card, curve: PeakCurve | TracedCurve) -> None:
        self._workload = workload
        self._knobs = knobs
        self._card = card
        self._curve = curve
        self._conditions = Conditions(
            conv_algo=knobs.conv_algo,
            architecture=card.architecture,
            allow_tf32=knobs.tf32_in_convolutions,
        )
        self._digests: dict[int, str] = {}  # by the trace's batch size; a digest takes longer than a replay

    @property
    def needs_traces(self) -> bool:
        """Whether the step allocates differently at every size, so that each costs a trace."""
        return isinstance(self._curve, TracedCurve)

    def __call__(self, batch_size: int) -> Estimate:
        """The estimate at a batch size; `UsageError` for one below 1."""
        curve = self._at(batch_size)
        peak = curve.estimate(batch_size, self._conditions)
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
                low_bytes=peak.low_bytes, likely_bytes=peak.reserved_bytes, high_bytes=peak.high_bytes
            ),
            evidence=Evidence.PREDICTED,
            device=Device(kind="cuda", name=self._card.name),
            largest=_largest(peak.live),
            trace_digest=self._digest(curve.trace),
        )

    def on(self, card: Card) -> PredictedCurve:
        """The same step on another card."""
        return PredictedCurve(self._workload, self._knobs, card, self._curve)

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        """The high end of the prediction; see `autofit.search.boundary.Curve`."""
        return self._at(batch_size).high_bytes(
            batch_size, self._conditions, stop_above_bytes=stop_above_bytes
        )

    def lower_bound_bytes(self, batch_size: int) -> int:
        """Live bytes at their peak, without any workspace."""
        return self._at(batch_size).lower_bound_bytes(batch_size)

    def outcome(self, batch_size: int, budget_bytes: int) -> TrialOutcome:
        """What a predict trial of this size under this budget would return, without its trace."""
        curve = self._at(batch_size)
        estimate = curve.estimate(batch_size, self._conditions)
        peaks = Peaks(
            allocated_bytes=estimate.allocated_bytes,
            reserved_bytes=estimate.high_bytes,
            device_bytes=estimate.high_bytes + self._card.context_bytes,
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
        """Whether the high end of the prediction is within the budget, or it would run thrashing."""
        return self._at(batch_size).verdict(batch_size, self._conditions, budget_bytes)

    @property
    def trace_digest(self) -> str:
        """Names the trace at the first of the sizes that every curve is traced at."""
        return self._digest(self._at(TRACED_BATCH_SIZES[0]).trace)

    def _at(self, batch_size: int) -> PeakCurve:
        if batch_size < 1:
            raise UsageError(f"a batch size is a whole number of 1 or more; got {batch_size}")
        return self._curve.at(batch_size)

    def _digest(self, trace: Trace) -> str:
        if trace.batch_size not in self._digests:
            self._digests[trace.batch_size] = trace.digest
        return self._digests[trace.batch_size]


class CurveSet:
    """The curves of a search, filled when its predictions are made; empty where there are none.

    Args:
        on_host: the trials measure the CPU, where curves only say where to begin.
    """

    def __init__(self, *, on_host: bool = False) -> None:
        self._on_host = on_host
        self._curves: dict[Knobs, PredictedCurve] = {}
        self._priors: dict[Knobs, CachedCurve] = {}

    def add(self, knobs: Knobs, curve: PredictedCurve) -> None:
        self._curves[knobs] = curve

    def of(self, knobs: Knobs) -> PredictedCurve:
        return self._curves[knobs]

    @property
    def by_knobs(self) -> dict[Knobs, PredictedCurve]:
        """The curves that predict what the trials measure."""
        return {} if self._on_host else self._curves

    @property
    def needs_traces(self) -> bool:
        """Whether each size of some setting costs a trace, which leaves the search without a prior."""
        return any(curve.needs_traces for curve in self._curves.values())

    @property
    def trace_digest(self) -> str | None:
        """Names the step that the curves predict; None where there are none."""
        return next((curve.trace_digest for curve in self._curves.values()), None)

    def prior(self, knobs: Knobs) -> Curve | None:
        """Where the search of a setting begins; None for no idea."""
        curve = self._curves.get(knobs)
        if curve is None or curve.needs_traces:
            return None  # a scan over all sizes would cost a trace each
        if knobs not in self._priors:
            self._priors[knobs] = CachedCurve(_HostCurve(curve) if self._on_host else curve)
        return self._priors[knobs]


class _HostCurve:
    """A rough idea of the resident set: the live bytes that a GPU would hold, and the process.

    Nothing is claimed from it: measured trials correct it from the first on.
    """

    def __init__(self, curve: PredictedCurve) -> None:
        self._curve = curve

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:  # noqa: ARG002
        return self.lower_bound_bytes(batch_size)

    def lower_bound_bytes(self, batch_size: int) -> int:
        return self._curve.lower_bound_bytes(batch_size) + _HOST_PROCESS_BYTES


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
