"""Finds the cards on which a batch of one configuration fits, from one curve of its peaks."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autofit.errors import BudgetError
from autofit.explain.timing import StepSeconds
from autofit.hardware.budget import Budget, budget_among, least_total_bytes
from autofit.hardware.card import card_named
from autofit.hardware.gpus import Gpu, oldest_first
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate, Interval
from autofit.predict.whole_run import LineGrowth, fills
from autofit.questions.advice import Advice
from autofit.questions.check import Answer
from autofit.questions.levers import Lever
from autofit.search.boundary import nearly_largest_batch
from autofit.search.sizes import sizes_for
from autofit.settings.goals import Risk
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.protocol import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFit:
    """Result for one configuration on one card: whether it fits, its peak, time and price.

    Attributes:
        gpu: key of the card in the catalogue.
        architecture: `sm_XY`.
        total_bytes: total memory that CUDA reports.
        usable_bytes: part of it that is left for PyTorch; 0 if none is.
        verdict: `fits` (the predicted peak is within the usable memory without a retry of the allocator;
            `CardsAnswer.risk` says whether that is the likely peak, the high end or the worst case),
            `does-not-fit` (even the low end runs out of memory, or growth fills the usable memory before the
            run ends) or `unsure`, also if nothing is predicted.
        likely_verdict: verdict at the likely peak: `FITS`, `THRASH` (runs with retries of the allocator) or
            `OOM`. This and the following fields up to the largest batch are None if nothing is predicted.
        interval: predicted reserved peak on the card, in bytes.
        need: reserved peak on a card that is large enough, where it may exceed this card's memory; else None.
        num_alloc_retries: how often the allocator releases its cached memory and retries in the traced steps.
        growth: source lines that keep more memory with each step of the run; `full_step` is the step at which
            the usable memory is full.
        device_peak_bytes: memory that nvidia-smi, or amd-smi, would likely show.
        largest_batch: largest batch that fits with this knob setting (precision, optimizer, …), by the same
            value of the predicted peak as `verdict`, while the next does not; `tune` may prove one that is a
            few samples larger. None if not even one sample fits, or if each size would need a new trace of
            the step.
        lever: single change with the mildest side effect with which this batch fits; None if it fits anyway,
            or if no tried change makes it fit.
        advice: changes that were tried to make it fit; None if it fits anyway.
        reason: why no card of this architecture can run the step, whatever its memory, or why nothing is
            predicted for it; else empty.
        num_gpus: number of GPUs of this card that train together.
        parallel: kind of parallelism of the ranks, such as `fsdp:8`; empty for a single process.
        samples_per_step: samples of an optimizer step, of all ranks.
        step_seconds, samples_per_second: predicted time of a step, and likely samples per second; None where
            they are too uncertain.
        epoch_seconds: predicted time of an epoch, if its samples are known and step times are stated.
        relative_step_time: predicted time of a step, divided by that on the fastest of the cards on which it
            fits with as many GPUs; None if no times are predicted, or it does not fit.
        price: price of an hour of one such card, as the user gave it.
        samples_per_price: samples for a price of 1, if their time is stated.
        relative_price: price of a sample, divided by that on the cheapest of the cards on which it fits.
        required_bytes: reserved peak that has to be within `usable_bytes`: the likely one, the high end or
            the worst case, as the risk says. None if nothing is predicted.
        least_total_bytes: smallest total memory with which a card of this architecture would have so much
            usable; where memory grows with each step, that of the card itself. None where no memory suffices.
    """

    gpu: str
    architecture: str
    total_bytes: int
    usable_bytes: int
    verdict: Answer
    likely_verdict: Verdict | None
    interval: Interval | None
    device_peak_bytes: int | None
    largest_batch: int | None
    lever: Lever | None = None
    advice: Advice | None = None
    reason: str = ""
    num_gpus: int = 1
    parallel: str = ""
    samples_per_step: int | None = None
    step_seconds: StepSeconds | None = None
    samples_per_second: float | None = None
    epoch_seconds: float | None = None
    relative_step_time: float | None = None
    price: float | None = None
    samples_per_price: float | None = None
    relative_price: float | None = None
    need: Interval | None = None
    num_alloc_retries: int = 0
    growth: tuple[LineGrowth, ...] = ()
    required_bytes: int | None = None
    least_total_bytes: int | None = None


def ordered_by_memory(gpus: Iterable[Gpu]) -> list[Gpu]:
    """GPU models in the order of their memory, the smallest first."""
    return sorted(gpus, key=lambda gpu: (gpu.total_bytes, gpu.key))


def architectures_of(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The smallest GPU model of each architecture, NVIDIA's oldest architecture first.

    The step may be unpredictable only on AMD's cards, so NVIDIA's come first.
    """
    smallest = {gpu.architecture: gpu for gpu in reversed(ordered_by_memory(gpus))}
    return tuple(smallest[name] for name in oldest_first(smallest))


