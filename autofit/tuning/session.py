"""A search put together: target, predictions, study, dispatcher, tuner, result."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import workers
from autofit.dispatch.base import Dispatcher
from autofit.dispatch.connect import connect as connected
from autofit.dispatch.requests import Wishes
from autofit.errors import AutofitError, StorageError, UnpredictableCardError, UsageError
from autofit.events import EventSink, RecommendationMade, TuneFinished, TuneStarted
from autofit.hardware import gpus
from autofit.identity import versions
from autofit.predict import plan_sources
from autofit.predict.confidence import shipped_residuals
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import Predictor, local_predictor
from autofit.questions.advice import Advice, Adviser
from autofit.questions.late_failure import LengthsAnswer, of_lengths
from autofit.search.agenda import Goal
from autofit.settings.goals import Maximized, Objective
from autofit.settings.target import Target, gpu_label, resolve_target
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning import earlier_answers
from autofit.tuning.alternatives import card_answers, compare_kinds, with_risks
from autofit.tuning.curves import CurveSet, curves_of
from autofit.tuning.longest import at_their_longest
from autofit.tuning.result import BatchKinds, Best, CardAnswer, CardResults, Recommended, TuneResult
from autofit.tuning.scope import (
    as_the_script_has_it,
    capped,
    conv_algos,
    default_algo,
    pruning_of,
    search_space,
)
from autofit.tuning.trials import CurveTrials, Measuring, TrialsInReach
from autofit.tuning.tuner import Limits, Tuner
from workers.knobs import Knobs
from workers.protocol import Probe, TrialOutcome, TrialSpec, WorkloadRef
from workers.run import start_predictor
from workers.setup import LIKELY_SHARE

if TYPE_CHECKING:
    from autofit.search.pruning import PrunedSetting
    from autofit.search.space import SearchSpace
    from autofit.study.study import TuningStudy
    from autofit.tuning.frontier import Frontier

_log = logging.getLogger(__name__)

# A size that fits for three steps may fail later, as fragments gather; the CPU's heap shows it sooner.
_SOAK_STEPS = {Probe.CUDA: 20, Probe.CPU: 5}


def _dispatcher(settings: TuneSettings, emit: EventSink) -> Dispatcher:
    # A card of this machine was held against the one that is meant; a cluster's are told by their type.
    card = settings.gpu if settings.address is not None else None
    return connected(
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
    predictor: Predictor | None = None,
) -> TuneResult:
    """Answers resolved settings, by an earlier answer or by a search; `tune` and the command line end here.

    Args:
        emit: takes the events.
        connect: makes the dispatcher of measured trials, once there are any.
        predictor: knows the workload already, for a target that is predicted alone.
    """
    if workload.script is None and settings.device != "cpu":
        with suppress(OSError):  # the first prediction says it in words
            start_predictor()  # its import of torch takes as long as the look for an earlier answer
    with Measuring(lambda: connect(settings, emit), emit=emit) as measuring:
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
            result, sources = _search(settings, workload, measuring, emit, predictor)
            if asked is not None:
                earlier_answers.keep(asked, result, sources)
            # Of this run alone, so they are not kept with the answer.
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
    """Answers the same question for several cards, all of them predicted from the same traces.

    Args:
        on_cards: settings that differ in the card alone.

    Raises:
        UsageError: they ask for a measurement.
        WorkloadFailedError: the workload fails, or is predicted on none of the cards.
    """
    _require_predicted(on_cards[0])
    predictor = local_predictor(workload, setup=on_cards[0].setup, emit=emit)
    answers: list[TuneResult] = []
    refused: dict[str, UnpredictableCardError] = {}
    for settings in on_cards:
        predicted = dataclasses.replace(settings, probe="predict")
        try:
            answers.append(run(predicted, workload, emit=emit, predictor=predictor))
        except UnpredictableCardError as error:
            assert settings.gpu is not None
            refused[settings.gpu.key] = error
    if not answers:
        raise next(iter(refused.values()))
    return CardResults(
        answers=tuple(answers), unanswered={key: error.message for key, error in refused.items()}
    )


def _require_predicted(settings: TuneSettings) -> None:
    """Refuses what measures: the cards of a table are hardly all here."""
    wants = (
        "--probe measure" if settings.probe == "measure"
        else f"--device {settings.device}" if settings.device != "auto"
        else "--objective throughput" if settings.objective is Objective.THROUGHPUT
        else "--address" if settings.address is not None
        else "--study" if settings.study is not None
        else None
    )  # fmt: skip
    if wants is not None:
        raise UsageError(
            f"several cards are predicted only and cannot be combined with {wants}: drop it, or let `autofit "
            "submit` make a job for each card"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predicted:
    """What a search is of, and what is known before anything is tried.

    Attributes:
        started: when the search began, monotonic.
        spec: what all its trials have in common.
        caps: why no larger batch than those of the space can be run, by setting.
        notes: what was left out, and what should be known of the curves.
    """

    started: float
    target: Target
    spec: TrialSpec
    predictor: Predictor
    space: SearchSpace
    curves: CurveSet
    caps: dict[Knobs, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """What the study holds once nothing is left to try.

    Attributes:
        study: its name.
    """

    frontier: Frontier
    recommended: Recommended | None
    trials: tuple[TrialOutcome, ...]
    pruned: tuple[PrunedSetting, ...]
    study: str
    fingerprint: str


def _search(
    settings: TuneSettings,
    workload: WorkloadRef,
    measuring: Measuring,
    emit: EventSink,
    predictor: Predictor | None,
) -> tuple[TuneResult, dict[str, str] | None]:
    """Predicts, tries and answers; with the answer come the files that the workload used."""
    predicted = _predict(settings, workload, measuring, emit, predictor)
    tried = _try(settings, predicted, measuring, emit)
    return _answer(settings, predicted, tried, measuring, emit), predicted.predictor.traces.sources


def _predict(
    settings: TuneSettings,
    workload: WorkloadRef,
    measuring: Measuring,
    emit: EventSink,
    predictor: Predictor | None,
) -> _Predicted:
    started = time.monotonic()
    target = resolve_target(settings, local_gpus=gpus.local_gpus, reachable=measuring.devices)
    _require_measurement(settings, target)
    of_script = workload.script is not None
    algos = conv_algos(settings, target, of_script=of_script)
    if not of_script:  # which gets processes of its own
        with suppress(OSError):  # the first prediction says it in words
            start_predictor(for_host=target.probe is Probe.CPU, several=True)
    if target.probe is not None:
        measuring.begin_to_connect()
    spec = _common_spec(settings, workload, target)
    predictor = predictor or _predictor(spec, target, emit)
    with predictor.traces.tracing_ahead():
        space, left_out = search_space(settings, algos, predictor)
        space, notes_on_script = as_the_script_has_it(space, predictor)
        if settings.maximize is Maximized.SEQ_LEN:
            space, on_sizes = at_their_longest(
                space,
                target,
                predictor,
                batch_size=settings.batch_size or 1,
                allows_long=settings.setup.allows_long,
                risk=settings.risk,
            )
            left_out = (*on_sizes, *left_out)
        predictor.expect_curves(space.settings)
        if target.probe is not Probe.CPU:
            predictor.prepare(space.settings[0], target.card, space.min_batch)
        curves, notes = curves_of(
            space, target, predictor, spec, measuring.submit, risk=settings.risk, address=settings.address
        )
    space, caps = capped(space, curves)
    return _Predicted(
        started=started,
        target=target,
        spec=spec,
        predictor=predictor,
        space=space,
        curves=curves,
        caps=caps,
        notes=(*left_out, *notes_on_script, *notes),
    )


def _try(settings: TuneSettings, predicted: _Predicted, measuring: Measuring, emit: EventSink) -> _Tried:
    target, space, curves = predicted.target, predicted.space, predicted.curves
    with _open_study(settings, predicted) as study:
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
            trials=CurveTrials(curves)
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
        try:
            study.recommend(None if recommended is None else (recommended.knobs, recommended.batch_size))
        except StorageError as error:  # dashboards alone read it: the answer stands
            _log.warning("what is recommended could not be stored: %s", error)
        emit(
            RecommendationMade(
                study=study.name,
                knobs=None if recommended is None else recommended.knobs,
                batch_size=None if recommended is None else recommended.batch_size,
            )
        )
        return _Tried(
            frontier=frontier,
            recommended=recommended,
            trials=tuple(record.outcome for record in study.outcomes()),
            pruned=study.pruned,
            study=study.name,
            fingerprint=study.fingerprint,
        )


def _answer(
    settings: TuneSettings, predicted: _Predicted, tried: _Tried, measuring: Measuring, emit: EventSink
) -> TuneResult:
    target, space, curves, frontier = predicted.target, predicted.space, predicted.curves, tried.frontier
    best = frontier.best()
    kinds, not_compared = _kinds(settings, predicted, frontier, measuring, emit)
    return TuneResult(
        workload=predicted.spec.workload.name,
        budget=target.budget,
        device=next((trial.device for trial in reversed(tried.trials) if trial.was_run), target.device),
        best=best,
        recommended=tried.recommended,
        frontier=with_risks(
            frontier.entries(),
            curves.by_knobs,
            budget_bytes=target.budget.usable_bytes,
            sizes=space.sizes,
            emit=emit,
        ),
        pruned=tried.pruned,
        trials=tried.trials,
        study=tried.study,
        architectures=target.card.architectures,
        fingerprint=tried.fingerprint,
        versions=versions(),
        estimate=_estimate(curves, space, best),
        cards=_cards(settings, space, curves, best, emit),
        lengths=_lengths(settings, predicted, best),
        batch_kinds=kinds,
        num_ranks=settings.setup.num_ranks,
        parallel=str(settings.setup.parallel) if settings.setup.parallel else "",
        conv_plan=None
        if best is None
        else curves.conv_plan(best.knobs, best.batch_size, target.budget.usable_bytes),
        advice=_advice(settings, predicted, frontier, emit),
        notes=(*frontier.notes(), *predicted.notes, *not_compared, *_on_ranks(settings)),
        risk=settings.risk,
        objective=settings.objective,
        knee=frontier.knee(),
        stopped_by=frontier.stopped_by,
        wall_seconds=time.monotonic() - predicted.started,
        answered_seconds=time.time(),
    )


def _lengths(settings: TuneSettings, predicted: _Predicted, best: Best | None) -> LengthsAnswer | None:
    """What the lengths of the data mean for the batches of the best setting."""
    lengths = settings.capped_lengths
    if lengths is None:
        return None
    knobs = predicted.space.settings[0] if best is None else best.knobs
    surface = predicted.predictor.surface(knobs, predicted.target.card, risk=settings.risk)
    return of_lengths(
        lengths,
        surface,
        largest_batch=None if best is None else best.batch_size,
        max_batch=settings.max_batch,
        batching=settings.batching,
        budget_bytes=predicted.target.budget.usable_bytes,
    )


def _advice(
    settings: TuneSettings, predicted: _Predicted, frontier: Frontier, emit: EventSink
) -> Advice | None:
    """What would make the smallest size fit, where none is predicted to; a script's settings are its own."""
    target, space = predicted.target, predicted.space
    nothing_fits = frontier.best() is None and frontier.stopped_by is None
    if not nothing_fits or settings.script is not None or target.probe is not None:
        return None
    try:
        return Adviser(
            predicted.predictor,
            space.settings[0],
            space.min_batch,
            risk=settings.risk,
            fixed=settings.fixed_knobs,
            emit=emit,
        ).on(target.card, target.budget.usable_bytes)
    except AutofitError:  # what cannot be predicted has no advice either; its trials say why
        return None


