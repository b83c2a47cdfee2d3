"""What makes a configuration fit that does not: changes tried alone, and together."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from autofit.errors import AutofitError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor
from autofit.questions.what_if import Lever, levers
from autofit.settings.goals import Risk
from workers.knobs import KNOBS, Knobs

ADVICE_SECONDS = 10.0

# What leaves the numbers of a step as they are comes before what rounds or takes far longer.
_GENTLEST_FIRST = (
    "allocator",
    "optimizer_impl",
    "set_to_none",
    "checkpointing",
    "memory_format",
    "conv_algo",
    "precision",
)
_GENTLE = frozenset(_GENTLEST_FIRST[:5])


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLever:
    """One change alone.

    Attributes:
        name, value: what is changed, and to what.
        how: the option to type.
        saved_bytes: of the reserved peak that has to fit; less than 0 where it takes more.
        fits: whether it is enough.
    """

    name: str
    value: str
    how: str
    saved_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Changes that make it fit together; none of them can be left out.

    Attributes:
        options: what to type.
        peak_reserved_bytes: the peak with them, at the risk.
    """

    options: tuple[str, ...]
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What was tried where nothing fits.

    Attributes:
        batch_size: the size that it is about.
        peak_reserved_bytes: the peak as it is, at the risk that has to fit.
        levers: what saves most first.
        combination: None where nothing that was tried fits.
        is_complete: False if the time was over before everything was tried.
    """

    batch_size: int
    peak_reserved_bytes: int
    levers: tuple[TriedLever, ...]
    combination: Combination | None
    is_complete: bool


def advise(
    predictor: Predictor,
    knobs: Knobs,
    card: Card,
    batch_size: int,
    *,
    risk: Risk,
    limit_bytes: int,
    fixed: Container[str] = (),
    seconds: float = ADVICE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    emit: EventSink = ignore,
) -> Advice:
    """Tries every change alone, then the ones that save most together until they fit.

    Changes that leave a step's numbers and speed about as they are come first; others are added only where
    those are not enough.

    Args:
        risk: the level of the peak that has to be within the limit.
        fixed: names of knobs that are left as they are.
        seconds: after which nothing further is tried.
        clock: tells the time in seconds.
        emit: is told of each change.

    Raises:
        AutofitError: the configuration cannot be predicted as it is.
    """
    search = _Search(predictor, card, batch_size, risk=risk, ends_at=clock() + seconds, clock=clock)
    base_bytes = search.peak_bytes(knobs)
    of_training = predictor.trace(knobs, batch_size).mode == "train"
    usable = [
        lever
        for lever in sorted(levers(knobs), key=_gentleness)
        if lever.name not in fixed
        and (of_training or not KNOBS[lever.name].of_training)
        and (lever.name != "conv_algo" or predictor.convolves)
    ]
    alone = []
    for number, lever in enumerate(usable):
        emit(Progress(stage="trying levers", done=number, total=len(usable)))
        if (peak_bytes := search.peak_if_known(lever.knobs)) is not None:
            alone.append((peak_bytes, lever))
    helping = [lever for peak_bytes, lever in alone if peak_bytes < base_bytes]
    return Advice(
        batch_size=batch_size,
        peak_reserved_bytes=base_bytes,
        levers=tuple(
            TriedLever(
                name=lever.name,
                value=lever.value,
                how=lever.how,
                saved_bytes=base_bytes - peak_bytes,
                fits=peak_bytes <= limit_bytes,
            )
            for peak_bytes, lever in sorted(alone, key=lambda tried: tried[0])
        ),
        combination=_combination(search, knobs, base_bytes, helping, limit_bytes),
        is_complete=not search.is_over,
    )


class _Search:
    """Predicts settings at one size, until the time is over."""

    def __init__(
        self,
        predictor: Predictor,
        card: Card,
        batch_size: int,
        *,
        risk: Risk,
        ends_at: float,
        clock: Callable[[], float],
    ) -> None:
        self._predictor = predictor
        self._card = card
        self._batch_size = batch_size
        self._risk = risk
        self._ends_at = ends_at
        self._clock = clock
        self._known: dict[Knobs, int | None] = {}

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._ends_at

    def peak_bytes(self, knobs: Knobs) -> int:
        """The reserved peak at the risk; raises `AutofitError` where the setting cannot be predicted."""
        curve = self._predictor.curve_at(knobs, self._card, self._batch_size)
        return curve.at_risk(self._risk).peak_reserved_bytes(self._batch_size)

    def peak_if_known(self, knobs: Knobs) -> int | None:
        """The same; None where the setting does not apply, or no time is left to try it."""
        if knobs not in self._known:
            if self.is_over:
                return None
            try:
                self._known[knobs] = self.peak_bytes(knobs)
            except AutofitError:
                self._known[knobs] = None
        return self._known[knobs]


def _combination(
    search: _Search, knobs: Knobs, base_bytes: int, helping: Sequence[Lever], limit_bytes: int
) -> Combination | None:
    """The gentle changes first, each time what saves most beside those taken; then the others."""
    taken: list[Lever] = []
    peak_bytes = base_bytes
    for left in (
        [lever for lever in helping if lever.name in _GENTLE],
        [lever for lever in helping if lever.name not in _GENTLE],
    ):
        while peak_bytes > limit_bytes:
            names = [lever.name for lever in taken]
            together = [
                (search.peak_if_known(_with(knobs, [*taken, lever])), lever)
                for lever in left
                if lever.name not in names
            ]
            lower = [(peak, lever) for peak, lever in together if peak is not None and peak < peak_bytes]
            if not lower:
                break
            peak_bytes, lever = min(lower, key=lambda one: one[0])
            taken.append(lever)
    if peak_bytes > limit_bytes:
        return None
    for lever in list(taken):
        others = [other for other in taken if other is not lever]
        without = search.peak_if_known(_with(knobs, others))
        if others and without is not None and without <= limit_bytes:
            taken, peak_bytes = others, without
    return Combination(options=tuple(lever.how for lever in taken), peak_reserved_bytes=peak_bytes)


def _with(knobs: Knobs, changes: Iterable[Lever]) -> Knobs:
    return dataclasses.replace(knobs, **{each.name: getattr(each.knobs, each.name) for each in changes})


def _gentleness(lever: Lever) -> int:
    return (*_GENTLEST_FIRST, lever.name).index(lever.name)