class OnCards:
    """Predictions of one configuration on each of several cards, at any batch size, from one curve.

    Cards of one architecture differ only in their memory, so a card adds no trace, only one evaluation
    of the predicted memory. What was found at one batch size is of use at the next.

    Args:
        curve: predicted peaks over the batch size, on any card, at the risk that the user chose.
        settings: memory that is kept free for others; a card in the settings is ignored.
        max_batch: most samples a batch that are tried in the search for the largest that fits.
    """

    def __init__(
        self, curve: PredictedCurve, gpus: Iterable[Gpu], settings: TuneSettings, *, max_batch: int
    ) -> None:
        self._curve = curve
        self._gpus = ordered_by_memory(gpus)
        self._settings = settings
        self._sizes = sizes_for(curve.knobs, min_batch=1, max_batch=max_batch)
        self._on: dict[str, PredictedCurve] = {}

    def fits(self, batch_size: int, on_card: Callable[[], None] = lambda: None) -> dict[Gpu, CardFit]:
        """Result for each card, the smallest memory first.

        Args:
            on_card: called before each card and each architecture, and may raise.
        """
        kinds: dict[str, _Kind | Unpredictable] = {}
        for gpu in architectures_of(self._gpus):
            on_card()
            card = card_named(gpu.key)
            why = self._curve.why_unpredictable_on(card, batch_size)
            if why is not None:
                kinds[gpu.architecture] = Unpredictable(why)
                continue
            if gpu.architecture not in self._on:
                self._on[gpu.architecture] = self._curve.on(card)
            kinds[gpu.architecture] = _Kind(self._on[gpu.architecture], batch_size, self._sizes)
        fits: dict[Gpu, CardFit] = {}
        for gpu in reversed(self._gpus):
            on_card()
            fits[gpu] = kinds[gpu.architecture].on(gpu, self._settings)
        return dict(reversed(fits.items()))


@dataclass(frozen=True, slots=True)
class Unpredictable:
    """Architecture for whose cards the configuration cannot be predicted, with the reason.

    Attributes:
        reason: why it cannot be predicted, and what the user can do.
    """

    reason: str

    def on(self, gpu: Gpu, settings: TuneSettings) -> CardFit:
        """`CardFit` with the verdict `unsure` for a card of the architecture, and the reason."""
        usable_bytes = _budget(gpu, settings).usable_bytes
        return CardFit(
            gpu=gpu.key,
            architecture=gpu.architecture,
            total_bytes=gpu.total_bytes,
            usable_bytes=usable_bytes,
            verdict=Answer.UNSURE,
            likely_verdict=None,
            interval=None,
            device_peak_bytes=None,
            largest_batch=None,
            reason=self.reason,
            num_gpus=settings.setup.num_ranks,
            parallel=settings.setup.parallel.name,
        )


