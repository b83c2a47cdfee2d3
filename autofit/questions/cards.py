"""Finds the cards on which one configuration fits; the JSON document is `autofit.cards/1`."""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autofit.errors import BudgetError, ExitCode
from autofit.events import EventSink, Progress, ignore
from autofit.explain.timing import StepSeconds
from autofit.hardware.budget import Budget, budget_among
from autofit.hardware.card import card_named
from autofit.hardware.gpus import Gpu, oldest_first
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate, Interval
from autofit.predict.predictor import Predictor
from autofit.predict.whole_run import LineGrowth, fills
from autofit.questions.advice import Advice, Adviser
from autofit.questions.check import Answer
from autofit.questions.levers import Lever, levers
from autofit.search.boundary import nearly_largest_batch
from autofit.search.sizes import sizes_for
from autofit.settings.goals import Risk
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, Verdict
from autofit_workers.spec.setup import Parallel

CARDS_SCHEMA = "autofit.cards/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsQuestion:
    """Inputs of the question: which GPUs does this configuration fit on?

    Attributes:
        gpus: cards to predict for.
        batch_size: samples a batch; None for a script's own batch size.
        with_traces: whether to try, if the batch does not fit, also changes that each need another trace of
            the step, which takes seconds.
        prices: price of an hour of each card, by the card's key.
        parallels: kinds of parallelism to predict on each card, such as `fsdp:2` and `fsdp:8`, by number of
            ranks, ascending; empty if the settings name one kind. With several kinds no changes are tried.
    """

    gpus: tuple[Gpu, ...]
    batch_size: int | None
    with_traces: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)
    parallels: tuple[Parallel, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsAnswer:
    """Results for one configuration on several cards; `to_json()` is the document `autofit.cards/1`.

    Attributes:
        workload: name of the workload.
        mode: `train` or `infer`.
        batch_size: samples a batch; with several ranks, of one rank.
        knobs: knob setting (precision, optimizer, …) of the prediction.
        risk: which value of the predicted peak has to be within the memory for the verdict `fits`: the likely
            one, the high end of its interval, or the worst case.
        cards: one result for each card, the smallest memory first; if several numbers of GPUs were asked for,
            one for each card and number.
        epoch_samples: samples of an epoch, if the user gave them.
        num_levers_untried: number of single changes that were not tried, because each needs another trace of
            the step.
        evidence: `predicted`.
        convolves: whether the step has convolutions.
        batch_kind: `typical` or `worst` if the workload makes both; else None.
        num_ranks: number of processes that train together, of which one is predicted; 1 for a single process.
            If several numbers were asked for, the smallest.
        parallel: kind of parallelism of the ranks, such as `fsdp:8`; empty for a single process.
        fewest_gpus: if several numbers of GPUs were asked for, the smallest on which the configuration fits,
            by card key; None for a card on which it fits with no number. Else the whole field is None.
        versions: versions of autofit and PyTorch.
    """

    workload: str
    mode: str
    batch_size: int
    knobs: Knobs
    risk: Risk
    cards: tuple[CardFit, ...]
    epoch_samples: int | None = None
    num_levers_untried: int = 0
    evidence: Evidence = Evidence.PREDICTED
    convolves: bool = True
    batch_kind: str | None = None
    num_ranks: int = 1
    parallel: str = ""
    fewest_gpus: dict[str, int | None] | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def fitting(self) -> tuple[CardFit, ...]:
        return tuple(card for card in self.cards if card.verdict is Answer.FITS)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command: 0 if the configuration fits on any of the cards."""
        return ExitCode.FOUND if self.fitting else ExitCode.NOTHING_FITS

    def to_json(self) -> str:
        return json.dumps({"schema": CARDS_SCHEMA, **dataclasses.asdict(self)}, indent=2)


def which_cards(
    predictor: Predictor, settings: TuneSettings, question: CardsQuestion, *, emit: EventSink = ignore
) -> CardsAnswer:
    """Predicts whether one configuration fits on each of several cards, from the same traces for all cards.

    Cards of one architecture differ only in their memory, so a card adds no trace, only one evaluation
    of the predicted memory.

    Args:
        settings: the configuration, the memory that is kept free for others, and which value of the peak has
            to fit; a card in the settings is ignored.
        question: the cards, the batch size, and what else is asked for each card.
        emit: called with a progress event for each change that is tried.

    Raises:
        UsageError: the settings name several configurations, as for a search.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    knobs = settings.configuration("a table of cards")
    asked = question.batch_size
    if asked is None:
        asked = predictor.traces.own_batch_size(knobs)
    batch_size = predictor.trace(knobs, asked).batch_size  # smaller if the whole data set is
    ordered = sorted(question.gpus, key=lambda gpu: (gpu.total_bytes, gpu.key))
    # The step may be unpredictable only on AMD's cards, so NVIDIA's come first.
    architectures = oldest_first(gpu.architecture for gpu in ordered)
    smallest = {gpu.architecture: gpu.key for gpu in reversed(ordered)}
    any_card = card_named(smallest[architectures[0]], settings.mesh)
    curve = predictor.curve(knobs, any_card, risk=settings.risk)
    if not predictor.confirm(knobs, any_card, batch_size):
        curve = predictor.curve(knobs, any_card, risk=settings.risk)
    max_batch = min(settings.max_batch, predictor.traces.num_samples or settings.max_batch)
    kinds: dict[str, _Kind | Unpredictable] = {}
    emit(Progress(stage="cards"))
    for name in architectures:
        card = card_named(smallest[name])
        why = curve.why_unpredictable_on(card, batch_size)
        kinds[name] = (
            _Kind(curve.on(card), batch_size, sizes_for(knobs, min_batch=1, max_batch=max_batch))
            if why is None
            else Unpredictable(why)
        )
    fits = {gpu: kinds[gpu.architecture].on(gpu, settings) for gpu in reversed(ordered)}
    num_untried = 0
    if settings.script is None and not question.parallels:
        adviser = Adviser(
            predictor,
            knobs,
            batch_size,
            risk=settings.risk,
            fixed=settings.fixed_knobs,
            given=settings.given_knobs,
            with_traces=question.with_traces,
            emit=emit,
        )
        # If there is no time for all cards, those that lack the least memory come first.
        fits = {gpu: _advised(fit, gpu, adviser, settings) for gpu, fit in fits.items()}
        num_untried = adviser.num_untried
    fits = _timed(fits, curve, batch_size, settings, question.prices)
    samples_per_step = knobs.samples_per_step(batch_size, settings.setup.parallel.num_batches)
    estimate = curve(batch_size)
    return CardsAnswer(
        workload=estimate.workload,
        mode=estimate.mode,
        batch_size=batch_size,
        knobs=estimate.knobs,
        risk=settings.risk,
        cards=tuple(dataclasses.replace(fits[gpu], samples_per_step=samples_per_step) for gpu in ordered),
        epoch_samples=settings.epoch_samples,
        num_levers_untried=num_untried,
        convolves=estimate.convolves,
        batch_kind=estimate.batch_kind,
        num_ranks=estimate.num_ranks,
        parallel=settings.setup.parallel.name,
        versions=estimate.versions,
    )


def _timed(
    fits: Mapping[Gpu, CardFit],
    curve: PredictedCurve,
    batch_size: int,
    settings: TuneSettings,
    prices: Mapping[str, float],
) -> dict[Gpu, CardFit]:
    """Results by card, completed by the predicted step time and the price of samples.

    Args:
        prices: price of an hour of each card, by the card's key.
    """
    times = {
        gpu: time
        for gpu, fit in fits.items()
        if fit.interval is not None
        and (time := curve.on(card_named(gpu.key, settings.mesh)).step_time(batch_size)) is not None
    }
    fitting = [gpu for gpu in times if fits[gpu].verdict is Answer.FITS]
    hourly = {gpu: prices[gpu.key] * fit.num_gpus for gpu, fit in fits.items() if gpu.key in prices}
    costs = {gpu: time.likely_seconds * hourly[gpu] for gpu, time in times.items() if gpu in hourly}
    fastest = min((times[gpu].likely_seconds for gpu in fitting), default=None)
    cheapest = min((costs[gpu] for gpu in fitting if gpu in costs), default=None)

    def timed(gpu: Gpu) -> CardFit:
        """Result for a card, completed by its step time and prices."""
        fit, time = dataclasses.replace(fits[gpu], price=prices.get(gpu.key)), times.get(gpu)
        if time is None:
            return fit
        rate = None if time.stated is None else time.samples_per_second
        return dataclasses.replace(
            fit,
            step_seconds=time.stated,
            samples_per_second=rate,
            epoch_seconds=settings.epoch_samples / rate if settings.epoch_samples and rate else None,
            relative_step_time=time.likely_seconds / fastest if fastest and gpu in fitting else None,
            samples_per_price=rate * 3600 / hourly[gpu] if rate is not None and gpu in hourly else None,
            relative_price=costs[gpu] / cheapest if cheapest and gpu in fitting and gpu in costs else None,
        )

    return {gpu: timed(gpu) for gpu in fits}


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

    def on(self, gpu: Gpu, settings: TuneSettings) -> CardFit:
        """Predicted result for a card of the architecture; to be called for the largest card first."""
        budget = _budget(gpu, settings, self._estimate)
        context_bytes, usable_bytes = budget.context_bytes, budget.usable_bytes
        limit_bytes = max(0, gpu.total_bytes - settings.reserve_bytes - context_bytes)
        there = self._curve.within(self._batch_size, limit_bytes)
        growth = self._curve.growth(self._batch_size, usable_bytes)
        likely = self._curve.at_risk(Risk.LIKELY).verdict(self._batch_size, usable_bytes)
        return CardFit(
            gpu=gpu.key,
            architecture=gpu.architecture,
            total_bytes=gpu.total_bytes,
            usable_bytes=usable_bytes,
            verdict=self._answer(budget, growth),
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
        )

    def _answer(self, budget: Budget, growth: Sequence[LineGrowth]) -> Answer:
        if fills(growth):
            return Answer.DOES_NOT_FIT
        curve, batch_size = self._curve, self._batch_size
        if not self._reason and curve.peak_reserved_bytes(batch_size) <= budget.usable_bytes:
            return Answer.FITS
        cannot_run = curve.cannot_run(batch_size, budget.most_usable_bytes)
        return Answer.DOES_NOT_FIT if cannot_run else Answer.UNSURE

    def _largest(self, usable_bytes: int) -> int | None:
        if self._curve.needs_traces or not self._sizes:
            return None
        largest = nearly_largest_batch(self._curve, usable_bytes, sizes=self._sizes)
        # The next card is smaller, and a size that exceeds a larger budget exceeds a smaller one.
        self._sizes = self._sizes[: 1 + bisect.bisect_right(self._sizes, largest or 0)]
        return largest


def _advised(fit: CardFit, gpu: Gpu, adviser: Adviser, settings: TuneSettings) -> CardFit:
    """Result for a card, with advice on changes added if the batch does not fit."""
    if fit.verdict is Answer.FITS or fit.reason or fit.usable_bytes == 0:
        return fit
    advice = adviser.on(card_named(gpu.key, settings.mesh), fit.usable_bytes)
    options = () if advice.combination is None else advice.combination.options
    single = levers(settings.configuration("a table of cards"))
    lever = next((each for each in single if options == (each.how,)), None)
    return dataclasses.replace(fit, advice=advice, lever=lever)


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
