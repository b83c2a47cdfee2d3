"""Stores measured step times of a workload with the predicted ones, to scale later predictions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from autofit.errors import StorageError
from autofit.predict.curve import PredictedCurve
from autofit.predict.intervals.observations import card_key
from autofit.predict.times.measured_steps import MeasuredStep, keep
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, TrialOutcome, Verdict, WorkloadRef

_log = logging.getLogger(__name__)


def learn_from(
    workload: WorkloadRef, trials: Iterable[TrialOutcome], curves: Mapping[Knobs, PredictedCurve]
) -> None:
    """Stores the step times that a search measured, with the predicted ones, to correct later predictions.

    For each knob setting it stores the largest batch that fits, as its step time depends least on the CPU.

    Args:
        trials: results of the search's measured runs.
        curves: predicted curve of each knob setting, on the card that the trials ran on.
    """
    largest: dict[Knobs, TrialOutcome] = {}
    for trial in trials:
        if trial.evidence is not Evidence.MEASURED or trial.verdict is not Verdict.FITS:
            continue
        known = largest.get(trial.knobs)
        if trial.step_seconds and (known is None or known.batch_size <= trial.batch_size):
            largest[trial.knobs] = trial
    try:
        for knobs, trial in largest.items():
            step = _measured(workload, trial, curves.get(knobs))
            if step is not None:
                keep(workload, step)
    except StorageError as error:  # the answer is valid without it
        _log.warning("measured steps could not be kept: %s", error)


def _measured(
    workload: WorkloadRef, trial: TrialOutcome, curve: PredictedCurve | None
) -> MeasuredStep | None:
    """Record of a trial's measured and predicted step time; None if no time was predicted."""
    if curve is None or curve.needs_traces or trial.step_seconds is None:
        return None
    time = curve.step_time(trial.batch_size)
    if time is None:
        return None
    return MeasuredStep(
        workload=workload.name,
        knobs=trial.knobs,
        mode=curve.mode,
        batch_size=trial.batch_size,
        card=card_key(curve.card),
        measured_seconds=trial.step_seconds,
        predicted_seconds=time.unscaled_seconds,
        model=time.model,
        parallel=curve.parallel.name,
    )
