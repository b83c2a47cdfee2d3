"""Predicts a workload's peaks on cards from the curves of its steps."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from autofit.dispatch.base import Runner
from autofit.errors import AutofitError, UsageError, WorkloadFailedError
from autofit.events import EventSink, ignore
from autofit.explain.profile import Profile
from autofit.hardware.card import Card
from autofit.predict.all_ranks import AllRanks
from autofit.predict.confidence import Residuals, shipped_residuals
from autofit.predict.convolutions.choice import require_applicable, with_own_settings
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate
from autofit.predict.intervals.observations import Observations, PeakKind, Residual
from autofit.predict.plan_sources import CardPlans, PlanSources, plan_sources_for
from autofit.predict.self_test import checked
from autofit.predict.sizes.surface import PredictedSurface
from autofit.predict.step_curves import StepCurves
from autofit.predict.times.measured_steps import MeasuredSteps
from autofit.predict.times.step_times import Timer
from autofit.predict.tracing.kept_traces import KeptTraces
from autofit.predict.tracing.traces import Traces
from autofit.predict.unpredictable import require_predictable, why_unpredictable
from autofit.settings.goals import Risk
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES, PeakCurve
from autofit_workers.replay.time.interval import TimeResiduals
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import Rewrite
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import ALONE, Setup
from autofit_workers.spec.trace import SampleSize, Trace
from autofit_workers.trials import door

_SAME_PEAK = 0.002  # share by which two peaks may differ and count as equal
_SAME_WORKLOAD = 0.02  # share by which a prediction may have changed since a peak was observed


class Predictor:
    """Predicts the memory and step times of one workload on cards, from traces of its steps.

    Args:
        workload: the workload to trace.
        run: runs a trial that makes a trace, in a process of its own.
        setup: how the workload is run: mode, kind of batches and ranks.
        emit: receives an event before each trace is made.
        residuals, time_residuals: past errors of predicted peaks and times against real runs; None for those
            shipped with autofit.
        observations: observed peaks of the workload, which correct its intervals.
        measured_steps: measured step times of the workload, which correct the predicted times.
        plans: returns, for an architecture, the source of cuDNN's choices of kernels for convolutions.
        plans_elsewhere: the same for the less likely architectures of a card that is not named.
        for_host: whether to trace for the CPU, for `host_steps`.
        num_threads: threads of the trials on the CPU.
        with_tensors: whether traces also list the tensors and layers of a forward pass.
        with_calls: whether traces also list the operators that ran, and the stacks of allocations.
        kept: storage of traces, whose runner is `run`; None to keep nothing.

    Attributes:
        traces: traces of the workload, each made when it is first asked for.
        observations: the observed peaks as given.
    """

    def __init__(
        self,
        workload: WorkloadRef,
        run: Runner,
        *,
        setup: Setup = ALONE,
        emit: EventSink = ignore,
        residuals: Residuals | None = None,
        time_residuals: TimeResiduals | None = None,
        observations: Observations | None = None,
        measured_steps: MeasuredSteps | None = None,
        plans: PlanSources | None = None,
        plans_elsewhere: PlanSources | None = None,
        for_host: bool = False,
        num_threads: int | None = None,
        with_tensors: bool = False,
        with_calls: bool = False,
        kept: KeptTraces | None = None,
    ) -> None:
        self._workload = workload
        self._residuals = residuals or shipped_residuals()
        self._time_residuals = time_residuals
        self._measured_steps = measured_steps
        self.observations = observations or Observations()
        likely, elsewhere = plan_sources_for(setup.torch)
        self._plans = CardPlans(plans or likely, plans_elsewhere or elsewhere)
        of_one = dataclasses.replace(setup, rank=0) if setup.rank is None else setup
        self._follow(
            of_one,
            Traces(
                workload,
                run,
                setup=of_one,
                emit=emit,
                for_host=for_host,
                num_threads=num_threads,
                with_tensors=with_tensors,
                with_calls=with_calls,
                with_alike_ranks=setup.rank is None,
                kept=kept,
            ),
        )
        self._all_ranks: AllRanks[Predictor] | None = (
            AllRanks(setup.num_ranks, self._of_rank) if setup.rank is None else None
        )

    def _follow(self, setup: Setup, traces: Traces) -> None:
        """Gives this predictor another setup and other traces, as for another rank; drops all results."""
        self._setup = setup
        self.traces = traces
        self._steps = StepCurves(traces, setup)
        self._largest: StepCurves | None = None
        self._timer = Timer(self._time_residuals, self._measured_steps)
        self._all_ranks = None

    def _of_rank(self, rank: int) -> Predictor:
        """Predictor of one rank; that of rank 0 shares the traces of this predictor."""
        traces = self.traces.of_rank(rank) if rank else self.traces
        own = copy.copy(self)
        own._follow(dataclasses.replace(self._setup, rank=rank), traces)  # noqa: SLF001 - a copy of this one
        return own

    def among(self, setup: Setup) -> Predictor:
        """Predictor of the workload in another setup (mode, ranks, kind of batches).

        It does not use the user's observed peaks, which are of the present setup.
        """
        own = copy.copy(self)
        own.observations = Observations()
        own._follow(setup, self.traces.among(setup))  # noqa: SLF001 - a copy of this one
        return own

    def trace(self, knobs: Knobs, batch_size: int) -> Trace:
        """The trace at a batch size; see `autofit.predict.tracing.traces.Traces.trace`."""
        return self.traces.trace(knobs, batch_size)

    def expect_curves(self, settings: Sequence[Knobs]) -> None:
        """Announces knob settings whose curves are needed soon, so that they share traces where possible."""
        self._steps.expect(settings)

    def curve(
        self, knobs: Knobs, card: Card, *, risk: Risk = Risk.SAFE, only_batch: int | None = None
    ) -> PredictedCurve:
        """Predicted peaks of a knob setting on a card, over the batch size; three traces are made if needed.

        Args:
            risk: which value of a predicted peak has to fit: the likely one, the high end, or the worst case.
            only_batch: batch size that is needed alone, for which one trace suffices; None for all batch
                sizes.

        Raises:
            WorkloadFailedError: the workload cannot be traced, or not be predicted on that card.
        """
        if self._all_ranks is not None:
            return self._all_ranks.curve(
                lambda rank: rank.curve(knobs, card, risk=risk, only_batch=only_batch)
            )
        if only_batch is not None:
            return self._on_card(knobs, card, risk, lambda steps: steps.at_batch(knobs, only_batch))
        return self._on_card(knobs, card, risk, lambda steps: steps.curve(knobs))

    def curve_of_estimates(self, knobs: Knobs, card: Card) -> PredictedCurve:
        """Predicted peaks over the batch size, equal to those of `estimate` wherever `agrees_at` holds.

        A `curve` differs from `estimate` where cuDNN's choices are interpolated between batch sizes.

        Raises:
            WorkloadFailedError: the workload cannot be traced, or not be predicted on that card.
        """
        if self._all_ranks is not None:
            return self._all_ranks.curve(lambda rank: rank.curve_of_estimates(knobs, card))
        return self._on_card(knobs, card, Risk.SAFE, lambda steps: steps.curve(knobs), on_grid=False)

    def agrees_at(self, knobs: Knobs, batch_size: int) -> bool:
        """Whether the curve has the memory events and sizes of a trace at a batch size.

        The trace is made unless the curve is proved there. Unlike with `confirm`, equal peaks do not suffice,
        and no curve is replaced.
        """
        if self._all_ranks is not None:
            agreed = [rank.agrees_at(knobs, batch_size) for rank in self._all_ranks.made]
            return all(agreed)
        return self._steps.is_proved(knobs, batch_size) or self._steps.agrees(knobs, batch_size)

    def surface(self, knobs: Knobs, card: Card, *, risk: Risk = Risk.SAFE) -> PredictedSurface:
        """Predicted peaks of a knob setting on a card, over batch and sample size; traces are made as needed.

        Args:
            risk: which value of a predicted peak has to fit: the likely one, the high end, or the worst case.

        Raises:
            UsageError: `knobs` sets a global batch, which is split into accumulated batches.
        """
        if knobs.global_batch is not None:
            raise UsageError("--global-batch depends on the batch size: give --grad-accumulation instead")

        def curve_at(size: int, only_batch: int | None, is_checked: bool) -> PredictedCurve:
            sized = dataclasses.replace(knobs, seq_len=size)
            return self.curve_at_size(sized, card, risk, only_batch, is_checked=is_checked)

        return PredictedSurface(curve_at)

    def curve_at_size(
        self, knobs: Knobs, card: Card, risk: Risk, only_batch: int | None, *, is_checked: bool
    ) -> PredictedCurve:
        """Predicted peaks over the batch size, at the sample size in `knobs`.

        Args:
            risk: which value of a predicted peak has to fit.
            only_batch: batch size that is needed alone; None for all but 1, which may differ.
            is_checked: whether an additional trace has to confirm the curve.
        """
        if self._all_ranks is not None:
            return self._all_ranks.curve(
                lambda rank: rank.curve_at_size(knobs, card, risk, only_batch, is_checked=is_checked)
            )
        return self._on_card(
            knobs, card, risk, lambda steps: steps.at_size(knobs, only_batch, is_checked=is_checked)
        )

    def _on_card(
        self,
        knobs: Knobs,
        card: Card,
        risk: Risk,
        step_of: Callable[[StepCurves], PeakCurve],
        *,
        on_grid: bool = True,
    ) -> PredictedCurve:
        curve = step_of(self._steps)
        trace = curve.trace
        at_most = step_of(self._at_most()) if _rests_on_shares(trace) else None
        knobs = with_own_settings(knobs, trace)
        require_applicable(knobs, trace)
        require_predictable(knobs, trace, card)
        return self._predicted(knobs, card, curve, risk, on_grid=on_grid, at_most=at_most)

    def sample(self, knobs: Knobs, batch_size: int) -> SampleSize | None:
        """Size of a knob setting's samples and its limits, from a trace; None if samples have one size."""
        return self._steps.sample(knobs, batch_size)

    def size_multiple(self, knobs: Knobs) -> int:
        """Step between sample sizes at which all operators round sizes alike, such as 64 tokens."""
        return self._steps.size_multiple(knobs)

    def host_steps(self, knobs: Knobs) -> PeakCurve:
        """Traced step on the CPU at any batch size, from which a `HostCurve` predicts memory.

        Raises:
            WorkloadFailedError: the workload cannot be traced.
        """
        return self._steps.host_steps(knobs)

    def expect_to_confirm(self, knobs: Knobs, batch_size: int) -> None:
        """Announces that `confirm` will be called, so that the trace that it may need is made ahead."""
        if not self._steps.is_proved(knobs, batch_size):
            self.traces.expect(knobs, [batch_size])

    def confirm(self, knobs: Knobs, card: Card, batch_size: int) -> bool:
        """Checks the curve of a knob setting by a trace at one batch size; replaces a curve that is wrong.

        Returns:
            Whether the curve has the trace's memory events or at least its peak. If False, curves that were
            returned for this knob setting must not be used any more.
        """
        if self._all_ranks is not None:
            agreed = [rank.confirm(knobs, card, batch_size) for rank in self._all_ranks.made]
            return all(agreed)
        if self._steps.is_proved(knobs, batch_size) or self._steps.agrees(knobs, batch_size):
            return True
        trace = self.trace(knobs, batch_size)
        if trace.batch_size == batch_size and self._has_peak_of_curve(trace, knobs, card):
            return True  # the difference does not touch the peak, as that of an evaluation's batches
        self._steps.replace(knobs, batch_size)
        return False

    def _has_peak_of_curve(self, trace: Trace, knobs: Knobs, card: Card) -> bool:
        own = with_own_settings(knobs, trace)
        found = self._predicted(own, card, PeakCurve.through([trace]), Risk.SAFE, on_grid=True).unlimited(
            trace.batch_size
        )
        expected = self.curve(knobs, card).unlimited(trace.batch_size)
        return all(
            math.isclose(getattr(found, peak), getattr(expected, peak), rel_tol=_SAME_PEAK)
            for peak in ("peak_allocated_bytes", "peak_reserved_bytes")
        )

    def estimate(self, knobs: Knobs, card: Card, batch_size: int | None) -> Estimate:
        """Estimate of one batch size, from a trace at this size.

        Args:
            batch_size: None for the script's own batch size. If the data set is smaller than a batch, the
                estimate is for the whole data set as one batch.
        """
        if batch_size is None:
            batch_size = self.traces.own_batch_size(knobs)
        curve = self.curve_at(knobs, card, batch_size)
        return curve(self.trace(knobs, batch_size).batch_size)

    def profile(self, knobs: Knobs, card: Card, batch_size: int) -> Profile:
        """Memory profile of a step at one batch size; raises the same errors as `curve_at`."""
        curve = self.curve_at(knobs, card, batch_size)
        return curve.profile(self.trace(knobs, batch_size).batch_size)

    def curve_at(self, knobs: Knobs, card: Card, batch_size: int) -> PredictedCurve:
        """Predicted peaks at one batch size only, from a trace at this size.

        Raises:
            UsageError: there is no such batch size or mode.
            WorkloadFailedError: the workload cannot be traced, or not be predicted on that card.
        """
        if self._all_ranks is not None:
            return self._all_ranks.curve(lambda rank: rank.curve_at(knobs, card, batch_size))
        trace = self.trace(knobs, batch_size)
        batch_size = trace.batch_size  # smaller if the whole data set is smaller
        knobs = with_own_settings(knobs, trace)
        require_applicable(knobs, trace)
        require_predictable(knobs, trace, card)
        step = self._steps.at_batch(knobs, batch_size)
        at_most = self._at_most().at_batch(knobs, batch_size) if _rests_on_shares(trace) else None
        curve = self._predicted(knobs, card, step, Risk.SAFE, on_grid=False, at_most=at_most)
        if (why := curve.why_refused(batch_size)) is not None:
            raise WorkloadFailedError(why)
        return curve

    def curve_of(self, trace: Trace, knobs: Knobs, card: Card) -> PredictedCurve:
        """Predicted peaks at the batch size of a given trace only.

        Args:
            trace: trace of a step, or part of one.

        Raises:
            UnpredictableCardError: the trace cannot be predicted on that card.
        """
        require_predictable(knobs, trace, card)
        curve = PeakCurve.through([trace])
        return self._predicted(knobs, card, curve, Risk.SAFE, on_grid=False, sharpens=False)

    def expect_sizes(self, knobs: Knobs, batch_size: int) -> None:
        """Announces that peaks at one batch size will be asked for at several sample sizes."""
        self._steps.expect_sizes(knobs, batch_size)

    def prepare(self, knobs: Knobs, card: Card, batch_size: int) -> None:
        """Finds out early which kernels cuDNN chooses at a traced size, while other sizes are traced."""
        trace = self.traces.known(knobs, batch_size)
        if trace is not None and trace.convolves and why_unpredictable(knobs, trace, card) is None:
            curve = PeakCurve.through([trace])
            self._predicted(knobs, card, curve, Risk.SAFE, on_grid=True).peak_reserved_bytes(batch_size)

    def why_inapplicable(self, knobs: Knobs) -> str | None:
        """Reason why the convolution algorithm in `knobs` can run nothing in the step; None if it can.

        It is None also if the step cannot be traced; then only a measured trial can tell.
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
        curve: PeakCurve,
        risk: Risk,
        *,
        on_grid: bool,
        at_most: PeakCurve | None = None,
        sharpens: bool = True,
    ) -> PredictedCurve:
        """Predicted peaks of a knob setting on a card, from the curve of its step."""
        trace = curve.trace
        if trace.shares_as_script:  # the traced script has shown its process groups
            card = card.among(trace.groups, trace.num_ranks)
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
            timer=self._timer,
        )

    def _observed(self, curve: PredictedCurve, *, on_grid: bool) -> tuple[Residual, ...]:
        """Deviations of the user's observed peaks from their predicted range, for a curve's step and card.

        Args:
            on_grid: whether cuDNN's choices are interpolated between batch sizes, as for the curve.
        """
        found = []
        trace = self.traces.first
        seen = self.observations.of(
            curve.knobs, curve.card, self._setup, mode=trace.mode, convolves=trace.convolves
        )
        for one in seen:
            try:
                at = curve if on_grid else self.curve_at(curve.knobs, curve.card, one.batch_size)
                spans = at.spans(one.batch_size)
            except AutofitError:
                continue  # the observed batch size cannot be predicted any more
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

    def _at_most(self) -> StepCurves:
        """Curves of the workload's steps if masks select as many elements as possible."""
        if self._largest is None:
            self._largest = StepCurves(self.traces.selecting_all(), self._setup)
        return self._largest


