"""Answers of one workload and knob setting at any batch size and on any card, from traces made once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from autofit.answers.figures import CurveLine
from autofit.errors import AutofitError, WorkloadFailedError
from autofit.hardware import gpus
from autofit.hardware.card import Card, card_named
from autofit.identity import versions
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import Predictor
from autofit.questions.advising import nothing_to_measure_on
from autofit.questions.card_fits import OnCards, ordered_by_memory
from autofit.questions.cards import CardsAnswer
from autofit.questions.check import CheckResult, check_curve
from autofit.report.curves import curves_up_to
from autofit.settings.target import resolve_target
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.trace import SampleSize

# Batch sizes up to here need no further trace. It is odd: code that treats odd batches differently, as halves
# of a batch that are rounded, is seen at an odd size alone, and the traces of a curve are of even ones.
PROVED_BATCH = 1025
_FEWEST_SAMPLES = 16  # that a curve is drawn to
_BEYOND = 1.25  # largest batch of a drawn curve, over the largest that fits


class LiveConfiguration:
    """Answers on one workload and knob setting, whatever the batch size and the card.

    Its methods are for one thread at a time. `prepare` makes all traces that the others need.

    Args:
        settings: the configuration; its card is ignored.
        workload: the workload to trace.
        predictor: predictor of the workload.
    """

    def __init__(self, settings: TuneSettings, workload: WorkloadRef, predictor: Predictor) -> None:
        self._predictor = predictor
        self._settings = settings
        self._workload = workload
        self._knobs = settings.configuration("an estimate")
        self._proved = 0
        self._apart: set[int] = set()
        self._traces_each = False
        self._curves: dict[str, PredictedCurve] = {}
        self._cards: OnCards | None = None
        self._files: dict[str, tuple[int, int]] = {}

    def is_ready(self, batch_size: int) -> bool:
        """Whether a batch size is answered without a trace."""
        return batch_size in self._apart or 1 < batch_size <= self._proved

    def is_current(self) -> bool:
        """Whether none of the user's files that the traces used has changed since."""
        return all(_state(file) == state for file, state in self._files.items())

    def prepare(self, card: Card, batch_size: int) -> None:
        """Makes the traces that a batch size needs: those of the curve, and one that proves it.

        Raises:
            UsageError: the settings do not fit the workload.
            WorkloadFailedError: the workload cannot be traced, or not be predicted on that card.
        """
        if self.is_ready(batch_size):
            return
        if not self._traces_each:
            self._predictor.curve_of_estimates(self._knobs, card)
            self._traces_each = not self._is_proved_at(batch_size)
        if self._traces_each or batch_size == 1:
            self._predictor.trace(self._knobs, batch_size)
            if not self._predictor.confirm(self._knobs, card, batch_size):
                self._curves, self._cards = {}, None  # of a curve that was replaced
            self._apart.add(batch_size)
        self._files = {file: _state(file) for file in self._predictor.traces.sources or ()}

    def _is_proved_at(self, batch_size: int) -> bool:
        """Whether the curve has what a trace has at a batch size or, if it can be traced, a larger one."""
        if batch_size == 1:
            return True  # shapes of 1 take branches of their own, and have a trace of their own
        proof = max(PROVED_BATCH, batch_size | 1)
        try:
            agrees = self._predictor.agrees_at(self._knobs, proof)
        except AutofitError:  # of a batch that nobody has asked for
            agrees, proof = self._predictor.agrees_at(self._knobs, batch_size), batch_size
        if agrees:
            self._proved = max(self._proved, proof)
        return agrees

    def estimate(self, card: Card, batch_size: int) -> Estimate:
        """Estimate of a prepared batch size, as `autofit estimate` gives it; raises the same errors."""
        return self._curve(card, batch_size)(batch_size)

    def check(self, settings: TuneSettings, batch_size: int) -> CheckResult:
        """Check of a prepared batch size on the card of `settings`, as `autofit check`, without advice."""
        target = resolve_target(settings, local_gpus=gpus.local_gpus, reachable=nothing_to_measure_on)
        return check_curve(self._curve(target.card, batch_size), batch_size, target.budget, target.device)

    def _curve(self, card: Card, batch_size: int) -> PredictedCurve:
        """Curve whose estimate at a batch size is that of `autofit estimate`."""
        if batch_size in self._apart:
            return self._predictor.curve_at(self._knobs, card, batch_size)
        if card.name not in self._curves:
            self._curves[card.name] = self._predictor.curve_of_estimates(self._knobs, card)
        curve = self._curves[card.name]
        if (why := curve.why_refused(batch_size)) is not None:
            raise WorkloadFailedError(why)
        return curve

    def sample(self) -> SampleSize | None:
        """Size of the workload's samples, and its limits; None if they have one size."""
        return self._predictor.sample(self._knobs, TRACED_BATCH_SIZES[0])  # which was traced for the curve

    def cards(self, batch_size: int, on_card: Callable[[], None]) -> CardsAnswer:
        """Answer of `autofit cards` at a prepared batch size, without step times and without advice.

        Args:
            on_card: called before each card, and may raise.
        """
        if self._cards is None:
            every = gpus.catalogue().values()
            smallest = ordered_by_memory(every)[0]
            curve = self._predictor.curve(self._knobs, card_named(smallest.key, self._settings.mesh))
            self._cards = OnCards(curve, every, self._settings, max_batch=self._settings.max_batch)
        trace = self._predictor.traces.first
        num_own = self._settings.setup.parallel.num_batches
        samples_per_step = self._knobs.samples_per_step(batch_size, num_own)
        return CardsAnswer(
            workload=self._workload.name,
            mode=trace.mode,
            batch_size=batch_size,
            knobs=self._knobs,
            risk=self._settings.risk,
            cards=tuple(
                dataclasses.replace(fit, samples_per_step=samples_per_step)
                for fit in self._cards.fits(batch_size, on_card).values()
            ),
            convolves=trace.convolves,
            batch_kind=trace.batch_kind,
            versions=versions(),
        )

    def lines(
        self, card: Card, batch_size: int, largest_batch: int | None, on_size: Callable[[], None]
    ) -> tuple[CurveLine, ...]:
        """Lines of likely and highest peaks on a card, to beyond the largest batch that fits.

        Args:
            batch_size: batch size that the lines reach in any case.
            largest_batch: largest that fits on the card; None if unknown.
            on_size: called before each point, and may raise.
        """
        curve = self._predictor.curve(self._knobs, card)
        if curve.needs_traces:
            return ()
        most = max(_FEWEST_SAMPLES, round(_BEYOND * (largest_batch or 0)), batch_size)
        high = 1 << (most - 1).bit_length() if most > round(_BEYOND * (largest_batch or 0)) else most
        return curves_up_to(curve, high, largest_batch=largest_batch, on_size=on_size)


def _state(file: str) -> tuple[int, int]:
    """Size and time of change of a file; zeros if there is none."""
    try:
        status = Path(file).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
