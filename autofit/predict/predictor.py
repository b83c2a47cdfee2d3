"""Predictions: traces from a worker, kept by their digest, and the curves that they make."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import workers
from autofit import paths
from autofit.dispatch.base import Runner
from autofit.errors import (
    AutofitError,
    DispatchError,
    InapplicableError,
    InfrastructureError,
    MissingLibraryError,
    UnknownModelError,
    UsageError,
    WorkloadFailedError,
)
from autofit.events import EventSink, Progress, ignore
from autofit.explain.profile import Profile
from autofit.hardware.budget import DEFAULT_ARCHITECTURE
from autofit.hardware.card import Card
from autofit.predict.ahead import TracesAhead
from autofit.predict.confidence import Residuals, shipped_residuals
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate
from autofit.predict.observations import Observations, PeakKind, Residual
from autofit.predict.plan_sources import CardPlans, PlanSources, offline_plan_source, plan_source
from autofit.predict.self_test import checked
from autofit.predict.surface import PredictedSurface
from autofit.predict.surfaces import Surfaces
from autofit.predict.unpredictable import require_predictable, why_unpredictable
from autofit.settings.goals import Risk
from workers import conv
from workers.conv import Rewrite
from workers.knobs import Knobs
from workers.predict.curve.host_blocks import HostBlocks
from workers.predict.curve.peak_curve import (
    TRACED_BATCH_SIZES,
    AccumulatedCurve,
    PeakCurve,
    SingleSampleCurve,
    StepCurve,
    TracedCurve,
    traced_knobs,
)
from workers.predict.curve.step_lines import BatchDependentEventsError
from workers.protocol import HOST_ARCHITECTURE, Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from workers.setup import ALONE, Setup
from workers.trace import Trace

# Kinds of failure that say nothing against the workload: it has to be measured.
UNPREDICTABLE = ("data-dependent", "unsupported", "dispatch", "infrastructure")

_SAME_PEAK = 0.002  # of it, by which two count as one
_SAME_WORKLOAD = 0.02  # by which a prediction may have moved since a peak was observed


class Predictor:
    """Asks for traces of one workload and makes peak curves of them.

    Knob settings that differ in the convolution policy alone share their traces: the policy
    decides workspaces, and those are added when a trace is replayed.

    Args:
        workload: what is traced.
        run: runs a predict trial.
        setup: mode, kind of batches and ranks.
        emit: is told of each trace before it is made.
        residuals: how far predictions may be off; those of this version unless given.
        observations: observed peaks of the workload, which sharpen its intervals.
        plans: who knows cuDNN's plans on a card of an architecture.
        plans_elsewhere: the same for the other architectures that an unnamed card may be of.
        for_host: traces are of the CPU, for `host_blocks`.
        num_threads: of the trials there.
        with_tensors: traces also list the tensors and layers of a forward pass.
        with_calls: traces also have the operators that ran, and the stacks of allocations.

    Attributes:
        sources: the user's files that the workload used, path → digest; None as long as no worker
            has said so.
    """

    def __init__(
        self,
        workload: WorkloadRef,
        run: Runner,
        *,
        setup: Setup = ALONE,
        emit: EventSink = ignore,
        residuals: Residuals | None = None,
        observations: Observations | None = None,
        plans: PlanSources = plan_source,
        plans_elsewhere: PlanSources = offline_plan_source,
        for_host: bool = False,
        num_threads: int | None = None,
        with_tensors: bool = False,
        with_calls: bool = False,
    ) -> None:
        self._plans = CardPlans(plans, plans_elsewhere)
        self._architecture = HOST_ARCHITECTURE if for_host else DEFAULT_ARCHITECTURE
        self._num_threads = num_threads
        self._with_tensors = with_tensors
        self._with_calls = with_calls
        self._workload = workload
        self._run = run
        self._setup = setup
        self._emit = emit
        self._residuals = residuals or shipped_residuals()
        self.observations = observations or Observations()
        self._traces: dict[tuple[Knobs, int], Trace] = {}
        self._untraceable: dict[tuple[Knobs, int], WorkloadFailedError] = {}
        self._curves: dict[Knobs, PeakCurve | SingleSampleCurve | TracedCurve] = {}
        self._surfaces = Surfaces(self.trace, self.expect)
        self.sources: dict[str, str] | None = None
        self._largest: Predictor | None = None
        self._ahead: TracesAhead | None = None

    @property
    def follows_script(self) -> bool:
        """Whether the workload is a training script, which may end itself."""
        return self._workload.script is not None

    def curve(self, knobs: Knobs, card: Card, *, risk: Risk = Risk.SAFE) -> PredictedCurve:
        """The curve of a knob setting on a card; the first of its kind costs three traces.

        Args:
            risk: the level that the curve's peaks, verdicts and outcomes are of.

        Raises:
            WorkloadFailedError: the workload cannot be traced, or not be predicted on that card.
        """
        return self._on_card(knobs, card, risk, lambda predictor: predictor.step_curve(knobs))

    def surface(self, knobs: Knobs, card: Card, *, risk: Risk = Risk.SAFE) -> PredictedSurface:
        """The surface of a knob setting on a card, of all sizes of a sample; traces are made when needed.

        Raises:
            UsageError: batches are accumulated to a global one.
        """
        if knobs.global_batch is not None:
            raise UsageError("--global-batch depends on the batch size: give --grad-accumulation instead")

        def curve_at(size: int, is_single: bool) -> PredictedCurve:
            sized = dataclasses.replace(knobs, seq_len=size)
            return self._on_card(
                sized, card, risk, lambda predictor: predictor.step_at_size(sized, is_single)
            )

        return PredictedSurface(curve_at)

    def size_multiple(self, knobs: Knobs) -> int:
        """How far sizes of a sample lie apart that differ in nothing that is rounded."""
        return self._surfaces.sample(self._traced(knobs, 1), 1).multiple

    def step_at_size(self, knobs: Knobs, is_single: bool) -> StepCurve:
        """The curve at the size of a sample that knobs say, of batches of one sample or of several."""
        traced = self._traced(knobs, 1)
        if not is_single and traced in self._curves:
            return self._curves[traced]
        batch_sizes = (1,) if is_single else TRACED_BATCH_SIZES
        if not self._setup.allows_long and self._surfaces.is_too_long(traced, batch_sizes[0]):
            self.trace(traced, batch_sizes[0])  # which is refused
        surface = self._surfaces.around(traced, batch_sizes)
        if surface is not None:
            assert traced.seq_len is not None
            return surface.at(traced.seq_len)
        return PeakCurve.through([self.trace(traced, 1)]) if is_single else self._known_curve(traced)

    def _on_card(
        self, knobs: Knobs, card: Card, risk: Risk, step_of: Callable[[Predictor], StepCurve]
    ) -> PredictedCurve:
        curve = step_of(self)
        trace = curve.any_trace
        at_most = step_of(self._at_most()) if _rests_on_shares(trace) else None
        knobs = _with_own_conv_algo(knobs, trace)
        require_applicable(knobs, trace)
        require_predictable(knobs, trace, card)
        return self._predicted(knobs, card, curve, risk, on_grid=True, at_most=at_most)

    def host_blocks(self, knobs: Knobs) -> HostBlocks:
        """The blocks of a step on the CPU.

        Raises:
            WorkloadFailedError: the workload cannot be traced.
        """
        return HostBlocks(self._trace_curve(self._traced(knobs, 1)))

    def confirm(self, knobs: Knobs, card: Card, batch_size: int) -> bool:
        """Whether a trace at a size is what the curve says, or has its peak; if not, traces replace it.

        At one sample a step may differ from all others: where the curve is right of two, it keeps them.

        Returns:
            False if the curves handed out for this knob setting before are no longer to be used.
        """
        traced = self._traced(knobs, batch_size)
        curve, trace = self._curves[traced], self.trace(knobs, batch_size)
        if isinstance(curve, SingleSampleCurve):
            curve = curve.piece(batch_size)
        if isinstance(curve, TracedCurve) or curve.agrees_with(trace):
            return True
        if trace.batch_size == batch_size and self._has_peak_of_curve(trace, knobs, card):
            return True  # what comes between the steps differs, as batches of an evaluation do
        is_single = trace.batch_size == batch_size == 1 and curve.agrees_with(self.trace(knobs, 2))
        self._curves[traced] = (
            SingleSampleCurve(PeakCurve.through([trace]), curve) if is_single else self._traced_curve(traced)
        )
        return False

    def _has_peak_of_curve(self, trace: Trace, knobs: Knobs, card: Card) -> bool:
        own = _with_own_conv_algo(knobs, trace)
        found = self._predicted(own, card, PeakCurve.through([trace]), Risk.SAFE, on_grid=True)(
            trace.batch_size
        )
        expected = self.curve(knobs, card)(trace.batch_size)
        return all(
            math.isclose(getattr(found, peak), getattr(expected, peak), rel_tol=_SAME_PEAK)
            for peak in ("peak_allocated_bytes", "peak_reserved_bytes")
        )

    def estimate(self, knobs: Knobs, card: Card, batch_size: int | None) -> Estimate:
        """The estimate of one batch size from one trace, at that size.

        Args:
            batch_size: None for the one that a script has of itself. Of a data set that is smaller than a
                batch, the estimate is of the whole of it.
        """
        if batch_size is None:
            batch_size = self.own_batch_size(knobs)
        curve = self.curve_at(knobs, card, batch_size)
        return curve(self.trace(knobs, batch_size).batch_size)

    def profile(self, knobs: Knobs, card: Card, batch_size: int) -> Profile:
        """Where the memory of one batch size goes; raises what `curve_at` does."""
        curve = self.curve_at(knobs, card, batch_size)
        return curve.profile(self.trace(knobs, batch_size).batch_size)

    def curve_at(self, knobs: Knobs, card: Card, batch_size: int) -> PredictedCurve:
        """The curve that knows this batch size alone, from one trace.

        Raises:
            UsageError: there is no such batch size or mode.
            WorkloadFailedError: the workload cannot be traced, or not be predicted on that card.
        """
        trace = self.trace(knobs, batch_size)
        batch_size = trace.batch_size  # smaller where the whole data set is
        knobs = _with_own_conv_algo(knobs, trace)
        require_applicable(knobs, trace)
        require_predictable(knobs, trace, card)
        at_most = (
            PeakCurve.through([self._at_most().trace(knobs, batch_size)]) if _rests_on_shares(trace) else None
        )
        curve = self._predicted(
            knobs, card, PeakCurve.through([trace]), Risk.SAFE, on_grid=False, at_most=at_most
        )
        if (why := curve.why_refused(batch_size)) is not None:
            raise WorkloadFailedError(why)
        return curve

    def curve_of(self, trace: Trace, knobs: Knobs, card: Card) -> PredictedCurve:
        """The curve of a trace, or of a part of it, which knows its batch size alone.

        Raises:
            UnpredictableCardError: nothing is predicted of it on that card.
        """
        require_predictable(knobs, trace, card)
        curve = PeakCurve.through([trace])
        return self._predicted(knobs, card, curve, Risk.SAFE, on_grid=False, sharpens=False)

    def trace(self, knobs: Knobs, batch_size: int) -> Trace:
        """The trace at a batch size, from a worker and, where that can be written, into the state directory.

        Raises:
            UsageError: there is no such batch size or mode.
            WorkloadFailedError: the workload cannot be traced.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {batch_size}")
        script = self._workload.script
        if script is not None:
            why = script.why_not(knobs, self._setup)
            if why is not None:
                raise UsageError(why)
        key = (self._traced(knobs, batch_size), batch_size)
        if key in self._untraceable:
            raise self._untraceable[key]
        if key not in self._traces:
            spec = self._spec(*key)
            is_own = script is not None and script.keeps_batch
            stage = "tracing the script's own batch" if is_own else f"tracing batch {batch_size}"
            self._emit(Progress(stage=stage))
            outcome = (self._ahead and self._ahead.take(key)) or self._run(spec)
            if outcome.verdict not in (Verdict.LOST, Verdict.TIMEOUT):
                self.sources = {**(self.sources or {}), **outcome.sources}
            try:
                raise_if_failed(outcome)
            except WorkloadFailedError as error:
                self._untraceable[key] = error
                raise
            text = outcome.trace_json or ""
            try:
                self._traces[key] = Trace.from_json(text)
            except ValueError as error:
                raise DispatchError(
                    f"the trace of batch {batch_size} cannot be read ({error}): install the same autofit "
                    "wherever trials run"
                ) from error
            _keep(text)
        _require_its_conv_algo(knobs, self._traces[key])
        return self._traces[key]

    def _spec(self, traced: Knobs, batch_size: int) -> TrialSpec:
        """The trial that makes a trace; raises `UsageError` where there is no such trial."""
        try:
            return TrialSpec(
                workload=self._workload,
                batch_size=batch_size,
                probe=Probe.PREDICT,
                knobs=traced,
                setup=self._setup,
                architecture=self._architecture,
                num_threads=self._num_threads,
                with_tensors=self._with_tensors,
                with_calls=self._with_calls,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error

    @contextmanager
    def tracing_ahead(self) -> Iterator[None]:
        """In the block, traces that are expected are made while others are being worked on."""
        with TracesAhead(self._run) as ahead:
            self._ahead = ahead
            try:
                yield
            finally:
                self._ahead = None

    def expect(self, knobs: Knobs, batch_sizes: Iterable[int]) -> None:
        """Says which traces will be asked for next; outside `tracing_ahead`, and of a script, in vain."""
        if self._ahead is None or self.follows_script or knobs.global_batch is not None:
            return
        for batch_size in batch_sizes:
            with suppress(UsageError):  # whoever asks for the trace is told
                key = self._traced(knobs, batch_size), batch_size
                if key not in self._traces:
                    self._ahead.ask(key, self._spec(*key))

    def expect_curves(self, settings: Sequence[Knobs]) -> None:
        """Says of which settings curves will be asked for; those of other sizes share traces."""
        traced = [self._traced(knobs, 1) for knobs in settings]
        self._surfaces.want(traced)
        for knobs in traced:
            if not self._surfaces.is_wanted(knobs):
                self.expect(knobs, TRACED_BATCH_SIZES)

    def prepare(self, knobs: Knobs, card: Card, batch_size: int) -> None:
        """Asks for the plans of a size that was traced, while others are: the tables are loaded then."""
        trace = self._traces.get((self._traced(knobs, batch_size), batch_size))
        if trace is not None and trace.convolves and why_unpredictable(knobs, trace, card) is None:
            curve = PeakCurve.through([trace])
            self._predicted(knobs, card, curve, Risk.SAFE, on_grid=True).peak_reserved_bytes(batch_size)

    @property
    def has_batch_kinds(self) -> bool:
        """Whether what was traced so far makes typical batches and others for the worst case."""
        return any(trace.batch_kind is not None for trace in self._traces.values())

    @property
    def convolves(self) -> bool | None:
        """Whether any of the steps traced so far has a convolution; None where there is no trace."""
        return any(trace.convolves for trace in self._traces.values()) if self._traces else None

    @property
    def num_samples(self) -> int | None:
        """How many samples the data set of a script has; None where it does not say."""
        said = [trace.versions.get("num_samples") for trace in self._traces.values()]
        return next((int(number) for number in said if number is not None), None)

    @property
    def own_conv_algo(self) -> str | None:
        """The convolutions that a script selects itself; None where it leaves them as they are."""
        said = {trace.versions.get("own_conv_algo") for trace in self._traces.values()}
        return next((algo for algo in said if algo not in (None, Knobs().conv_algo)), None)

    def own_batch_size(self, knobs: Knobs) -> int:
        """The batch size that a script has of itself, which one trace shows.

        Raises:
            UsageError: the workload is no script.
            WorkloadFailedError: it cannot be traced.
        """
        script = self._workload.script
        if script is None:
            raise UsageError("a model has no batch size of its own: give --batch-size")
        own = dataclasses.replace(self._workload, script=dataclasses.replace(script, keeps_batch=True))
        traces = Predictor(own, self._run, setup=self._setup, emit=self._emit, with_calls=self._with_calls)
        trace = traces.trace(knobs, 1)
        self.sources = traces.sources
        self._traces[self._traced(knobs, trace.batch_size), trace.batch_size] = trace
        return trace.batch_size

    def why_inapplicable(self, knobs: Knobs) -> str | None:
        """Why a setting's convolution algorithm works out nothing of the step; None where it does.

        Of what cannot be traced nothing is said: a trial will tell.
        """
        if not isinstance(conv.find(knobs.conv_algo), Rewrite):
            return None
        try:
            require_applicable(knobs, self.trace(knobs, TRACED_BATCH_SIZES[0]))
        except UsageError as error:
            return error.message
        except AutofitError:
            return None
        return None

    def _predicted(
        self,
        knobs: Knobs,
        card: Card,
        curve: StepCurve,
        risk: Risk,
        *,
        on_grid: bool,
        at_most: StepCurve | None = None,
        sharpens: bool = True,
    ) -> PredictedCurve:
        return PredictedCurve(
            self._workload.name,
            knobs,
            card,
            curve,
            residuals=self._residuals,
            plans=self._plans,
            on_grid=on_grid,
            risk=risk,
            at_most=at_most,
            observed=functools.partial(self._observed, on_grid=on_grid) if sharpens else None,
        )

    def _observed(self, curve: PredictedCurve, *, on_grid: bool) -> tuple[Residual, ...]:
        """How far observed peaks of a curve's setting on its card lie beyond what is predicted for them."""
        found = []
        trace = next(iter(self._traces.values()))
        seen = self.observations.of(
            curve.knobs, curve.card, self._setup, mode=trace.mode, convolves=trace.convolves
        )
        for one in seen:
            try:
                at = curve if on_grid else self.curve_at(curve.knobs, curve.card, one.batch_size)
                spans = at.spans(one.batch_size)
            except AutofitError:
                continue  # that size is predicted no more: nothing can be said of it
            if not math.isclose(spans.reserved_bytes, one.predicted_bytes, rel_tol=_SAME_WORKLOAD):
                continue
            is_allocated = one.kind is PeakKind.ALLOCATED
            ends = (
                (spans.allocated_low_bytes, spans.allocated_high_bytes)
                if is_allocated
                else (spans.low_bytes, spans.high_bytes)
            )
            found.append(Residual.of(one, *ends))
        return tuple(found)

    def _at_most(self) -> Predictor:
        """Predicts the same where masks select all that they may."""
        if self._largest is None:
            self._largest = Predictor(
                self._workload,
                self._run,
                setup=dataclasses.replace(self._setup, nonzero_share=1.0),
                emit=self._emit,
                with_tensors=self._with_tensors,
                with_calls=self._with_calls,
            )
        return self._largest

    def step_curve(self, knobs: Knobs) -> StepCurve:
        """The curve of a setting's traces, made when it is first asked for."""
        pieces = self._known_curve(self._traced(knobs, 1))
        if knobs.global_batch is None:
            return pieces
        whole = self._known_curve(self._traced(knobs, knobs.global_batch))
        if not (isinstance(pieces, PeakCurve) and isinstance(whole, PeakCurve)):
            return self._traced_curve(knobs)
        return AccumulatedCurve(pieces, whole, global_batch=knobs.global_batch)

    def _known_curve(self, traced: Knobs) -> PeakCurve | SingleSampleCurve | TracedCurve:
        if traced not in self._curves:
            self._curves[traced] = self._trace_curve(traced)
        return self._curves[traced]

    def _trace_curve(self, knobs: Knobs) -> PeakCurve | TracedCurve:
        if (curve := self._surfaces.curve(knobs)) is not None:
            return curve
        self.expect(knobs, TRACED_BATCH_SIZES)
        traces = [self.trace(knobs, batch_size) for batch_size in TRACED_BATCH_SIZES]
        try:
            return PeakCurve.through(traces)
        except BatchDependentEventsError:
            return self._traced_curve(knobs)

    def _traced(self, knobs: Knobs, batch_size: int) -> Knobs:
        """The setting whose traces do at a batch size; one sample is accumulated wherever any size is.

        Raises:
            UsageError: the batch size does not divide the global batch.
        """
        try:
            num_passes = knobs.num_passes(batch_size)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return traced_knobs(knobs, num_passes=num_passes, for_host=self._architecture == HOST_ARCHITECTURE)

    def _traced_curve(self, knobs: Knobs) -> TracedCurve:
        def trace_at(batch_size: int) -> Trace:
            trace = self.trace(knobs, batch_size)
            if trace.batch_size != batch_size:
                raise WorkloadFailedError(
                    f"batch {batch_size} is more than the {trace.batch_size} samples of the whole data set: "
                    f"ask for at most those (--max-batch {trace.batch_size})"
                )
            return trace

        return TracedCurve(trace_at)


def _rests_on_shares(trace: Trace) -> bool:
    """Whether sizes in it depend on what an unknown mask selects."""
    return any(each.largest not in (None, each.size) for each in trace.assumptions)


def require_applicable(knobs: Knobs, trace: Trace) -> None:
    """Raises `UsageError` where the convolution algorithm works out none of a step's convolutions."""
    rewrite = conv.find(knobs.conv_algo)
    if not isinstance(rewrite, Rewrite) or trace.knobs.conv_algo == knobs.conv_algo:
        return  # on the CPU the algorithm is in the trace, which could not be made without it
    calls = dict.fromkeys(a.convolution for a in trace.allocations if a.convolution is not None)
    reasons = [rewrite.leaves(call) for call in calls]
    if None not in reasons:
        raise UsageError(rewrite.applies_to_none(filter(None, reasons)))


def _with_own_conv_algo(knobs: Knobs, trace: Trace) -> Knobs:
    """The knobs with the convolutions that a script selects itself, where it does."""
    own = trace.versions.get("own_conv_algo", knobs.conv_algo)
    return knobs if own == Knobs().conv_algo else dataclasses.replace(knobs, conv_algo=own)


def _require_its_conv_algo(knobs: Knobs, trace: Trace) -> None:
    """Raises `UsageError` where a script chooses cuDNN's plans in another way than is asked for."""
    own, default = trace.versions.get("own_conv_algo"), Knobs().conv_algo
    if own is not None and own not in (default, knobs.conv_algo) and knobs.conv_algo != default:
        raise UsageError(
            f"{trace.workload} sets PyTorch flags for {own} convolutions: leave out --conv-algo "
            f"{knobs.conv_algo}, or remove them from the script"
        )


def raise_if_failed(outcome: TrialOutcome) -> None:
    """Turns an outcome that says nothing about memory into the error that ends the command.

    Raises:
        WorkloadFailedError: the workload failed (FAILED) or did not do the work (INVALID).
        DispatchError: the worker died (LOST) or hung (TIMEOUT).
        InfrastructureError: the machine lacks what the trial needs, or the worker is another version.
        InapplicableError: a knob that was asked for applies to nothing in the workload.
        MissingLibraryError: a knob's value is of a library that is not installed.
        UnknownModelError: the library that was named knows no such model.
    """
    if outcome.verdict.is_about_memory:
        return
    error = outcome.error
    message = error.message if error is not None else f"the trial ended {outcome.verdict}"
    if outcome.verdict in (Verdict.LOST, Verdict.TIMEOUT):
        raise DispatchError(f"batch {outcome.batch_size}: {message}")
    if error is not None and error.kind == "inapplicable":
        raise InapplicableError(message)
    if error is not None and error.kind == "unknown-model":
        raise UnknownModelError(message)
    if error is not None and error.kind == "missing-library":
        raise MissingLibraryError(message)
    if error is not None and error.kind in ("environment", "protocol"):
        raise InfrastructureError(message)
    kind = "workload" if error is None or error.kind == "user" else error.kind
    raise WorkloadFailedError(message, kind=kind, traceback="" if error is None else error.traceback)


def _keep(trace_json: str) -> None:
    """Keeps a trace by its digest, which is that of its text: a trace has but one."""
    text = trace_json.encode()
    paths.keep(
        paths.traces_dir,
        f"{hashlib.sha256(text).hexdigest()}.json.gz",
        lambda: gzip.compress(text, compresslevel=1, mtime=0),
    )


def local_predictor(
    workload: WorkloadRef,
    *,
    setup: Setup = ALONE,
    emit: EventSink = ignore,
    with_tensors: bool = False,
    with_calls: bool = False,
) -> Predictor:
    """A predictor that traces on this machine, once the PyTorch here is known to be understood."""
    return Predictor(
        workload,
        checked(workers.run),
        setup=setup,
        observations=Observations.load(workload),
        emit=emit,
        with_tensors=with_tensors,
        with_calls=with_calls,
    )
