"""Advice for one configuration, on the card that its settings name and on two of them."""

from __future__ import annotations

from autofit.dispatch.base import Devices
from autofit.errors import AutofitError
from autofit.events import EventSink
from autofit.hardware import gpus
from autofit.predict.predictor import Predictor
from autofit.questions.advice import Advice, Adviser, TwoCards
from autofit.settings.goals import Risk
from autofit.settings.target import Target, resolve_target
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import GENERATE, INFER, Parallel

_BOTH = Parallel.parse("fsdp:2")  # with ddp, ranks hold copies of all weights and save nothing


def advice_on(
    settings: TuneSettings,
    predictor: Predictor,
    knobs: Knobs,
    batch_size: int,
    target: Target,
    *,
    risk: Risk,
    emit: EventSink,
) -> Advice:
    """Advice on changes that make a configuration fit within its target's budget.

    Args:
        target: card and memory budget that the configuration has to fit.
        risk: which value of a predicted peak has to fit: the likely one, the high end, or the worst case.
        emit: called with a progress event for each change that is tried.

    Raises:
        AutofitError: the unchanged configuration cannot be predicted.
    """
    adviser = Adviser(
        predictor,
        knobs,
        batch_size,
        risk=risk,
        fixed=settings.fixed_knobs,
        given=settings.given_knobs,
        two_cards=_two_cards(settings, predictor, knobs, batch_size),
        emit=emit,
    )
    return adviser.on(target.card, target.budget.usable_bytes)


def _two_cards(
    settings: TuneSettings, predictor: Predictor, knobs: Knobs, batch_size: int
) -> TwoCards | None:
    """Setup with the model shared by two cards; None if it cannot be shared or no memory is left for it."""
    is_training = predictor.trace(knobs, batch_size).mode not in (INFER, GENERATE)
    if settings.setup.parallel or settings.parallels or knobs.global_batch is not None or not is_training:
        return None
    try:
        on_ranks = settings.with_parallel(_BOTH)
        target = resolve_target(on_ranks, local_gpus=gpus.local_gpus, reachable=nothing_to_measure_on)
    except AutofitError:
        return None
    return TwoCards(setup=on_ranks.setup, card=target.card, limit_bytes=target.budget.usable_bytes)


def nothing_to_measure_on() -> Devices:
    """Raises `AssertionError`; stands in for the search for devices where nothing may be measured."""
    raise AssertionError("this asks for no measurement")
