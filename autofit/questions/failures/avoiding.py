"""Changes of a workload with which it would not have run out of memory: predicted, and tried one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autofit.errors import AutofitError, UsageError
from autofit.events import EventSink, ignore
from autofit.explain.out_of_memory.diagnosis import Cause
from autofit.hardware.card import Card, card_named
from autofit.hardware.gpus import Gpu, catalogue
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.questions.advice import Advice, Adviser
from autofit.questions.failures.explained import Avoiding, AvoidingChange, ExplainedError
from autofit.questions.levers import Effect
from autofit.settings.goals import Risk
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.knobs import Knobs

_NUM_CHANGES = 3
_SAME_TOTAL_BYTES = 12 << 20  # an error states a total with two decimals
_EXPANDABLE = "expandable_segments"


def with_changes(
    answer: ExplainedError,
    settings: TuneSettings,
    predictor: Predictor,
    batch_size: int | None,
    *,
    emit: EventSink = ignore,
) -> ExplainedError:
    """Explained error with the prediction of its workload, and changes that would have avoided it.

    Args:
        settings: options of the workload that ran; their card is that of the run, if one is named.
        predictor: predictor of that workload.
        batch_size: samples a batch of the run; None for a script's own.
        emit: called with a progress event for each change that is tried.

    Raises:
        UsageError: the error is not one of a card, or the card is not known.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    if answer.diagnosis.cause is Cause.HOST or answer.error.who.endswith(("MPS", "XPU")):
        raise UsageError(
            f"{answer.error.who} ran out of memory, which is not predicted: leave the model and script out"
        )
    gpu = settings.gpu or _recognized(answer.error.total_bytes)
    limit = answer.diagnosis.limit_bytes or (None if gpu is None else settings.budget_on(gpu).usable_bytes)
    if limit is None:
        raise UsageError("the error does not say how large the card is: name the card with --gpu")
    card = settings.card if gpu is None else card_named(gpu.key, settings.mesh)
    knobs = settings.configuration("an explained error")
    if batch_size is None:
        batch_size = predictor.estimate(knobs, card, None).batch_size
    curve = predictor.curve_at(knobs, card, batch_size)
    estimate = curve.unlimited(batch_size)
    high = estimate.interval.high_bytes
    would_fit = high <= limit
    changes: list[AvoidingChange] = []
    is_complete = True
    if not would_fit and settings.script is None:
        adviser = Adviser(
            predictor,
            knobs,
            batch_size,
            risk=Risk.SAFE,
            fixed=settings.fixed_knobs,
            given=settings.given_knobs,
            emit=emit,
        )
        advice = adviser.on(card, limit)
        changes += _advised(advice, limit)
        is_complete = advice.is_complete
    if not would_fit and len(changes) < _NUM_CHANGES:
        changes += _without_code(predictor, knobs, card, batch_size, limit)
        changes += _larger_cards(settings, curve, gpu, batch_size)
    return dataclasses.replace(
        answer,
        avoiding=Avoiding(
            workload=estimate.workload,
            batch_size=batch_size,
            gpu=None if gpu is None else gpu.key,
            limit_bytes=limit,
            interval=estimate.interval,
            would_fit=would_fit,
            changes=tuple(_different(changes))[:_NUM_CHANGES],
            is_complete=is_complete,
        ),
    )


def _recognized(total_bytes: int | None) -> Gpu | None:
    """Card of the catalogue with a total memory; None if there is none, or there are several kinds."""
    if total_bytes is None:
        return None
    near = [gpu for gpu in catalogue().values() if abs(gpu.total_bytes - total_bytes) <= _SAME_TOTAL_BYTES]
    return near[0] if len({gpu.architecture for gpu in near}) == 1 else None


