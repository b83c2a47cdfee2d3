"""Peaks and verdicts of one knob setting on one card, by batch size and risk."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Self

from autofit.errors import UsageError
from autofit.hardware.card import Card
from autofit.predict.confidence import Residuals
from autofit.predict.intervals.observations import Residual
from autofit.predict.intervals.widening import Widening
from autofit.predict.plan_sources import CardPlans
from autofit.predict.run_lengths import DrawnOrders, RunLengths
from autofit.predict.times.step_times import Timer
from autofit.predict.unpredictable import why_unpredictable
from autofit.search.curves import KnownPeaks
from autofit.settings.goals import Risk
from autofit_workers.replay.allocator import AllocatorSettings
from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.peak_estimate import PeakEstimate
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict

_LEVELS = {Risk.SAFE: Level.HIGH, Risk.LIKELY: Level.LIKELY, Risk.WORST: Level.WORST}
# Those whose peaks are never above a risk's own, the likely one first: their replays are among its replays.
_LOWER_RISKS = {Risk.LIKELY: (), Risk.SAFE: (Risk.LIKELY,), Risk.WORST: (Risk.LIKELY, Risk.SAFE)}
_MOST_STEPS = 512  # remembered; some kB each, beside what the step's curve remembers


class PeaksOnCard:
    """Reserved peaks and verdicts of one knob setting's step on one card, at any batch size.

    `peak_reserved_bytes` and `verdict` are those of one level of the interval, the `risk`.

    Args:
        at_most: the curve of the step with the largest sizes that values may give it, where sizes depend
            on values: the high end is that of this curve.
        observed: finds the observed peaks of this setting on this card, once an interval is asked for.
        timer: predicts the times of the workload's steps.

    Attributes:
        risk: `safe` (the high end of the interval), `likely`, or `worst` (the largest workspace of every
            convolution).
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
        observed: Callable[[PeaksOnCard], tuple[Residual, ...]] | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.risk = risk
        self._timer = timer or Timer()
        self._observed = observed
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
        self._widening = Widening(
            residuals,
            card.architectures,
            observed=None if observed is None else functools.partial(observed, self),
        )
        self._peaks = {each: KnownPeaks() for each in Risk}
        self._steps: dict[tuple[PeakCurve, int], StepOnCard] = {}
        self._drawn_orders: dict[int, DrawnOrders | None] = {}  # by batch size
        self._run_lengths: dict[tuple[int, int | None], RunLengths] = {}

    @property
    def needs_traces(self) -> bool:
        """Whether the step allocates differently at every batch size, so that each size costs a trace."""
        return self._curve.needs_traces

    @property
    def knobs(self) -> Knobs:
        """The knob setting that the peaks are of."""
        return self._knobs

    @property
    def card(self) -> Card:
        """The card that the peaks are on."""
        return self._card

    def spans(self, batch_size: int) -> PeakEstimate:
        """Peaks at a batch size with their range due to workspaces, before errors of real runs widen it."""
        peak = self._widening.counted(self._at(batch_size))
        if self._at_most is None:
            return peak
        most = self._widening.counted(self._at(batch_size, Level.HIGH))
        return dataclasses.replace(
            peak,
            high_bytes=max(peak.high_bytes, most.high_bytes),
            allocated_high_bytes=max(peak.allocated_high_bytes, most.allocated_high_bytes),
        )

    def why_unpredictable_on(self, card: Card, batch_size: int) -> str | None:
        """Reason why a batch size cannot be predicted on another card; None if it can, with `on`."""
        return why_unpredictable(self._knobs, self._at(batch_size).step.trace, card)

    def on(self, card: Card) -> Self:
        """Peaks of the step on another card; the step must be predictable on it."""
        return type(self)(
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
            timer=self._timer,
        )

    def at_risk(self, risk: Risk) -> Self:
        """Copy of the curve with another risk, which says which level of a peak has to fit."""
        other = copy.copy(self)
        other.risk = risk
        return other

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        """Reserved peak at the curve's risk, computed once; see `autofit.search.curves.Curve`."""
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
        lengths = self.run_lengths(on_card, None)
        if self.risk is Risk.LIKELY:
            return reserved_bytes if lengths is None else max(reserved_bytes, lengths.likely_bytes)
        if lengths is not None:
            reserved_bytes = max(reserved_bytes, lengths.high_bytes)
        return self._widening.calibration(on_card).high_end(
            reserved_bytes + self._widening.on_top_bytes(on_card)
        )

    def run_lengths(self, on_card: StepOnCard, limit_bytes: int | None) -> RunLengths | None:
        """Memory of a run whose batches differ in length; None if its batches do not differ.

        Args:
            limit_bytes: the most that the allocator can reserve; None for no limit.
        """
        orders = self._orders(on_card)
        if orders is None:
            return None
        key = on_card.step.batch_size, limit_bytes
        if key not in self._run_lengths:
            self._run_lengths[key] = orders.answer(limit_bytes)
        return self._run_lengths[key]

    def _orders(self, on_card: StepOnCard) -> DrawnOrders | None:
        trace, batch_size = on_card.step.trace, on_card.step.batch_size
        if trace.lengths is None or trace.batch_size != batch_size:
            return None
        if batch_size not in self._drawn_orders:
            self._drawn_orders[batch_size] = DrawnOrders.of(on_card)
        return self._drawn_orders[batch_size]

    def _known_of_lower_risks(self, on_card: StepOnCard) -> int:
        """Lower bound of a peak in bytes, from peaks computed at lower risks; 0 if none was computed."""
        lower = _LOWER_RISKS[self.risk]
        if not lower:
            return 0
        if self._widening.calibration(on_card).high_share < 0:  # real runs took less than is likely
            lower = lower[1:]
        return max((self._peaks[risk].least_bytes(on_card.step.batch_size) for risk in lower), default=0)

    def lower_bound_bytes(self, batch_size: int) -> int:
        """A lower bound of the peak at the curve's risk, in bytes: live bytes, without any workspace."""
        steps = self._decisive(batch_size, self._level)
        least_bytes = max(on_card.step.lower_bound_bytes for on_card in steps)
        if self.risk is Risk.LIKELY:
            return least_bytes
        return self._widening.calibration(steps[0]).high_end(least_bytes)

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
        limit_bytes = self._before_widening(on_card, budget_bytes)
        verdict = on_card.verdict(limit_bytes, self._replayed_level(on_card))
        if verdict is not Verdict.FITS:
            return verdict  # whatever its lengths add, which costs more to find out
        lengths = self.run_lengths(on_card, None)
        if lengths is None:
            return verdict
        peak_bytes = lengths.likely_bytes if self.risk is Risk.LIKELY else lengths.high_bytes
        if peak_bytes <= limit_bytes:
            return verdict
        orders = self._orders(on_card)
        return Verdict.THRASH if orders is not None and orders.share_within(limit_bytes) == 1 else Verdict.OOM

    def accepted(self, sizes: Sequence[int]) -> Sequence[int]:
        """Batch sizes of the ascending `sizes` that PyTorch's kernels accept, regardless of memory."""
        if self.needs_traces:
            return sizes  # each would cost a trace
        return sizes[: bisect.bisect_left(sizes, True, key=lambda size: self.why_refused(size) is not None)]

    def why_refused(self, batch_size: int) -> str | None:
        """Reason why a batch size cannot run even with unlimited memory; None if it can."""
        refusal = self._at(batch_size).refusal()
        return refusal and f"batch {batch_size} cannot be run: {refusal.module} {refusal.reason}"

    def cannot_run(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether even the low end of a peak exceeds a budget after the allocator released its cache."""
        on_card = self._at(batch_size)
        limit_bytes = self._widening.calibration(on_card).within_low_end(budget_bytes)
        levels = (Level.LOW, Level.LIKELY, Level.HIGH)
        orders = self._orders(on_card)
        if orders is not None and not orders.share_within(limit_bytes):
            return True
        return not any(on_card.runs_within(limit_bytes, level) for level in levels)

    def runs_with_smallest_plans(self, batch_size: int, budget_bytes: int) -> bool:
        """Whether a batch size runs with the smallest workspaces and all other sizes at the high end.

        Near the limit cuDNN takes the plans that need least, once the allocator has released its cache.
        """
        steps = self._decisive(batch_size, Level.HIGH)
        limit_bytes = self._widening.calibration(steps[0]).within_high_end(budget_bytes)
        return all(on_card.runs_within(limit_bytes, Level.LOW) for on_card in steps)

    @property
    def _level(self) -> Level:
        return _LEVELS[self.risk]

    def _at(self, batch_size: int, level: Level = Level.LIKELY) -> StepOnCard:
        """Step on the card at a batch size; from level high on, with the largest value-dependent sizes."""
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
        """Steps to replay at a batch size: the worst of their peaks and verdicts counts at a level.

        With the largest sizes, which come first, a step may reserve less than with those that were assumed:
        the allocator places its blocks otherwise.
        """
        first, typical = self._at(batch_size, level), self._at(batch_size)
        return (first,) if first is typical else (first, typical)

    def _replayed_level(self, on_card: StepOnCard) -> Level:
        """Level of the workspaces with which a peak at the curve's risk is replayed."""
        return self._widening.end_level(on_card) if self.risk is Risk.SAFE else self._level

    def _before_widening(self, on_card: StepOnCard, limit_bytes: int) -> int:
        """Largest replayed peak in bytes that stays within a limit with workspaces added and widened."""
        within_bytes = self._within(on_card, limit_bytes)
        return (
            within_bytes
            if self.risk is Risk.LIKELY
            else max(0, within_bytes - self._widening.on_top_bytes(on_card))
        )

    def _within(self, on_card: StepOnCard, limit_bytes: int) -> int:
        """Largest peak in bytes, workspaces included, that stays within a limit once widened."""
        if self.risk is Risk.LIKELY:
            return limit_bytes
        return self._widening.calibration(on_card).within_high_end(limit_bytes)
