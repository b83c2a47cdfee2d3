"""Builds the result of a search once nothing is left to try."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofit.errors import AutofitError
from autofit.events import EventSink
from autofit.hardware import gpus
from autofit.identity import versions
from autofit.predict.estimate import Estimate
from autofit.questions.advice import Advice
from autofit.questions.advising import advice_on
from autofit.questions.late_failure import LengthsAnswer, of_lengths
from autofit.settings.target import Target
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.alternatives import card_answers, compare_kinds, with_risks
from autofit.tuning.compared import BatchKinds, CardAnswer
from autofit.tuning.curves import CurveSet, curves_of
from autofit.tuning.found import Best, Recommended
from autofit.tuning.predictions import Predicted, predictor_for
from autofit.tuning.result import TuneResult
from autofit.tuning.trials import Measuring
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialOutcome
from autofit_workers.spec.setup import Parallel

if TYPE_CHECKING:
    from autofit.search.pruning import PrunedSetting
    from autofit.search.space import SearchSpace
    from autofit.tuning.frontier import Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Outcomes of a search's trials, and the conclusions from them.

    Attributes:
        frontier: largest batch of every knob setting.
        recommended: configuration that a practitioner would take; None if nothing fits.
        trials: outcomes of the trials, in their order.
        pruned: knob settings whose search was cut short.
        study: name of the study, the stored record of the trials.
        fingerprint: digest of everything that decides the answer.
    """

    frontier: Frontier
    recommended: Recommended | None
    trials: tuple[TrialOutcome, ...]
    pruned: tuple[PrunedSetting, ...]
    study: str
    fingerprint: str


def answer(
    settings: TuneSettings, predicted: Predicted, tried: Tried, measuring: Measuring, emit: EventSink
) -> TuneResult:
    """Result of a search, put together from its predictions and its trials.

    Args:
        predicted: search space and predictions, made before any trial.
        tried: the trials, and what was concluded from them.
        measuring: runs measured trials, if another one is needed for the comparison of kinds of batches.
    """
    target, space, curves, frontier = predicted.target, predicted.space, predicted.curves, tried.frontier
    best = frontier.best()
    kinds, not_compared = _kinds(settings, predicted, frontier, measuring, emit)
    trace = predicted.predictor.traces.any
    ranks = settings.setup.parallel if trace is None else Parallel.named(trace.among_ranks)
    has_other_groups = trace is not None and trace.shares_as_script and trace.groups != settings.mesh
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
        versions=versions(settings.setup.torch),
        estimate=_estimate(curves, space, best),
        cards=() if has_other_groups else _cards(settings, space, curves, best, emit),
        lengths=_lengths(settings, predicted, best),
        batch_kinds=kinds,
        num_ranks=ranks.num_ranks,
        parallel=ranks.name,
        conv_plan=None
        if best is None
        else curves.conv_plan(best.knobs, best.batch_size, target.budget.usable_bytes),
        advice=_advice(settings, predicted, frontier, emit),
        notes=(*frontier.notes(), *predicted.notes, *not_compared, *_on_ranks(settings, predicted.target)),
        risk=settings.risk,
        objective=settings.objective,
        knee=frontier.knee(),
        epoch_samples=settings.epoch_samples,
        stopped_by=frontier.stopped_by,
        wall_seconds=time.monotonic() - predicted.started,
        answered_seconds=time.time(),
    )


def _lengths(settings: TuneSettings, predicted: Predicted, best: Best | None) -> LengthsAnswer | None:
    """Largest batches for a dataset's sample lengths, at the best knob setting; None without lengths."""
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
    settings: TuneSettings, predicted: Predicted, frontier: Frontier, emit: EventSink
) -> Advice | None:
    """Advice on changes that would make the smallest batch size fit; None if any batch fits.

    Scripts get no advice, as they decide their own settings, and neither do measured searches.
    """
    target, space = predicted.target, predicted.space
    nothing_fits = frontier.best() is None and frontier.stopped_by is None
    if not nothing_fits or settings.script is not None or target.probe is not None:
        return None
    try:
        return advice_on(
            settings,
            predicted.predictor,
            space.settings[0],
            space.min_batch,
            target,
            risk=settings.risk,
            emit=emit,
        )
    except AutofitError:  # a failed prediction has no advice either; its trials give the reason
        return None


def _kinds(
    settings: TuneSettings,
    predicted: Predicted,
    frontier: Frontier,
    measuring: Measuring,
    emit: EventSink,
) -> tuple[BatchKinds | None, tuple[str, ...]]:
    """Largest batch of each kind, typical and worst-case, and sentences on why they are not compared.

    The first value is None if the workload makes only one kind of batches, or if they are not compared.
    """
    if not predicted.predictor.traces.has_batch_kinds:
        return None, ()
    target, spec, space = predicted.target, predicted.spec, predicted.space

    def predict_other_kind(knobs: Knobs) -> CurveSet:
        other = dataclasses.replace(spec, setup=spec.setup.with_other_batches())
        alone = dataclasses.replace(space, choices={}, fixed=knobs)
        predicts = predictor_for(other, target, emit, fresh=settings.fresh)
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


def _on_ranks(settings: TuneSettings, target: Target) -> tuple[str, ...]:
    """Sentences on how many ranks or cards were run or predicted; empty for a single process."""
    parallel = settings.setup.parallel
    if not parallel:
        return ()
    if target.probe is not None:
        where = "one machine" if settings.num_nodes == 1 else f"{settings.num_nodes} nodes"
        return (
            f"each trial ran {parallel.num_ranks} ranks together on {where}; a size is that of the rank "
            "with the largest peak",
        )
    which = "the one that needs the most" if settings.setup.rank is None else "one"
    if parallel.is_one_process:
        return (f"{which} of {parallel.num_ranks} cards is predicted, {parallel} by accelerate",)
    defaults = (
        f"{parallel}, with {'PyTorch' if parallel.zero is None else 'DeepSpeed'}'s defaults"
        if parallel.shards
        else "with the defaults of DistributedDataParallel: gradient_as_bucket_view=True would save the "
        "memory of its buckets"
    )
    measured = ". --probe measure runs all ranks, where a machine has a GPU for each"
    said = f"{which} of {parallel.num_ranks} ranks is predicted, {defaults}"
    return (f"{said}{measured if parallel.can_be_measured else ''}",)


def _estimate(curves: CurveSet, space: SearchSpace, best: Best | None) -> Estimate | None:
    """Prediction for the best configuration, or for the smallest batch if nothing fits; None without one."""
    knobs, batch_size = (
        (space.settings[0], space.min_batch) if best is None else (best.knobs, best.batch_size)
    )
    curve = curves.by_knobs.get(knobs)
    return None if curve is None else curve(batch_size)


def _cards(
    settings: TuneSettings, space: SearchSpace, curves: CurveSet, best: Best | None, emit: EventSink
) -> tuple[CardAnswer, ...]:
    """Largest batch of the best knob setting on each card sold with the memory of `--gpu-mem`."""
    curve = None if best is None else curves.by_knobs.get(best.knobs)
    if settings.gpu_mem_bytes is None or best is None or curve is None or curve.needs_traces:
        return ()
    return card_answers(
        curve,
        gpus.gpus_sold_as(settings.gpu_mem_bytes),
        margin=settings.margin,
        reserve_bytes=settings.reserve_bytes,
        mesh=settings.mesh,
        sizes=space.sizes(best.knobs),
        emit=emit,
    )