def _advised(advice: Advice, limit_bytes: int) -> Iterator[AvoidingChange]:
    """Yields what an adviser found to fit, the gentlest first."""
    for each in (advice.combination, *advice.others):
        if each is not None and each.peak_reserved_bytes <= limit_bytes:
            yield AvoidingChange(
                options=each.options,
                peak_reserved_bytes=each.peak_reserved_bytes,
                saved_bytes=advice.peak_reserved_bytes - each.peak_reserved_bytes,
                effect=each.effect,
            )
    for lever in advice.levers:
        if lever.fits:
            yield AvoidingChange(
                options=(lever.how,),
                peak_reserved_bytes=advice.peak_reserved_bytes - lever.saved_bytes,
                saved_bytes=lever.saved_bytes,
                effect=lever.effect,
            )


def _without_code(
    predictor: Predictor, knobs: Knobs, card: Card, batch_size: int, limit_bytes: int
) -> Iterator[AvoidingChange]:
    """Yields changes that need no other code: the allocator, and a smaller batch."""
    base = predictor.curve_at(knobs, card, batch_size).unlimited(batch_size).interval.high_bytes
    expandable = dataclasses.replace(knobs, allocator=_EXPANDABLE)
    peak = _peak(predictor, expandable, card, batch_size)
    if knobs.allocator != _EXPANDABLE and peak is not None and peak <= limit_bytes:
        yield AvoidingChange(
            options=(f"--allocator {_EXPANDABLE}",),
            peak_reserved_bytes=peak,
            saved_bytes=base - peak,
            effect=Effect.NONE,
        )
    smaller = _largest_within(predictor, knobs, card, batch_size, limit_bytes)
    if smaller is not None:
        size, peak = smaller
        yield AvoidingChange(
            options=(f"--batch-size {size}",),
            peak_reserved_bytes=peak,
            saved_bytes=base - peak,
            effect=Effect.SLOWER,
        )


def _larger_cards(
    settings: TuneSettings, curve: PredictedCurve, gpu: Gpu | None, batch_size: int
) -> Iterator[AvoidingChange]:
    """Yields the smallest larger card of the same vendor on which the unchanged step fits."""
    if gpu is None:
        return
    larger = [each for each in catalogue().values() if each.total_bytes > gpu.total_bytes]
    for each in sorted(larger, key=lambda card: card.total_bytes):
        if each.vendor.facts != gpu.vendor.facts:
            continue
        card = card_named(each.key, settings.mesh)
        if curve.why_unpredictable_on(card, batch_size) is not None:
            continue
        peak = curve.on(card).unlimited(batch_size).interval.high_bytes
        if peak <= settings.budget_on(each).usable_bytes:
            yield AvoidingChange(
                options=(f"--gpu {each.key}",), peak_reserved_bytes=peak, saved_bytes=None, effect=Effect.NONE
            )
            return


def _peak(predictor: Predictor, knobs: Knobs, card: Card, batch_size: int) -> int | None:
    """High end of a configuration's reserved peak; None if it does not apply to the workload."""
    try:
        return predictor.curve_at(knobs, card, batch_size).unlimited(batch_size).interval.high_bytes
    except AutofitError:
        return None


def _largest_within(
    predictor: Predictor, knobs: Knobs, card: Card, batch_size: int, limit_bytes: int
) -> tuple[int, int] | None:
    """Largest smaller batch that a bisection finds within a limit, and its peak; None if there is none."""
    found: tuple[int, int] | None = None
    try:
        curve = predictor.curve(knobs, card)
    except AutofitError:  # a script whose batch cannot be changed
        return None
    low, high = 1, batch_size - 1
    while low <= high:
        middle = (low + high) // 2
        try:
            peak = curve.unlimited(middle).interval.high_bytes
        except AutofitError:
            return found
        if peak <= limit_bytes:
            found, low = (middle, peak), middle + 1
        else:
            high = middle - 1
    return found


def _different(changes: list[AvoidingChange]) -> Iterator[AvoidingChange]:
    """Yields changes whose options were not there before."""
    seen = set()
    for change in changes:
        if change.options not in seen:
            seen.add(change.options)
            yield change
