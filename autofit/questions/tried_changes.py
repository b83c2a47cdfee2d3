"""Predicts the peaks of a configuration with changes, one after the other within a time limit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from autofit.errors import AutofitError, UnpredictableCardError, WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import Card
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.questions.levers import Lever
from autofit.settings.goals import Risk
from autofit_workers.replay.curve.peak_curve import traced_knobs
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import Trace

_LEAST_SECONDS = 4.0  # seconds for further trying, once changes that fit are found
Changes = tuple[Lever, ...]


class TriedChanges:
    """Predicts the peak of a configuration with changes made together, until a time limit has passed.

    A change is another value of one knob. The traces that predictions need are made once for all cards.

    Args:
        risk: which value of a predicted peak is returned: the likely one, the high end, or the worst case.
        seconds: time limit from now, for all cards together, after which nothing more is tried.
        clock: returns the time in seconds.
        emit: called with a progress event for each change.

    Attributes:
        is_cut_short: whether anything was not tried because the time was over.
    """

    def __init__(
        self,
        predictor: Predictor,
        knobs: Knobs,
        batch_size: int,
        *,
        risk: Risk,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        emit: EventSink = ignore,
    ) -> None:
        self._predictor = predictor
        self._knobs = knobs
        self._batch_size = batch_size
        self._risk = risk
        self._clock = clock
        self._began_at = clock()
        self._ends_at = self._ends_last_at = self._began_at + seconds
        self._emit = emit
        self.is_cut_short = False
        self._curves: dict[Changes, PredictedCurve] = {}
        self._peaks: dict[tuple[Changes, str], int | None] = {}
        self._traced: set[tuple[Knobs, int]] = set()
        self._longest_seconds = 0.0  # time of the slowest trace so far

    @property
    def trace(self) -> Trace:
        """Trace of the unchanged configuration; made even when the time limit has passed."""
        self._traced.add(self._traced_as(()))
        return self._predictor.trace(self._knobs, self._batch_size)

    def on_ranks(self, setup: Setup, batch_size: int) -> Self:
        """Copy for a step that the ranks of `setup` share, with the time limit that is left.

        Args:
            batch_size: batch size of one rank.
        """
        left_seconds = self._ends_at - self._clock()
        other = type(self)(
            self._predictor.among(setup),
            self._knobs,
            batch_size,
            risk=self._risk,
            seconds=left_seconds,
            clock=self._clock,
            emit=self._emit,
        )
        other._longest_seconds = self._longest_seconds  # noqa: SLF001 - same class
        return other

    def for_another_card(self) -> None:
        """Restores the time limit that `end_soon` shortened, as the next card needs changes of its own."""
        self._ends_at = self._ends_last_at

    def end_soon(self) -> None:
        """Shortens the time limit, for the card at hand, to as much more time as was used so far.

        At least four seconds are left.
        """
        now = self._clock()
        self._ends_at = min(self._ends_at, now + max(_LEAST_SECONDS, now - self._began_at))

    def peak_bytes(self, changes: Changes, card: Card) -> int | None:
        """Reserved peak in bytes with the changes; None if they do not apply, or no time is left."""
        key = changes, card.architecture
        if key not in self._peaks:
            traced, started = self._traced_as(changes), self._clock()
            is_traced = traced in self._traced
            if started + (0 if is_traced else self._longest_seconds) >= self._ends_at:
                self.is_cut_short = True
                return None
            self._emit(Progress(stage="trying levers"))
            try:
                self.predicted_bytes(changes, card)
            except AutofitError:
                self._peaks[key] = None
            if not is_traced:
                self._traced.add(traced)
                self._longest_seconds = max(self._longest_seconds, self._clock() - started)
        return self._peaks[key]

    def predicted_bytes(self, changes: Changes, card: Card) -> int:
        """Reserved peak in bytes with the changes, without time limit.

        Raises:
            AutofitError: the changes do not apply, or cannot be predicted on the card.
        """
        key = changes, card.architecture
        if (known := self._peaks.get(key)) is not None:
            return known
        batch_size = self._batch_of(changes)
        if changes not in self._curves:
            curve = self._predictor.curve_at(self._changed(changes), card, batch_size)
            self._curves[changes] = curve.at_risk(self._risk)
        if (why := self._curves[changes].why_unpredictable_on(card, batch_size)) is not None:
            raise UnpredictableCardError(why)
        on_card = self._curves[changes].on(card)
        if (why := on_card.why_refused(batch_size)) is not None:
            raise WorkloadFailedError(why)
        self._peaks[key] = peak_bytes = on_card.peak_reserved_bytes(batch_size)
        return peak_bytes

    def lower_bound_bytes(self, card: Card) -> int:
        """Lower bound in bytes of the unchanged configuration's peak: the bytes of its live tensors alone."""
        return self._curves[()].on(card).lower_bound_bytes(self._batch_size)

    def is_free(self, lever: Lever) -> bool:
        """Whether the trace of the unchanged configuration suffices to predict a change."""
        return self._traced_as((lever,)) == self._traced_as(())

    def changes_the_step(self, lever: Lever) -> bool:
        """Whether a change that was tried alters the traced events or allocations of the step."""
        if self.is_free(lever):
            return True
        trace = self._predictor.trace(self._changed((lever,)), self._batch_of((lever,)))
        return (trace.events, trace.allocations) != (self.trace.events, self.trace.allocations)

    def _changed(self, changes: Changes) -> Knobs:
        values = {name: value for lever in changes for name, value in lever.changed(self._knobs).items()}
        return dataclasses.replace(self._knobs, **values)

    def _batch_of(self, changes: Changes) -> int:
        smaller = (lever.batch_size for lever in changes if lever.batch_size is not None)
        return next(smaller, self._batch_size)

    def _traced_as(self, changes: Changes) -> tuple[Knobs, int]:
        knobs, batch_size = self._changed(changes), self._batch_of(changes)
        return traced_knobs(knobs, num_passes=knobs.num_passes(batch_size)), batch_size
