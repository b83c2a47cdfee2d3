"""Finds changes that make a configuration fit in memory, tried alone and together."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from autofit.events import EventSink, ignore
from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor
from autofit.questions.combining import Combining
from autofit.questions.levers import Effect, Lever, gentleness, levers, shorter_samples, smaller_batches
from autofit.questions.promises import Candidate, Promises, candidates, minimal
from autofit.questions.tried_changes import Changes, TriedChanges
from autofit.settings.goals import Risk
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import Trace

ADVICE_SECONDS = 10.0
_PROMISED = 0.9  # of what there is: what promises to need no more is likely to fit, what needs all may
_MOST_OF_A_KIND = 2  # promises that are tried
_MOST_BROKEN = 3  # promises, before other ways are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLever:
    """Savings and peak of one change of a configuration, tried alone.

    Attributes:
        name, value: what is changed, and to what.
        how: the option to type.
        saved_bytes: saved of the reserved peak that has to fit; less than 0 where it takes more.
        fits: whether the change is enough.
        effect: its side effect.
    """

    name: str
    value: str
    how: str
    saved_bytes: int
    fits: bool
    effect: Effect = Effect.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Combination of changes that makes a configuration fit.

    Attributes:
        options: what to type.
        peak_reserved_bytes: the peak with them, at the risk.
        effect: the harshest side effect among them.
    """

    options: tuple[str, ...]
    peak_reserved_bytes: int
    effect: Effect = Effect.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice for a configuration that exceeds memory: the changes tried, and those that make it fit.

    Attributes:
        batch_size: the batch size that the advice is about.
        peak_reserved_bytes: the peak as it is, at the risk that has to fit.
        levers: the changes tried alone; those that change no training first, then the largest saving.
        combination: the gentlest changes that fit; None where nothing that was tried fits.
        others: combinations that fit by another kind of change each, the gentlest first.
        is_complete: False if the time was over before everything was tried.
    """

    batch_size: int
    peak_reserved_bytes: int
    levers: tuple[TriedLever, ...]
    combination: Combination | None
    is_complete: bool
    others: tuple[Combination, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoCards:
    """Two cards with one rank each, considered in place of one card.

    Attributes:
        setup: the setup of the ranks.
        card: one of the cards, beside another.
        limit_bytes: the bytes that the allocator may reserve there.
    """

    setup: Setup
    card: Card
    limit_bytes: int

    @property
    def num_cards(self) -> int:
        return self.setup.num_ranks


class Adviser:
    """Tries changes of a configuration that exceeds memory, alone and together, within a time limit.

    Among all changes that fit, the advice names the gentlest, see `gentleness`: changes that leave a step's
    numbers and speed as they are come before slower ones, these before rounding, and rounding before training
    something else; fewer changes before more. Among equally gentle ones it names those that save most,
    compared with every other change and pair of changes. First it tries what the trace at hand promises to
    fit (`Promises`), the gentlest first; then gentler changes that may fit, other kinds of changes that fit,
    each change alone, and whatever else is gentler. Where no promise is kept, more than two changes are found
    by adding the one that saves most to those taken, and leaving out needless ones. Once something fits,
    trying further may take as long as finding that did.

    Cards share the traces, and those of one architecture what is predicted.

    Args:
        risk: the level of the peak that has to be within the limit.
        fixed: names of knobs that are left as they are.
        two_cards: the setup on two cards; None where that is not to be tried.
        given: names of knobs that were asked for, which are changed where nothing else fits.
        with_traces: whether changes are tried that cost a trace each.
        seconds: the time after which nothing further is tried, on any card.
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
        given: Container[str] = (),
        two_cards: TwoCards | None = None,
        with_traces: bool = True,
        seconds: float = ADVICE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        emit: EventSink = ignore,
    ) -> None:
        self._batch_size = batch_size
        self._tried = TriedChanges(
            predictor, knobs, batch_size, risk=risk, seconds=seconds, clock=clock, emit=emit
        )
        trace = self._tried.trace
        usable = [
            dataclasses.replace(lever, replaces_given=any(name in given for name in lever.changed(knobs)))
            for lever in (*levers(knobs, trace.mode), *shorter_samples(knobs, trace.sample))
            if lever.name not in fixed and _is_to_be_tried(lever, trace)
        ]
        usable += smaller_batches(knobs, batch_size, trace.mode)
        self._levers = [
            lever for lever in _promising_first(usable) if with_traces or self._tried.is_free(lever)
        ]
        self.num_untried = len(usable) - len(self._levers)
        self._combining = Combining(self._tried, self._levers)
        self._two_cards = two_cards
        self._promises = Promises(trace, knobs, batch_size)
        self._candidates = candidates(self._levers, self._promises)

    def on(self, card: Card, limit_bytes: int) -> Advice:
        """Advice for a card: the changes tried, and those with which the peak is within `limit_bytes`.

        Raises:
            AutofitError: the configuration cannot be predicted as it is.
        """
        base_bytes = self._tried.predicted_bytes((), card)
        fits_already = base_bytes <= limit_bytes
        changes: Changes = ()
        others: list[Changes] = []
        on_two: Combination | None = None
        if not fits_already:
            promising = minimal(self._candidates, _PROMISED * limit_bytes / base_bytes)
            changes = self._first_promised(promising, card, limit_bytes)
            changes = changes or self._combining.first_fitting(card, limit_bytes)
            if changes:
                self._tried.end_soon()
            close = minimal(self._candidates, limit_bytes / base_bytes)
            gentler = [each for each in close if gentleness(each.changes) < gentleness(changes)]
            changes = self._first_promised(gentler, card, limit_bytes) or changes
            others = self._other_ways(promising, changes, card, limit_bytes)
            on_two = self._on_two_cards(base_bytes)
        alone = [
            (peak, lever)
            for lever in self._levers
            if (peak := self._tried.peak_bytes((lever,), card)) is not None
        ]
        alone.sort(key=lambda tried: (tried[1].effect.changes_training, tried[0]))
        changes = () if fits_already else self._combining.gentlest(changes, card, limit_bytes)
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
            combination=self._combination(changes, card) if changes else None,
            others=(
                *(self._combination(each, card) for each in others if each != changes),
                *(() if on_two is None else (on_two,)),
            ),
            is_complete=not self._tried.is_cut_short,
        )

    def _combination(self, changes: Changes, card: Card) -> Combination:
        return Combination(
            options=tuple(lever.how for lever in changes),
            peak_reserved_bytes=self._tried.predicted_bytes(changes, card),
            effect=max((lever.effect for lever in changes), key=lambda effect: effect.rank),
        )

    def _first_promised(self, promising: Sequence[Candidate], card: Card, limit_bytes: int) -> Changes:
        """Changes of the first candidate predicted to fit; empty if none is, or after too many failures."""
        num_broken, enough = 0, dict.fromkeys(self._levers, 1.0)
        for candidate in promising:
            if num_broken == _MOST_BROKEN:
                break
            if any(candidate.share > enough[lever] for lever in candidate.changes):
                continue
            peak_bytes = self._tried.peak_bytes(candidate.changes, card)
            if peak_bytes is not None and peak_bytes <= limit_bytes:
                return candidate.changes
            if peak_bytes is not None:
                num_broken += 1
                # Whatever else has one of these changes has to promise as much more as is missing here.
                for lever in candidate.changes:
                    enough[lever] = min(enough[lever], candidate.share * limit_bytes / peak_bytes)
        return ()

    def _other_ways(
        self, promising: Sequence[Candidate], found: Changes, card: Card, limit_bytes: int
    ) -> list[Changes]:
        """Other changes that fit, at most one set for each knob that `found` leaves alone."""
        ways: dict[str, Changes] = {}
        num_tried: Counter[str] = Counter()
        taken = {lever.name for lever in found}
        for candidate in promising:
            kind = candidate.changes[-1].name
            if kind in taken or kind in ways or num_tried[kind] == _MOST_OF_A_KIND:
                continue
            num_tried[kind] += 1
            if self._combining.fits(candidate.changes, card, limit_bytes):
                ways[kind] = candidate.changes
        return list(ways.values())

    def _on_two_cards(self, base_bytes: int) -> Combination | None:
        """Combination that fits on two cards, with at most one slower lever; None where none fits."""
        two = self._two_cards
        if two is None:
            return None
        batch_size = self._batch_size // 2 if self._batch_size % 2 == 0 else self._batch_size
        tried = self._tried.on_ranks(two.setup, batch_size)

        def share(changes: Changes) -> float:
            of_batch = batch_size / self._batch_size
            return self._promises.share(changes, num_shards=two.num_cards, batch_share=of_batch)

        single = [
            (lever,) for lever in self._levers if lever.effect is Effect.SLOWER and lever.batch_size is None
        ]
        for changes in ((), *sorted(single, key=share)[:1]):
            if share(changes) > two.limit_bytes / base_bytes:
                continue
            peak_bytes = tried.peak_bytes(changes, two.card)
            if peak_bytes is not None and peak_bytes <= two.limit_bytes:
                smaller = () if batch_size == self._batch_size else (f"--batch-size {batch_size}",)
                return Combination(
                    options=(f"--parallel {two.setup.parallel}", *smaller, *(lever.how for lever in changes)),
                    peak_reserved_bytes=peak_bytes,
                    effect=Effect.MORE_CARDS,
                )
        return None


def _is_to_be_tried(lever: Lever, trace: Trace) -> bool:
    is_layout = lever.name == "memory_format"  # of tensors that only images and their convolutions have
    return lever.may_save and not lever.why_pointless(trace) and (trace.convolves or not is_layout)


def _promising_first(usable: Sequence[Lever]) -> list[Lever]:
    """Levers sorted by gentleness; equally gentle ones in reverse order of their knobs."""
    names = [*KNOBS, "batch_size"]
    return sorted(usable, key=lambda lever: (gentleness([lever]), -names.index(lever.name)))
