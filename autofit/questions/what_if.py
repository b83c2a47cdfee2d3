"""Predicts how much memory each lever (a single changed knob) would save at one batch size."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from autofit.errors import MissingLibraryError, UsageError, WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import Card
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import Predictor
from autofit.predict.times.step_times import StepTime
from autofit.questions.advice import Advice, Adviser
from autofit.questions.levers import Lever, levers
from autofit.settings.goals import Risk
from autofit_workers.spec.knobs import Knobs

BYTES_OF_ESTIMATE = ("peak_allocated_bytes", "peak_reserved_bytes", "device_peak_bytes")
_OF_LEVER = ("name", "value", "how", "knobs", "allocator", "effect", "may_save")  # of `Lever`, in a document


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverResult:
    """Predicted memory and time of a configuration after one lever, a single changed knob.

    Attributes:
        saved_bytes: bytes saved of the likely reserved peak, as if the card had unlimited memory; negative if
            the lever takes more.
        saved_allocated_bytes: bytes saved of the allocated peak, also with unlimited memory.
        estimate: prediction with the lever; None if the lever does not apply to the workload.
        relative_step_time: ratio of the predicted step time with the lever to that without it; None if no
            times are predicted.
        reason: why the lever does not apply; empty if it does.
    """

    lever: Lever
    saved_bytes: int = 0
    saved_allocated_bytes: int = 0
    estimate: Estimate | None = None
    relative_step_time: float | None = None
    reason: str = ""

    @property
    def changes_something(self) -> bool:
        return bool(self.saved_bytes or self.saved_allocated_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Result as a dictionary of JSON's types; fields of the prediction are None without one."""
        estimate = self.estimate
        peaks = {} if estimate is None else {name: getattr(estimate, name) for name in BYTES_OF_ESTIMATE}
        return {
            **{name: value for name, value in dataclasses.asdict(self.lever).items() if name in _OF_LEVER},
            "saved_bytes": None if estimate is None else self.saved_bytes,
            "saved_allocated_bytes": None if estimate is None else self.saved_allocated_bytes,
            **peaks,
            "interval": None if estimate is None else dataclasses.asdict(estimate.interval),
            "relative_step_time": self.relative_step_time,
            "step_seconds": None
            if estimate is None or estimate.step_seconds is None
            else dataclasses.asdict(estimate.step_seconds),
            "samples_per_second": None if estimate is None else estimate.samples_per_second,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Predicted savings of every lever (a single changed knob) of a configuration.

    Attributes:
        base: estimate of the unchanged configuration.
        results: results of the levers, the largest saving first; levers that do not apply come last.
        advice: changes that make it fit on the named card; None if it fits anyway, or no card was named.
    """

    base: Estimate
    results: tuple[LeverResult, ...]
    advice: Advice | None = None

    @property
    def applicable(self) -> tuple[LeverResult, ...]:
        return tuple(result for result in self.results if result.estimate is not None)

    @property
    def effective(self) -> tuple[LeverResult, ...]:
        """Results of those levers that change the allocated or the reserved peak of the step."""
        return tuple(result for result in self.applicable if result.changes_something)

    @property
    def inapplicable(self) -> tuple[LeverResult, ...]:
        return tuple(result for result in self.results if result.estimate is None)

    def to_dict(self) -> list[dict[str, Any]]:
        """Content of the field `what_if` of an estimate's document."""
        return [result.to_dict() for result in self.results]


def what_if(
    predictor: Predictor,
    knobs: Knobs,
    card: Card,
    batch_size: int,
    *,
    limit_bytes: int | None = None,
    fixed: Container[str] = (),
    given: Container[str] = (),
    emit: EventSink = ignore,
) -> WhatIf:
    """Predicts a configuration unchanged and with each lever (a single changed knob).

    Args:
        limit_bytes: most bytes that the allocator may reserve, which the high end of the peak has to be
            within; None if no card was named, and no advice is wanted.
        fixed: names of knobs that the advice must not change.
        given: names of knobs that the user set; the advice changes them only if milder changes do not
            suffice.
        emit: called with a progress event for each lever.

    Raises:
        WorkloadFailedError: the unchanged workload fails, or cannot be predicted.
    """
    curve = predictor.curve_at(knobs, card, batch_size)
    base = curve(predictor.trace(knobs, batch_size).batch_size)
    time = curve.step_time(base.batch_size)
    trace = predictor.trace(knobs, base.batch_size)
    tried = levers(knobs, trace.mode)
    results = []
    for number, lever in enumerate(tried):
        emit(Progress(stage="trying levers", done=number, total=len(tried)))
        reason = lever.why_pointless(trace)
        results.append(
            LeverResult(lever=lever, reason=reason)
            if reason
            else _tried(predictor, lever, card, curve.unlimited(base.batch_size), time)
        )
    advice = None
    if limit_bytes is not None and base.needed.high_bytes > limit_bytes:
        adviser = Adviser(
            predictor, knobs, base.batch_size, risk=Risk.SAFE, fixed=fixed, given=given, emit=emit
        )
        advice = adviser.on(card, limit_bytes)
    return WhatIf(base=base, results=tuple(sorted(results, key=_rank)), advice=advice)


def _tried(
    predictor: Predictor, lever: Lever, card: Card, base: Estimate, base_time: StepTime | None
) -> LeverResult:
    """Result of one lever, compared with the unchanged configuration.

    Args:
        base: estimate without the lever, as if the card had unlimited memory: on a full card, two peaks that
            both exceed it would look equal.
        base_time: predicted step time without the lever; None if it is not predicted.
    """
    try:
        curve = predictor.curve_at(lever.knobs, card, base.batch_size)
        unlimited, estimate = curve.unlimited(base.batch_size), curve(base.batch_size)
    except (UsageError, WorkloadFailedError, MissingLibraryError) as error:
        return LeverResult(lever=lever, reason=error.message)
    time = curve.step_time(base.batch_size)
    return LeverResult(
        lever=lever,
        relative_step_time=None if time is None or base_time is None else time.relative_to(base_time),
        saved_bytes=base.peak_reserved_bytes - unlimited.peak_reserved_bytes,
        saved_allocated_bytes=base.peak_allocated_bytes - unlimited.peak_allocated_bytes,
        estimate=estimate,
    )


def _rank(result: LeverResult) -> tuple[bool, int, int]:
    return result.estimate is None, -result.saved_bytes, -result.saved_allocated_bytes
