"""Finds the cards on which one configuration fits; the JSON document is `autofit.cards/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from autofit.errors import ExitCode
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import card_named
from autofit.hardware.gpus import Gpu
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.questions.advice import Adviser
from autofit.questions.card_fits import CardFit, OnCards, architectures_of, ordered_by_memory
from autofit.questions.check import Answer
from autofit.questions.levers import levers
from autofit.settings.goals import Risk
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence
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
    first = architectures_of(question.gpus)[0]
    any_card = card_named(first.key, settings.mesh)
    curve = predictor.curve(knobs, any_card, risk=settings.risk)
    if not predictor.confirm(knobs, any_card, batch_size):
        curve = predictor.curve(knobs, any_card, risk=settings.risk)
    emit(Progress(stage="cards"))
    max_batch = min(settings.max_batch, predictor.traces.num_samples or settings.max_batch)
    fits = OnCards(curve, question.gpus, settings, max_batch=max_batch).fits(batch_size)
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
        fits = {gpu: _advised(fit, gpu, adviser, settings) for gpu, fit in reversed(fits.items())}
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
        cards=tuple(
            dataclasses.replace(fits[gpu], samples_per_step=samples_per_step)
            for gpu in ordered_by_memory(fits)
        ),
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


def _advised(fit: CardFit, gpu: Gpu, adviser: Adviser, settings: TuneSettings) -> CardFit:
    """Result for a card, with advice on changes added if the batch does not fit."""
    if fit.verdict is Answer.FITS or fit.reason or fit.usable_bytes == 0:
        return fit
    advice = adviser.on(card_named(gpu.key, settings.mesh), fit.usable_bytes)
    options = () if advice.combination is None else advice.combination.options
    single = levers(settings.configuration("a table of cards"))
    lever = next((each for each in single if options == (each.how,)), None)
    return dataclasses.replace(fit, advice=advice, lever=lever)
