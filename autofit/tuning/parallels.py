"""Compares several kinds of parallelism, such as `ddp` and `fsdp:8`, by the samples of all ranks.

    --search parallel=… ─┬▶ ddp:8  ─▶ a search with its own predictor, budget and study ─▶ TuneResult ┐
                         ├▶ fsdp:8 ─▶ …                                                               ├▶ best
                         └▶ tp:8   ─▶ the model has no plan: refused, with the reason                        ┘

NCCL's memory depends on the ranks, so each kind has its own budget and its own traces. Knob
settings are compared within each kind, and the best ones of all kinds by their global batches.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from autofit.errors import AutofitError, StudyMismatchError, UsageError, WorkloadFailedError
from autofit.events import EventSink, Noted, ignore
from autofit.settings.goals import Objective
from autofit.settings.tune_settings import TuneSettings
from autofit.tuning.compared import ParallelAnswer
from autofit.tuning.result import TuneResult
from autofit_workers.spec.setup import Parallel

# Errors that one kind of parallelism may raise where another does not.
_REFUSALS = (WorkloadFailedError, UsageError)


def compare_parallels(
    settings: TuneSettings, ask: Callable[[TuneSettings], TuneResult], emit: EventSink = ignore
) -> TuneResult:
    """Searches with each of several kinds of parallelism, such as `fsdp:8`, and returns the best result.

    Answers for the other kinds are in its field `parallels`. The best has the largest global batch, or the
    most samples a second if throughput is the objective; among equals, the first given is the best. Limits on
    trials and seconds in the settings hold for all kinds together.

    Args:
        ask: searches with the settings of a single kind.

    Raises:
        AutofitError: all kinds are refused; the error is the first one's.
    """
    began = time.monotonic()
    answers: dict[Parallel, TuneResult] = {}
    refusals: dict[Parallel, AutofitError] = {}
    compared: list[ParallelAnswer] = []
    stopped_by: str | None = None
    for parallel in settings.parallels:
        left = _left(settings, tuple(answers.values()), began)
        stopped_by = stopped_by or _used_up(left)
        if stopped_by is not None:
            compared.append(_refused(parallel, f"not tried: {stopped_by} ended the search"))
            continue
        emit(Noted(text=f"{parallel}, {1 + len(compared)} of {len(settings.parallels)}"))
        try:
            result = ask(_alone(left, parallel))
        except StudyMismatchError:
            raise
        except _REFUSALS as error:
            refusals[parallel] = error
            compared.append(_refused(parallel, error.message))
            continue
        answers[parallel] = result
        stopped_by = result.stopped_by
        compared.append(
            ParallelAnswer(
                parallel=str(parallel),
                num_ranks=parallel.num_ranks,
                budget=result.budget,
                best=result.best,
                frontier=result.frontier,
                study=result.study,
            )
        )
    if not answers:
        raise next(iter(refusals.values()))
    wants_rate = settings.objective is Objective.THROUGHPUT
    untimed = [
        str(parallel)
        for parallel, each in answers.items()
        if each.best is not None and _known_rate(each) is None
    ]
    by_rate = wants_rate and not untimed
    result = max(answers.values(), key=lambda each: _rate_or_size(each, by_rate=by_rate))
    if wants_rate and untimed:
        why = f"{', '.join(untimed)}: no samples a second are sure enough to be said, so the ways of "
        result = dataclasses.replace(
            result, notes=(*result.notes, f"{why}training together are compared by their global batches")
        )
    return dataclasses.replace(
        result,
        parallels=tuple(compared),
        stopped_by=stopped_by,
        cached=all(each.cached for each in answers.values()),
        wall_seconds=time.monotonic() - began,
    )


def _alone(settings: TuneSettings, parallel: Parallel) -> TuneSettings:
    """Copy of the settings for one kind of parallelism; its trials are stored apart from those of others."""
    one = settings.with_parallel(parallel)
    if settings.study is None:
        return one  # its name follows from its settings
    name = str(parallel).replace(":", "-").replace(",", "-")
    return dataclasses.replace(one, study=f"{settings.study}-{name}")


def _left(settings: TuneSettings, answers: tuple[TuneResult, ...], began: float) -> TuneSettings:
    """Copy of the settings whose limits are reduced by the trials and seconds of earlier answers.

    Args:
        began: start of the first search, by the monotonic clock.
    """
    num_measured = sum(trial.was_run for answer in answers for trial in answer.trials)
    trials, seconds = settings.max_trials, settings.max_seconds
    return dataclasses.replace(
        settings,
        max_trials=None if trials is None else trials - num_measured,
        max_seconds=None if seconds is None else seconds - (time.monotonic() - began),
    )


def _used_up(left: TuneSettings) -> str | None:
    """Name of the option whose limit is used up, `--max-seconds` or `--max-trials`; None if neither is."""
    if left.max_seconds is not None and left.max_seconds <= 0:
        return "--max-seconds"
    return "--max-trials" if left.max_trials is not None and left.max_trials <= 0 else None


def _refused(parallel: Parallel, why: str) -> ParallelAnswer:
    return ParallelAnswer(parallel=str(parallel), num_ranks=parallel.num_ranks, refused=why)


def _rate_or_size(result: TuneResult, *, by_rate: bool) -> tuple[float, int]:
    """Sort key of a result: samples a second if `by_rate`, then the global batch."""
    if result.best is None:
        return -1.0, 0
    rate = (_known_rate(result) or 0.0) if by_rate else 0.0
    return rate, (result.samples_per_step or 0) * (result.best.knobs.seq_len or 1)


def _known_rate(result: TuneResult) -> float | None:
    """Samples a second of the best configuration; measured, or predicted if there is no measurement."""
    best = result.best
    return None if best is None else best.samples_per_second or best.predicted_samples_per_second