def _rests_on_shares(trace: Trace) -> bool:
    """Whether a trace has sizes that depend on how many elements a mask selects, which is not known."""
    return any(each.largest not in (None, each.size) for each in trace.assumptions)


def local_predictor(
    workload: WorkloadRef,
    *,
    setup: Setup = ALONE,
    emit: EventSink = ignore,
    with_tensors: bool = False,
    with_calls: bool = False,
    several: bool = False,
    fresh: bool = False,
) -> Predictor:
    """Predictor that traces on this machine, once the installed PyTorch has passed its self-test.

    Args:
        setup: how the workload is run: mode, kind of batches and ranks.
        with_tensors: whether traces also list the tensors and layers of a forward pass.
        with_calls: whether traces also list the operators that ran, and the stacks of allocations.
        several: whether several traces will be made, so that two processes make them.
        fresh: whether to make traces even where equal ones are kept from earlier questions.
    """
    start = functools.partial(door.start_predictor, several=several)
    kept = KeptTraces(checked(door.run), start, fresh=fresh)
    return Predictor(
        workload,
        kept.run,
        setup=setup,
        observations=Observations.load(workload),
        measured_steps=MeasuredSteps.load(workload),
        emit=emit,
        with_tensors=with_tensors,
        with_calls=with_calls,
        kept=kept,
    )


def shared_predictor(
    workload: WorkloadRef,
    *,
    plans: PlanSources,
    setup: Setup = ALONE,
    emit: EventSink = ignore,
    with_calls: bool = False,
    fresh: bool = False,
) -> Predictor:
    """Predictor that traces on this machine, but whose answers are those of any machine.

    No peaks and step times that were observed here correct it.

    Args:
        plans: returns, for an architecture, the source of cuDNN's choices of kernels for convolutions.
        setup: how the workload is run: mode, kind of batches and ranks.
        with_calls: whether traces also list the operators that ran, and the stacks of allocations.
        fresh: whether to make traces even where equal ones are kept from earlier questions.
    """
    kept = KeptTraces(checked(door.run), door.start_predictor, fresh=fresh)
    return Predictor(
        workload,
        kept.run,
        setup=setup,
        emit=emit,
        with_calls=with_calls,
        plans=plans,
        plans_elsewhere=plans,
        kept=kept,
    )