def _kinds(
    settings: TuneSettings,
    predicted: _Predicted,
    frontier: Frontier,
    measuring: Measuring,
    emit: EventSink,
) -> tuple[BatchKinds | None, tuple[str, ...]]:
    """How far each kind of batches gets, where the workload makes both; and why that is not known."""
    if not predicted.predictor.traces.has_batch_kinds:
        return None, ()
    target, spec, space = predicted.target, predicted.spec, predicted.space

    def predict_other_kind(knobs: Knobs) -> CurveSet:
        other = dataclasses.replace(spec, setup=spec.setup.with_other_batches())
        alone = dataclasses.replace(space, choices={}, fixed=knobs)
        predicts = _predictor(other, target, emit)
        return curves_of(
            alone, target, predicts, other, measuring.submit, risk=settings.risk, address=settings.address
        )[0]

    return compare_kinds(
        frontier,
        predicted.curves,
        predict_other_kind,
        space=space,
        tuned_kind=spec.setup.batch_kind,
        budget_bytes=target.budget.usable_bytes,
    )


def _predictor(spec: TrialSpec, target: Target, emit: EventSink) -> Predictor:
    """The predictor for the target; what PyTorch's release changes of a CPU step only guides the search."""
    if target.probe is Probe.CPU:
        return Predictor(
            spec.workload,
            workers.run,
            setup=spec.setup,
            emit=emit,
            for_host=True,
            num_threads=spec.num_threads,
        )
    plan_sources.prepare(target.card.architecture)
    return local_predictor(spec.workload, setup=spec.setup, emit=emit)


