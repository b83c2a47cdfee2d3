"""Peak and verdict of one step on a card by a risk, which decides what point of the interval has to fit."""

from __future__ import annotations

import copy

from autofit.predict.intervals.widening import Widening
from autofit.predict.run_lengths import DrawnOrders, RunLengths
from autofit.settings.goals import Risk
from autofit_workers.replay.curve.conditions import Level
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.pythons import Self

_LEVELS = {Risk.SAFE: Level.HIGH, Risk.LIKELY: Level.LIKELY, Risk.WORST: Level.WORST}


class RiskLevel:
    """Computes the value of a predicted peak that has to fit by the risk that the user chose.

    For the risk `safe` it is the high end of the 95 % interval, else the likely or the worst-case peak. A
    step is given as a traced step at one batch size on a card.

    Args:
        risk: the risk that the user chose.
        widening: widens predicted peaks to intervals by past errors of predictions.

    Attributes:
        risk: as given.
    """

    def __init__(self, risk: Risk, widening: Widening) -> None:
        self.risk = risk
        self._widening = widening
        self._drawn_orders: dict[int, DrawnOrders | None] = {}  # by batch size
        self._run_lengths: dict[tuple[int, int | None], RunLengths] = {}

    def of(self, risk: Risk) -> Self:
        """Copy for another risk; it shares results on runs whose batches differ in length."""
        other = copy.copy(self)
        other.risk = risk
        return other

    @property
    def level(self) -> Level:
        """Whether uncertain sizes are taken at their likely value, their high end, or at worst."""
        return _LEVELS[self.risk]

    def replayed(self, on_card: StepOnCard) -> Level:
        """Whether convolution workspaces are likely, large or worst when a step is simulated for the risk."""
        return self._widening.end_level(on_card) if self.risk is Risk.SAFE else self.level

    def peak_bytes(self, on_card: StepOnCard, stop_above_bytes: int | None) -> int:
        """Reserved peak of a step in bytes: the value that has to fit.

        Args:
            stop_above_bytes: if the peak exceeds this limit, any value above the limit may be returned that
                the peak reaches; None for the exact peak.
        """
        if stop_above_bytes is not None:
            stop_above_bytes = self._before_widening(on_card, stop_above_bytes)
        reserved_bytes = on_card.reserved_bytes(self.replayed(on_card), stop_above_bytes=stop_above_bytes)
        lengths = self.run_lengths(on_card, None)
        if self.risk is Risk.LIKELY:
            return reserved_bytes if lengths is None else max(reserved_bytes, lengths.likely_bytes)
        if lengths is not None:
            reserved_bytes = max(reserved_bytes, lengths.high_bytes)
        return self._widening.calibration(on_card).high_end(
            reserved_bytes + self._widening.on_top_bytes(on_card)
        )

    def verdict(self, on_card: StepOnCard, budget_bytes: int) -> Verdict:
        """Verdict on a step: `FITS`, `THRASH` (it runs only with retries of the allocator) or `OOM`.

        Args:
            budget_bytes: bytes that the allocator may reserve.
        """
        if on_card.step.lower_bound_bytes > self._within(on_card, budget_bytes):
            return Verdict.OOM  # without computing workspaces, which takes longer
        limit_bytes = self._before_widening(on_card, budget_bytes)
        verdict = on_card.verdict(limit_bytes, self.replayed(on_card))
        if verdict is not Verdict.FITS:
            return verdict  # without replaying batches of other lengths, which takes longer
        lengths = self.run_lengths(on_card, None)
        if lengths is None:
            return verdict
        peak_bytes = lengths.likely_bytes if self.risk is Risk.LIKELY else lengths.high_bytes
        if peak_bytes <= limit_bytes:
            return verdict
        orders = self.orders(on_card)
        return Verdict.THRASH if orders is not None and orders.share_within(limit_bytes) == 1 else Verdict.OOM

    def run_lengths(self, on_card: StepOnCard, limit_bytes: int | None) -> RunLengths | None:
        """Memory of a run whose batches differ in length; None if its batches do not differ.

        Args:
            limit_bytes: most bytes that the allocator can reserve; None for no limit.
        """
        orders = self.orders(on_card)
        if orders is None:
            return None
        key = on_card.step.batch_size, limit_bytes
        if key not in self._run_lengths:
            self._run_lengths[key] = orders.answer(limit_bytes)
        return self._run_lengths[key]

    def orders(self, on_card: StepOnCard) -> DrawnOrders | None:
        """Orders in which a run may draw batches that differ in length; None if they do not differ."""
        trace, batch_size = on_card.step.trace, on_card.step.batch_size
        if trace.lengths is None or trace.batch_size != batch_size:
            return None
        if batch_size not in self._drawn_orders:
            self._drawn_orders[batch_size] = DrawnOrders.of(on_card)
        return self._drawn_orders[batch_size]

    def _before_widening(self, on_card: StepOnCard, limit_bytes: int) -> int:
        """Largest simulated peak in bytes that is within a limit after all additions for the risk.

        Additions are a share of the largest workspace, and the widening by past errors.
        """
        within_bytes = self._within(on_card, limit_bytes)
        return (
            within_bytes
            if self.risk is Risk.LIKELY
            else max(0, within_bytes - self._widening.on_top_bytes(on_card))
        )

    def _within(self, on_card: StepOnCard, limit_bytes: int) -> int:
        """Largest peak in bytes that is within a limit after it was widened by past errors."""
        if self.risk is Risk.LIKELY:
            return limit_bytes
        return self._widening.calibration(on_card).within_high_end(limit_bytes)
