"""What each lever would save at one batch size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autofit.errors import UsageError, WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import Card
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import Predictor
from workers import conv
from workers.knobs import KNOBS, Knobs
from workers.knobs.allocator import allocator_conf

BYTES_OF_ESTIMATE = ("peak_allocated_bytes", "peak_reserved_bytes", "device_peak_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change of a configuration.

    Attributes:
        name: what is changed, such as `precision`.
        value: to what.
        how: what to type or to set for it.
        knobs: the whole setting with that change.
        allocator: the value of `PYTORCH_ALLOC_CONF` that it needs; empty for none.
    """

    name: str
    value: str
    how: str
    knobs: Knobs
    allocator: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverResult:
    """What a lever comes to.

    Attributes:
        saved_bytes: of the likely reserved peak; less than 0 where it takes more.
        saved_allocated_bytes: of the allocated peak.
        estimate: with the lever; None where it does not apply.
        reason: why it does not apply; empty where it does.
    """

    lever: Lever
    saved_bytes: int = 0
    saved_allocated_bytes: int = 0
    estimate: Estimate | None = None
    reason: str = ""

    @property
    def changes_something(self) -> bool:
        return bool(self.saved_bytes or self.saved_allocated_bytes)

    def to_dict(self) -> dict[str, Any]:
        estimate = self.estimate
        peaks = {} if estimate is None else {name: getattr(estimate, name) for name in BYTES_OF_ESTIMATE}
        return {
            **dataclasses.asdict(self.lever),
            "saved_bytes": None if estimate is None else self.saved_bytes,
            "saved_allocated_bytes": None if estimate is None else self.saved_allocated_bytes,
            **peaks,
            "interval": None if estimate is None else dataclasses.asdict(estimate.interval),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """All levers of a configuration.

    Attributes:
        base: the estimate of the configuration as it is.
        results: those that apply first, what saves most before what saves less.
    """

    base: Estimate
    results: tuple[LeverResult, ...]

    @property
    def applicable(self) -> tuple[LeverResult, ...]:
        return tuple(result for result in self.results if result.estimate is not None)

    @property
    def effective(self) -> tuple[LeverResult, ...]:
        """Those that change a peak."""
        return tuple(result for result in self.applicable if result.changes_something)

    @property
    def inapplicable(self) -> tuple[LeverResult, ...]:
        return tuple(result for result in self.results if result.estimate is None)

    def to_dict(self) -> list[dict[str, Any]]:
        """The field `what_if` of an estimate's document."""
        return [result.to_dict() for result in self.results]


def what_if(
    predictor: Predictor, knobs: Knobs, card: Card, batch_size: int, *, emit: EventSink = ignore
) -> WhatIf:
    """Predicts a configuration, and again with each lever; those that share a trace share it here.

    Args:
        emit: is told of each lever.

    Raises:
        WorkloadFailedError: the workload fails, or cannot be predicted, as it is.
    """
    base = predictor.estimate(knobs, card, batch_size)
    tried = list(levers(knobs))
    results = []
    for number, lever in enumerate(tried):
        emit(Progress(stage="trying levers", done=number, total=len(tried)))
        reason = _why_pointless(lever, base)
        results.append(
            LeverResult(lever=lever, reason=reason) if reason else _tried(predictor, lever, card, base)
        )
    return WhatIf(base=base, results=tuple(sorted(results, key=_rank)))


def levers(knobs: Knobs) -> Iterator[Lever]:
    """Every single change of a setting that may save memory."""
    for knob in KNOBS.values():
        values: tuple[Any, ...] = conv.applicable("cuda") if knob.name == "conv_algo" else knob.levers
        for value in values:
            if value == getattr(knobs, knob.name):
                continue
            written = str(value).lower() if isinstance(value, bool) else str(value)
            changed = dataclasses.replace(knobs, **{knob.name: value})
            yield Lever(
                name=knob.name,
                value=written,
                how=f"--{knob.option} {written}",
                knobs=changed,
                allocator=allocator_conf(changed.allocator),
            )


def _why_pointless(lever: Lever, base: Estimate) -> str:
    """Why a lever need not be tried; empty where it has to be."""
    if base.mode == "infer" and KNOBS[lever.name].of_training:
        return "inference has neither an optimizer nor gradients"
    if lever.name == "conv_algo" and not base.convolves:
        return "the step has no convolution"
    return ""


def _tried(predictor: Predictor, lever: Lever, card: Card, base: Estimate) -> LeverResult:
    try:
        estimate = predictor.estimate(lever.knobs, card, base.batch_size)
    except (UsageError, WorkloadFailedError) as error:
        return LeverResult(lever=lever, reason=error.message)
    return LeverResult(
        lever=lever,
        saved_bytes=base.peak_reserved_bytes - estimate.peak_reserved_bytes,
        saved_allocated_bytes=base.peak_allocated_bytes - estimate.peak_allocated_bytes,
        estimate=estimate,
    )


def _rank(result: LeverResult) -> tuple[bool, int, int]:
    return result.estimate is None, -result.saved_bytes, -result.saved_allocated_bytes