def _require_measurement(settings: TuneSettings, target: Target) -> None:
    """Throughput is measured or not known: a prediction has no times."""
    if settings.objective is Objective.THROUGHPUT and target.probe is None:
        raise UsageError(
            "--objective throughput needs measured steps, but there is no GPU to measure on: leave it out, "
            "name a cluster with --address, or measure the CPU with --device cpu"
        )


def _limits(settings: TuneSettings, target: Target, seconds_gone: float) -> Limits:
    """The limits of what is left to do, once predictions are made."""
    return Limits(
        num_trials=None if target.probe is None else settings.max_trials,
        seconds=None if settings.max_seconds is None else settings.max_seconds - seconds_gone,
    )


def _goal(settings: TuneSettings, spec: TrialSpec) -> Goal:
    soak_steps = settings.soak_steps
    if soak_steps is None:
        soak_steps = _SOAK_STEPS.get(spec.probe, 0)
    return Goal(
        objective=settings.objective,
        num_steps=spec.num_steps,
        soak_steps=0 if spec.probe is Probe.PREDICT else soak_steps,
    )


def _open_study(settings: TuneSettings, predicted: _Predicted) -> TuningStudy:
    from autofit.study.study import TuningStudy

    spec, target, space, curves = predicted.spec, predicted.target, predicted.space, predicted.curves
    return TuningStudy.open(
        space,
        budget_bytes=target.budget.usable_bytes,
        settings=_identity(settings, spec, target, curves, predicted.predictor.observations.digest),
        label=f"{spec.workload.name}-{target.device.name}",
        name=settings.study,
        storage=settings.storage,
        wait_seconds=settings.storage_wait_seconds,
        fresh=settings.fresh,
        curves=curves.guess,
        seed=0,
        goal=_goal(settings, spec),
        workload=spec.workload.name,
        gpu=gpu_label(settings, target.device),
        pruning=pruning_of(settings, target, space, curves),
    )


