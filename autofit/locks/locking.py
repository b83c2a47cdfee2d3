"""Predicts configurations for a lock.

A lock is compared on other machines than it was written on. So nothing of this machine enters: no observed
peaks and measured steps, and no libcudnn that happens to be installed, but the tables of its choices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit.errors import AutofitError
from autofit.events import EventSink, Progress, ignore
from autofit.explain.profile import Profile
from autofit.locks.configurations import WHAT, Configuration
from autofit.locks.holders import holders_at_peak
from autofit.locks.lock_file import ANY_CARD, LockedConfiguration, LockedPeak
from autofit.predict.estimate import Estimate
from autofit.predict.plan_sources import offline_plan_source
from autofit.predict.predictor import Predictor, shared_predictor
from autofit.search.boundary import largest_fitting_batch
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.workloads import refer
from autofit_workers.spec.protocol import WorkloadRef

_MOST_HOLDERS = 64
_LEAST_SHARE = 1000  # holders of less than this part of the peak are not listed
_DIGITS = 4  # of a time


@dataclass(frozen=True, slots=True)
class _Place:
    """Folder of the project, and that of a checkout whose code must not be predicted."""

    folder: Path
    checkout: Path | None


PredictorOf = Callable[[WorkloadRef, TuneSettings, EventSink], Predictor]


def predictor_for_locks(workload: WorkloadRef, settings: TuneSettings, emit: EventSink = ignore) -> Predictor:
    """Predictor whose answers are the same on every machine; its traces list operators and stacks."""
    plans = functools.partial(offline_plan_source, release=settings.setup.torch)
    return shared_predictor(
        workload, setup=settings.setup, emit=emit, with_calls=True, fresh=settings.fresh, plans=plans
    )


def predict_each(
    wanted: Sequence[Configuration],
    folder: Path,
    *,
    emit: EventSink = ignore,
    checkout: Path | None = None,
    predictor_of: PredictorOf = predictor_for_locks,
) -> tuple[LockedConfiguration, ...]:
    """Predicted memory of configurations, each on its cards, with all holders.

    Args:
        wanted: the configurations.
        folder: absolute folder of the project, to which paths are relative.
        emit: receives progress.
        checkout: folder whose code must not be predicted, as another revision is meant; None for none.
        predictor_of: makes the predictor of a workload.

    Raises:
        AutofitError: one cannot be predicted; the message begins with its name.
    """
    found = []
    for number, each in enumerate(wanted):
        emit(Progress(stage=f"predicting {each.name}", done=number, total=len(wanted)))
        try:
            found.append(_predicted(each, _Place(folder, checkout), emit, predictor_of))
        except AutofitError as error:
            error.message = f"{each.name}: {error.message}"
            error.args = (error.message,)
            raise
    return tuple(found)


def _predicted(
    wanted: Configuration, place: _Place, emit: EventSink, predictor_of: PredictorOf
) -> LockedConfiguration:
    found = LockedConfiguration(name=wanted.name, arguments=wanted.arguments)
    predictor: Predictor | None = None
    for gpu in wanted.gpus or (None,):
        settings = resolve_one_configuration({**wanted.options, "gpu": gpu}, WHAT)
        if predictor is None:
            predictor = predictor_of(refer(settings.model, settings), settings, emit)
        found = found.with_peak(_peak(predictor, settings, wanted, place))
    return found


def _peak(predictor: Predictor, settings: TuneSettings, wanted: Configuration, place: _Place) -> LockedPeak:
    knobs, card = settings.configuration(WHAT), settings.card
    batch_size = wanted.batch_size
    if batch_size is None:
        batch_size = predictor.traces.own_batch_size(knobs)
    estimate = predictor.estimate(knobs, card, batch_size)
    profile = predictor.profile(knobs, card, batch_size)
    largest = None
    if wanted.wants_largest_batch and settings.gpu is not None:
        budget = settings.budget_on(settings.gpu).usable_bytes
        largest = largest_fitting_batch(predictor.curve(knobs, card), budget).largest_batch
    peak = peak_of(estimate, profile, settings, place.folder, checkout=place.checkout)
    return dataclasses.replace(peak, largest_batch=largest)


def peak_of(
    estimate: Estimate,
    profile: Profile,
    settings: TuneSettings,
    folder: Path,
    *,
    checkout: Path | None = None,
) -> LockedPeak:
    """Peak for a lock, with all holders, from an estimate and a profile of the same step on the same card.

    Args:
        estimate: the estimate, whose peak is that on a card that is large enough.
        profile: the profile.
        settings: settings of the prediction, which name the card.
        folder: absolute folder of the project, to which paths are relative.
        checkout: folder whose code must not be in the profile; None for none.
    """
    needed, seconds = estimate.needed, estimate.step_seconds
    return LockedPeak(
        torch=torch_of(estimate.versions),
        gpu=ANY_CARD if settings.gpu is None else settings.gpu.key,
        likely_bytes=needed.likely_bytes,
        high_bytes=needed.high_bytes,
        allocated_bytes=profile.peak_allocated_bytes,
        parameters_bytes=estimate.breakdown.parameters,
        activations_bytes=estimate.breakdown.activations,
        step_seconds=None if seconds is None else float(f"{seconds.likely:.{_DIGITS}g}"),
        holders=holders_at_peak(profile, folder, checkout=checkout),
    )


def torch_of(versions: dict[str, str]) -> str:
    """Version of PyTorch that was predicted, without the name of its build, as `2.13.0` of `2.13.0+cpu`."""
    return (versions.get("torch_followed") or versions["torch"]).partition("+")[0]


def shortened(found: LockedConfiguration) -> LockedConfiguration:
    """Configuration as a lock has it: of small holders their sum alone."""
    return dataclasses.replace(found, peaks=tuple(map(_shortened, found.peaks)))


def _shortened(peak: LockedPeak) -> LockedPeak:
    least = peak.allocated_bytes // _LEAST_SHARE
    kept = tuple(each for each in peak.holders[:_MOST_HOLDERS] if each.num_bytes >= least)
    others = sum(each.num_bytes for each in peak.holders) - sum(each.num_bytes for each in kept)
    return dataclasses.replace(peak, holders=kept, other_bytes=peak.other_bytes + others)
