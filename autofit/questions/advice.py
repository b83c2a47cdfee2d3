"""What makes a configuration fit that does not: changes tried alone, and together."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from autofit.errors import AutofitError, UnpredictableCardError, WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import Card
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.questions.levers import Effect, Lever, gentleness, levers
from autofit.settings.goals import Risk
from autofit_workers.knobs import KNOBS, Knobs
from autofit_workers.predict.curve.peak_curve import traced_knobs

ADVICE_SECONDS = 10.0

_Changes = tuple[Lever, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLever:
    """One change alone.

    Attributes:
        name, value: what is changed, and to what.
        how: the option to type.
        saved_bytes: of the reserved peak that has to fit; less than 0 where it takes more.
        fits: whether it is enough.
        effect: what it does beside.
    """

    name: str
    value: str
    how: str
    saved_bytes: int
    fits: bool
    effect: Effect = Effect.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """The gentlest changes that make it fit together; none of them can be left out.

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


# Knobs that change what the allocator and convolutions take around a step's tensors.
_AROUND_TENSORS = frozenset({"allocator", "conv_algo", "memory_format"})


class Adviser:
    """Tries changes of a configuration that does not fit, alone and together, until the time is over.

    Of all that fit it tells the gentlest, see `gentleness`: what leaves a step's numbers and speed as they
    are comes before what takes longer, that before what rounds, and fewer changes before more. Of what is as
    gentle it tells what saves most, held against every other change and pair of changes. More than two are
    found by adding what saves most beside those taken, and leaving out what is needless. Little time goes to
    something that fits first, then to what each change does, and then to what may be gentler.

    Cards share the traces, and those of one architecture what is predicted.

    Args:
        risk: the level of the peak that has to be within the limit.
        fixed: names of knobs that are left as they are.
        with_traces: whether changes are tried that cost a trace each.
        seconds: after which nothing further is tried, on any card.
        clock: tells the time in seconds.
        emit: is told of each change.

    Attributes:
        num_untried: how many single changes are left out because each costs a trace.
    """

    def __init__(
        self,
        predictor: Predictor,
        knobs: Knobs,
        batch_size: int,
        *,
        risk: Risk,
        fixed: Container[str] = (),
        with_traces: bool = True,
        seconds: float = ADVICE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        emit: EventSink = ignore,
    ) -> None:
        self._predictor = predictor
        self._knobs = knobs
        self._batch_size = batch_size
        self._risk = risk
        self._clock = clock
        self._ends_at = clock() + seconds
        self._emit = emit
        self._trace = predictor.trace(knobs, batch_size)
        self._curves: dict[_Changes, PredictedCurve] = {}
        self._peaks: dict[tuple[_Changes, str], int | None] = {}
        self._is_cut_short = False
        self._traced = {self._traced_knobs(knobs)}
        self._longest_seconds = 0.0  # that a trace took
        usable = [lever for lever in levers(knobs) if lever.name not in fixed and self._is_to_be_tried(lever)]
        self._levers = [lever for lever in _promising_first(usable) if with_traces or self._is_free(lever)]
        self.num_untried = len(usable) - len(self._levers)

    def on(self, card: Card, limit_bytes: int) -> Advice:
        """What was tried for a card, and what fits within a limit there.

        Raises:
            AutofitError: the configuration cannot be predicted as it is.
        """
        base_bytes = self._predicted_bytes((), card)
        fits_already = base_bytes <= limit_bytes
        changes = () if fits_already else self._first_fitting(card, limit_bytes)
        alone = [
            (peak, lever) for lever in self._levers if (peak := self._alone_bytes(lever, card)) is not None
        ]
        alone.sort(key=lambda tried: tried[0])
        changes = () if fits_already else self._gentlest(changes, card, limit_bytes)
        return Advice(
            batch_size=self._batch_size,
            peak_reserved_bytes=base_bytes,
            levers=tuple(
                TriedLever(
                    name=lever.name,
                    value=lever.value,
                    how=lever.how,
                    saved_bytes=base_bytes - peak_bytes,
                    fits=peak_bytes <= limit_bytes,
                    effect=lever.effect,
                )
                for peak_bytes, lever in alone
            ),
            combination=Combination(
                options=tuple(lever.how for lever in changes),
                peak_reserved_bytes=self._predicted_bytes(changes, card),
            )
            if changes
            else None,
            is_complete=not self._is_cut_short,
        )

    def _first_fitting(self, card: Card, limit_bytes: int) -> _Changes:
        """Changes of the gentlest effects with which it fits, none of them needless; empty where none do."""
        alone = self._first_alone(card, limit_bytes)
        taken: _Changes = ()
        for effect in Effect:
            if alone and alone[0].effect is effect:
                break
            within = self._effective(effect, card)
            for start, over_plains in ((taken, False), (taken, True), ((), False)):
                found = self._lowest(start, within, card, limit_bytes, over_plains=over_plains)
                if self._fits(found, card, limit_bytes):
                    return self._without_needless(found, card, limit_bytes)
            taken = self._lowest(taken, within, card, limit_bytes)
        return alone

    def _first_alone(self, card: Card, limit_bytes: int) -> _Changes:
        """A change of the gentlest effect with which it fits; no harsher ones are tried."""
        is_above = self._curves[()].on(card).lower_bound_bytes(self._batch_size) > limit_bytes
        # What leaves the tensors as they are cannot suffice where these alone are too much.
        tried = [lever for lever in self._levers if not (is_above and lever.name in _AROUND_TENSORS)]
        for effect in Effect:
            fitting = [
                lever for lever in tried if lever.effect is effect and self._fits((lever,), card, limit_bytes)
            ]
            if fitting:
                return (min(fitting, key=lambda lever: self._predicted_bytes((lever,), card)),)
        return ()

    def _without_needless(self, changes: _Changes, card: Card, limit_bytes: int) -> _Changes:
        """What of them is needed to fit, the harshest left out first."""
        for lever in reversed(changes):
            others = tuple(other for other in changes if other is not lever)
            if self._fits(others, card, limit_bytes):
                changes = others
        return changes

    def _gentlest(self, found: _Changes, card: Card, limit_bytes: int) -> _Changes:
        """Changes that fit, or single ones and pairs that are gentler, or as gentle and save more."""

        def place(changes: _Changes) -> tuple[tuple[int, ...], int]:
            return gentleness(changes), self._predicted_bytes(changes, card)

        effective = self._effective(Effect.DRASTIC, card)
        single = [(lever,) for lever in effective]
        for changes in sorted((*single, *_pairs(effective)), key=gentleness):
            if found and gentleness(changes) > gentleness(found):
                break
            if self._fits(changes, card, limit_bytes):
                found = min(found, changes, key=place) if found else changes
        return found

    def _fits(self, changes: _Changes, card: Card, limit_bytes: int) -> bool:
        peak_bytes = self._peak_bytes(changes, card)
        return peak_bytes is not None and peak_bytes <= limit_bytes

    def _effective(self, effect: Effect, card: Card) -> list[Lever]:
        """The changes with no harsher an effect that do anything to the step; what saves most first."""
        within = [
            (peak_bytes, lever)
            for lever in self._levers
            if lever.effect.rank <= effect.rank
            and (peak_bytes := self._alone_bytes(lever, card)) is not None
            and self._changes_the_step(lever)
        ]
        return [lever for _, lever in sorted(within, key=lambda tried: tried[0])]

    def _lowest(
        self,
        taken: _Changes,
        within: Sequence[Lever],
        card: Card,
        limit_bytes: int,
        *,
        over_plains: bool = False,
    ) -> _Changes:
        """Those taken and, as long as they do not fit, each time the one that saves most beside them.

        Args:
            over_plains: also one that saves nothing yet: two parts of a step may be as high as each other.
        """
        peak_bytes = self._predicted_bytes(taken, card)
        while peak_bytes > limit_bytes:
            together = [
                (peak, changes)
                for changes in (_with(taken, lever) for lever in within if lever not in taken)
                if (peak := self._peak_bytes(changes, card)) is not None
                and (peak < peak_bytes or (over_plains and peak == peak_bytes and len(changes) > len(taken)))
            ]
            if not together:
                break
            peak_bytes, taken = min(together, key=lambda one: one[0])
        return taken

    def _alone_bytes(self, lever: Lever, card: Card) -> int | None:
        return self._peak_bytes((lever,), card)

    def _peak_bytes(self, changes: _Changes, card: Card) -> int | None:
        """The peak at the risk; None where the changes do not apply, or no time is left to try them."""
        key = changes, card.architecture
        if key not in self._peaks:
            traced, started = self._traced_knobs(self._changed(changes)), self._clock()
            is_traced = traced in self._traced
            if started + (0 if is_traced else self._longest_seconds) >= self._ends_at:
                self._is_cut_short = True
                return None
            self._emit(Progress(stage="trying levers"))
            try:
                self._predicted_bytes(changes, card)
            except AutofitError:
                self._peaks[key] = None
            if not is_traced:
                self._traced.add(traced)
                self._longest_seconds = max(self._longest_seconds, self._clock() - started)
        return self._peaks[key]

    def _predicted_bytes(self, changes: _Changes, card: Card) -> int:
        """The same, whatever the time; raises `AutofitError` where they do not apply."""
        key = changes, card.architecture
        if (known := self._peaks.get(key)) is not None:
            return known
        if changes not in self._curves:
            curve = self._predictor.curve_at(self._changed(changes), card, self._batch_size)
            self._curves[changes] = curve.at_risk(self._risk)
        if (why := self._curves[changes].why_unpredictable_on(card, self._batch_size)) is not None:
            raise UnpredictableCardError(why)
        on_card = self._curves[changes].on(card)
        if (why := on_card.why_refused(self._batch_size)) is not None:
            raise WorkloadFailedError(why)
        self._peaks[key] = peak_bytes = on_card.peak_reserved_bytes(self._batch_size)
        return peak_bytes

    def _changed(self, changes: _Changes) -> Knobs:
        values = {lever.name: getattr(lever.knobs, lever.name) for lever in changes}
        return dataclasses.replace(self._knobs, **values)

    def _traced_knobs(self, knobs: Knobs) -> Knobs:
        return traced_knobs(knobs, num_passes=knobs.num_passes(self._batch_size))

    def _is_free(self, lever: Lever) -> bool:
        """Whether the trace that is here does for it."""
        return self._traced_knobs(lever.knobs) == self._traced_knobs(self._knobs)

    def _is_to_be_tried(self, lever: Lever) -> bool:
        is_layout = lever.name == "memory_format"  # of tensors that only images and their convolutions have
        return (
            lever.may_save
            and not lever.why_pointless(self._trace)
            and (self._trace.convolves or not is_layout)
        )

    def _changes_the_step(self, lever: Lever) -> bool:
        """Whether anything can come of a lever; of one that was tried, so that its trace is here."""
        if self._is_free(lever):
            return True
        trace = self._predictor.trace(lever.knobs, self._batch_size)
        return (trace.events, trace.allocations) != (self._trace.events, self._trace.allocations)


def _promising_first(usable: Sequence[Lever]) -> list[Lever]:
    """The gentlest first; of what is as gentle the last of the knobs, allocator and checkpointing."""
    names = list(KNOBS)
    return sorted(usable, key=lambda lever: (lever.effect.rank, -names.index(lever.name)))


def _with(taken: _Changes, lever: Lever) -> _Changes:
    """Changes and one more, in place of another of its knob."""
    return _in_order(*(other for other in taken if other.name != lever.name), lever)


def _pairs(single: Sequence[Lever]) -> Iterator[_Changes]:
    """All pairs of changes of different knobs."""
    for first, second in itertools.combinations(single, 2):
        if first.name != second.name:
            yield _in_order(first, second)


def _in_order(*changes: Lever) -> _Changes:
    """The gentlest first; the same changes are always in the same order."""
    return tuple(sorted(changes, key=lambda lever: (lever.effect.rank, lever.name)))