def _identity(
    settings: TuneSettings, spec: TrialSpec, target: Target, curves: CurveSet, observations: str
) -> dict[str, Any]:
    """What beside space and budget decides the outcomes of a study.

    The trace stands for the code that the workload's own file imports.
    """
    share, parallel = settings.setup.nonzero_share, settings.setup.parallel
    return {
        **({"parallel": str(parallel), "rank": settings.setup.rank} if parallel.shards else {}),
        **({} if share == LIKELY_SHARE else {"nonzero_share": share}),
        **({"observations_sha256": observations} if observations else {}),
        "workload": dataclasses.asdict(dataclasses.replace(spec.workload, payload_base64=None)),
        "trace_sha256": curves.trace_digest,
        "mode": settings.setup.mode,
        "worst_case": settings.setup.is_worst_case,
        "num_ranks": settings.setup.num_ranks,
        "risk": settings.risk,
        "residuals_sha256": shipped_residuals().digest,
        "probe": spec.probe,
        "card": target.card.name,
        "architectures": target.card.architectures,
        "num_threads": spec.num_threads,
        "versions": versions(),
    }


def _num_threads(settings: TuneSettings, target: Target) -> int | None:
    """Threads of a CPU trial: they move its memory, so the number is fixed for all trials of a study."""
    if target.probe is not Probe.CPU:
        return None
    return settings.num_threads or len(os.sched_getaffinity(0))


def _common_spec(settings: TuneSettings, workload: WorkloadRef, target: Target) -> TrialSpec:
    return TrialSpec(
        workload=workload,
        batch_size=1,
        probe=target.probe or Probe.PREDICT,
        setup=settings.setup,
        budget_bytes=target.budget.usable_bytes,
        architecture=target.card.architecture,
        num_threads=_num_threads(settings, target),
        deadline_seconds=settings.deadline_seconds,
        is_own_budget=target.is_own_budget,
    )


def _on_ranks(settings: TuneSettings) -> tuple[str, ...]:
    parallel = settings.setup.parallel
    if not parallel:
        return ()
    defaults = (
        f"{parallel}, with PyTorch's defaults"
        if parallel.shards
        else "with the defaults of DistributedDataParallel: gradient_as_bucket_view=True would save the "
        "memory of its buckets"
    )
    return (
        f"one of {parallel.num_ranks} ranks is predicted, {defaults}. Nothing was measured, as a trial here "
        "would run one rank alone",
    )


def _estimate(curves: CurveSet, space: SearchSpace, best: Best | None) -> Estimate | None:
    """The prediction of the answer, or of the smallest size where nothing fits."""
    knobs, batch_size = (
        (space.settings[0], space.min_batch) if best is None else (best.knobs, best.batch_size)
    )
    curve = curves.by_knobs.get(knobs)
    return None if curve is None else curve(batch_size)


def _cards(
    settings: TuneSettings, space: SearchSpace, curves: CurveSet, best: Best | None, emit: EventSink
) -> tuple[CardAnswer, ...]:
    """The best setting's batch on the cards that `--gpu-mem` may mean."""
    curve = None if best is None else curves.by_knobs.get(best.knobs)
    if settings.gpu_mem_bytes is None or best is None or curve is None or curve.needs_traces:
        return ()
    return card_answers(
        curve,
        gpus.gpus_sold_as(settings.gpu_mem_bytes),
        margin=settings.margin,
        reserve_bytes=settings.reserve_bytes,
        mesh=settings.setup.parallel.mesh,
        sizes=space.sizes(best.knobs),
        emit=emit,
    )
