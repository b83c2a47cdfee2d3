"""Runs a whole search, from the target and its predictions to the trials and the result."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autofit.dispatch.base import Dispatcher
from autofit.errors import AutofitError, StorageError, UnpredictableCardError, UntimedCardError, UsageError
from autofit.events import EventSink, RecommendationMade, TuneFinished, TuneStarted
from autofit.hardware import gpus
from autofit.predict.predictor import Predictor, local_predictor
from autofit.settings.target import Target, gpu_label
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning import earlier_answers
from autofit.tuning.answer import Tried, answer
from autofit.tuning.found import Recommended
from autofit.tuning.opened_study import open_study
from autofit.tuning.parallels import compare_parallels
from autofit.tuning.predictions import Predicted, predict
from autofit.tuning.result import CardResults, TuneResult
from autofit.tuning.scope import default_algo
from autofit.tuning.step_lessons import learn_from
from autofit.tuning.trials import Measuring, PredictedTrials, TrialsInReach
from autofit.tuning.tuner import Limits, Tuner
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import Setup

if TYPE_CHECKING:
    from autofit.study.search_record import RecommendedTime

_log = logging.getLogger(__name__)


def _dispatcher(settings: TuneSettings, emit: EventSink) -> Dispatcher:
    """Dispatcher that the settings name: this machine, or a Ray cluster with the wanted cards."""
    # Only what is measured needs a dispatcher, whose modules take a tenth of the time of a predicted answer.
    from autofit.dispatch.connect import connect
    from autofit.dispatch.requests import Wishes

    # A card of this machine was compared with the target before; a cluster's cards are chosen by their type.
    card = settings.gpu if settings.address is not None else None
    return connect(
        settings.dispatch,
        settings.address,
        wishes=Wishes(
            resources=dict(settings.resources),
            accelerator_types=() if card is None else card.accelerator_types,
        ),
        node_wait_seconds=settings.node_wait_seconds,
        emit=emit,
    )


def run(
    settings: TuneSettings,
    workload: WorkloadRef,
    *,
    emit: EventSink,
    connect: Callable[[TuneSettings, EventSink], Dispatcher] = _dispatcher,
    predictor_of: Callable[[Setup], Predictor] | None = None,
) -> TuneResult:
    """Result of a search for the settings; a stored one if an equal search was done before.

    It is called by `tune` and the command line. With several kinds of parallelism, each is searched by
    itself.

    Args:
        emit: called with each event.
        connect: makes the dispatcher, which runs measured trials; called only if there are any.
        predictor_of: returns an existing predictor for a setup (mode, ranks, kind of batches), used if
            nothing is measured; None to make new ones.
    """
    with Measuring(lambda: connect(settings, emit), emit=emit) as measuring:
        if not settings.parallels:
            return _answered(settings, workload, measuring, emit, predictor_of)
        return compare_parallels(
            settings, lambda one: _answered(one, workload, measuring, emit, predictor_of), emit
        )


def _answered(
    settings: TuneSettings,
    workload: WorkloadRef,
    measuring: Measuring,
    emit: EventSink,
    predictor_of: Callable[[Setup], Predictor] | None,
) -> TuneResult:
    """Result of one search, or the stored result of an equal earlier search."""
    asked = earlier_answers.question(
        settings, workload, local_gpus=gpus.local_gpus, reachable=measuring.devices
    )
    earlier = None if asked is None or settings.fresh else earlier_answers.find(asked)
    if earlier is not None:
        usable_bytes = earlier.budget.usable_bytes
        emit(
            TuneStarted(
                workload=workload.name,
                gpu=gpu_label(settings, earlier.device),
                budget_bytes=usable_bytes,
                study=earlier.study,
                started_seconds=time.time(),
            )
        )
        result = earlier
    else:
        result, sources = _search(settings, workload, measuring, emit, predictor_of)
        if asked is not None:
            earlier_answers.keep(asked, result, sources)
        # The dispatcher's notes are about this run only, so they are not stored with the answer.
        result = dataclasses.replace(result, notes=(*result.notes, *measuring.notes))
    best = result.best
    emit(
        TuneFinished(
            workload=workload.name,
            best_batch=None if best is None else best.batch_size,
            best_knobs=None if best is None else best.knobs,
            num_trials=0 if result.cached else len(result.trials),
            wall_seconds=result.wall_seconds,
        )
    )
    return result


def run_each(on_cards: Sequence[TuneSettings], workload: WorkloadRef, *, emit: EventSink) -> CardResults:
    """Results of one search on several cards, all predicted from the same traces.

    Args:
        on_cards: settings that differ only in the card.

    Raises:
        UsageError: the settings ask for a measurement, or for step times, which are predicted for none of the
            cards.
        WorkloadFailedError: the workload fails, or is predicted on none of the cards.
    """
    _require_predicted(on_cards[0])
    fresh = on_cards[0].fresh
    predictor_of = functools.cache(
        lambda setup: local_predictor(workload, setup=setup, emit=emit, several=True, fresh=fresh)
    )
    answers: list[TuneResult] = []
    refused: dict[str, AutofitError] = {}
    for settings in on_cards:
        predicted = dataclasses.replace(settings, probe="predict")
        try:
            answers.append(run(predicted, workload, emit=emit, predictor_of=predictor_of))
        except (UnpredictableCardError, UntimedCardError) as error:
            assert settings.gpu is not None
            refused[settings.gpu.key] = error
    if not answers:
        raise next(iter(refused.values()))
    return CardResults(
        answers=tuple(answers), unanswered={key: error.message for key, error in refused.items()}
    )


def _require_predicted(settings: TuneSettings) -> None:
    """Raises `UsageError` if settings for several cards ask for a measurement, which is not possible."""
    wants = (
        "--probe measure" if settings.probe == "measure"
        else f"--device {settings.device}" if settings.device != "auto"
        else "--address" if settings.address is not None
        else "--study" if settings.study is not None
        else None
    )  # fmt: skip
    if wants is not None:
        raise UsageError(
            f"several cards are only predicted and cannot be combined with {wants}: drop {wants}, or let "
            "`autofit submit` make a job for each card"
        )


def _search(
    settings: TuneSettings,
    workload: WorkloadRef,
    measuring: Measuring,
    emit: EventSink,
    predictor_of: Callable[[Setup], Predictor] | None,
) -> tuple[TuneResult, dict[str, str] | None]:
    """Runs a search; returns its result, and the digest of each file that the workload used, by path."""
    predicted = predict(settings, workload, measuring, emit, predictor_of)
    tried = _try(settings, predicted, measuring, emit)
    learn_from(workload, tried.trials, predicted.curves.by_knobs)
    return answer(settings, predicted, tried, measuring, emit), predicted.predictor.traces.sources


def _try(settings: TuneSettings, predicted: Predicted, measuring: Measuring, emit: EventSink) -> Tried:
    """Runs a search's trials, recorded in its study, and returns them with the conclusions."""
    target, space, curves = predicted.target, predicted.space, predicted.curves
    with open_study(settings, predicted) as study:
        emit(
            TuneStarted(
                workload=study.opened.workload,
                gpu=study.opened.gpu,
                budget_bytes=target.budget.usable_bytes,
                study=study.name,
                started_seconds=study.opened.opened_seconds,
            )
        )
        frontier = Tuner(
            spec=predicted.spec,
            study=study,
            curves=curves,
            trials=PredictedTrials(curves)
            if target.probe is None
            else TrialsInReach(
                measuring,
                curves,
                settings=space.settings,
                min_batch=space.min_batch,
                budget_bytes=target.budget.usable_bytes,
            ),
            emit=emit,
            limits=_limits(settings, target, time.monotonic() - predicted.started),
            caps=predicted.caps,
        ).run()
        recommended = frontier.recommended(default_algo(settings, target))
        recommended_time = _time_of(recommended)
        try:
            study.recommend(
                None if recommended is None else (recommended.knobs, recommended.batch_size),
                recommended_time,
            )
        except StorageError as error:  # only dashboards read it: the answer stays valid
            _log.warning("what is recommended could not be stored: %s", error)
        emit(
            RecommendationMade(
                study=study.name,
                knobs=None if recommended is None else recommended.knobs,
                batch_size=None if recommended is None else recommended.batch_size,
                **recommended_time._asdict(),
            )
        )
        return Tried(
            frontier=frontier,
            recommended=recommended,
            trials=tuple(record.outcome for record in study.outcomes()),
            pruned=study.pruned,
            study=study.name,
            fingerprint=study.fingerprint,
        )


def _time_of(recommended: Recommended | None) -> RecommendedTime:
    from autofit.study.search_record import RecommendedTime

    if recommended is None:
        return RecommendedTime()
    seconds = recommended.predicted_step_seconds
    return RecommendedTime(None if seconds is None else seconds.likely, recommended.step_time_error)


def _limits(settings: TuneSettings, target: Target, seconds_gone: float) -> Limits:
    """Limits on a search's trials and seconds; the seconds that predictions took are subtracted.

    Args:
        seconds_gone: seconds since the search began.
    """
    return Limits(
        num_trials=None if target.probe is None else settings.max_trials,
        seconds=None if settings.max_seconds is None else settings.max_seconds - seconds_gone,
    )