class _Kind:
    """Predictions of one configuration for the cards of one architecture, which differ in memory alone.

    Args:
        curve: predicted peaks over the batch size, on any of these cards, at the risk that the user chose.
        sizes: batch sizes among which the largest that fits is found, ascending.
    """

    def __init__(self, curve: PredictedCurve, batch_size: int, sizes: Sequence[int]) -> None:
        self._curve = curve
        self._batch_size = batch_size
        self._reason = curve.why_refused(batch_size) or ""
        self._sizes = curve.accepted(sizes)
        self._estimate: Estimate = curve.unlimited(batch_size)
        self._required_bytes = curve.peak_reserved_bytes(batch_size)

    def on(self, gpu: Gpu, settings: TuneSettings) -> CardFit:
        """Predicted result for a card of the architecture; to be called for the largest card first."""
        budget = _budget(gpu, settings, self._estimate)
        context_bytes, usable_bytes = budget.context_bytes, budget.usable_bytes
        limit_bytes = max(0, gpu.total_bytes - settings.reserve_bytes - context_bytes)
        there = self._curve.within(self._batch_size, limit_bytes)
        growth = self._curve.growth(self._batch_size, usable_bytes)
        verdict = self._answer(budget, growth)
        likely = self._curve.at_risk(Risk.LIKELY).verdict(self._batch_size, usable_bytes)
        return CardFit(
            gpu=gpu.key,
            architecture=gpu.architecture,
            total_bytes=gpu.total_bytes,
            usable_bytes=usable_bytes,
            verdict=verdict,
            likely_verdict=Verdict.OOM if fills(growth) else likely,
            interval=there.interval,
            need=there.need,
            num_alloc_retries=there.num_alloc_retries,
            device_peak_bytes=there.peak_reserved_bytes + context_bytes,
            largest_batch=self._largest(usable_bytes),
            reason=self._reason,
            growth=growth,
            num_gpus=settings.setup.num_ranks,
            parallel=settings.setup.parallel.name,
            required_bytes=self._required_bytes,
            least_total_bytes=self._least(gpu, budget, settings, verdict=verdict, grows=bool(growth)),
        )

    def _least(
        self, gpu: Gpu, budget: Budget, settings: TuneSettings, *, verdict: Answer, grows: bool
    ) -> int | None:
        """Smallest total memory with which a card of the architecture holds the batch; None if none does."""
        if grows:  # how much is filled depends on the memory that there is
            return gpu.total_bytes if verdict is Answer.FITS else None
        if self._reason:
            return None
        needed_bytes = self._required_bytes + budget.context_bytes + settings.reserve_bytes
        return least_total_bytes(needed_bytes, settings.margin)

    def _answer(self, budget: Budget, growth: Sequence[LineGrowth]) -> Answer:
        if fills(growth):
            return Answer.DOES_NOT_FIT
        if not self._reason and self._required_bytes <= budget.usable_bytes:
            return Answer.FITS
        cannot_run = self._curve.cannot_run(self._batch_size, budget.most_usable_bytes)
        return Answer.DOES_NOT_FIT if cannot_run else Answer.UNSURE

    def _largest(self, usable_bytes: int) -> int | None:
        if self._curve.needs_traces or not self._sizes:
            return None
        largest = nearly_largest_batch(self._curve, usable_bytes, sizes=self._sizes)
        # The next card is smaller, and a size that exceeds a larger budget exceeds a smaller one.
        self._sizes = self._sizes[: 1 + bisect.bisect_right(self._sizes, largest or 0)]
        return largest


def _budget(gpu: Gpu, settings: TuneSettings, estimate: Estimate | None = None) -> Budget:
    """Budget of a card; one of which nothing is usable if the settings leave no memory for the allocator.

    Args:
        estimate: prediction of a script, which names the process groups that the script creates; NCCL's
            memory for these is then counted. None before there is a prediction.
    """
    try:
        budget = settings.budget_on(gpu)
        if estimate is not None and settings.script is not None and estimate.communicators:
            budget = budget_among(
                budget,
                estimate.communicators,
                estimate.num_ranks,
                architecture=gpu.architecture,
                card=gpu.key,
            )
    except BudgetError:  # the reserve may leave memory only on larger cards
        context_bytes = card_named(gpu.key, settings.mesh).context_bytes
        return Budget(
            device_total_bytes=context_bytes, context_bytes=context_bytes, other_bytes=0, margin_bytes=0
        )
    return budget
