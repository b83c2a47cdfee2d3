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
_PROMISED = 0.9  # share of the limit; changes with a rough estimate below it are tried first
_MOST_OF_A_KIND = 2  # promising candidates of one kind of change that are tried
_MOST_BROKEN = 3  # promising candidates that may fail before other ways are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLever:
    """Change of a configuration, tried alone: the bytes it saves, and whether the step then fits.

    Attributes:
        name, value: knob that is changed, such as `precision`, and its new value.
        how: command-line option that makes the change.
        saved_bytes: bytes by which the change lowers the reserved peak, at the risk that the user chose;
            negative if it raises the peak.
        fits: whether the change alone makes the configuration fit.
        effect: side effect of the change, such as a slower step.
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
        options: command-line options that make the changes.
        peak_reserved_bytes: reserved peak with all of the changes, at the risk that the user chose: its
            likely value, high end or worst case.
        effect: harshest side effect among the changes.
    """

    options: tuple[str, ...]
    peak_reserved_bytes: int
    effect: Effect = Effect.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice for a configuration that does not fit: the changes that were tried, and those that make it fit.

    Attributes:
        batch_size: batch size that the advice is for.
        peak_reserved_bytes: reserved peak without changes, at the risk that the user chose: its likely value,
            high end or worst case.
        levers: changes tried alone; those that do not change the training first, then by largest saving.
        combination: the changes with the mildest side effects that together make the configuration fit; None
            if no changes that were tried do.
        others: further combinations that make it fit, each with a change of a knob that `combination` leaves
            alone; the mildest first.
        is_complete: False if the time limit passed before everything was tried.
    """

    batch_size: int
    peak_reserved_bytes: int
    levers: tuple[TriedLever, ...]
    combination: Combination | None
    is_complete: bool
    others: tuple[Combination, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoCards:
    """Two cards with one rank each, to share a step that does not fit on one card.

    Attributes:
        setup: mode and parallelism of the two ranks.
        card: one of the two cards.
        limit_bytes: bytes that the allocator may reserve on each card.
    """

    setup: Setup
    card: Card
    limit_bytes: int

    @property
    def num_cards(self) -> int:
        return self.setup.num_ranks


class Adviser:
    """Tries changes of a configuration that exceeds memory, alone and together, within a time limit.

    A change sets one knob, such as the precision, to another value. Among all changes that make the step fit,
    the advice names those with the mildest side effects (`gentleness`): changes that keep a step's numbers
    and speed come before those that slow it, these before lower precision, and lower precision before another
    optimizer or other weights; fewer changes before more. Among equally mild ones it names those that save
    most.

    Combinations that should fit by an estimate from the existing trace (`Promises`) are tried first, the
    mildest first; then milder ones that may fit, other kinds of changes, each change alone, and all milder
    pairs. If no estimated combination fits, the change that saves most is added until the step fits, and
    unnecessary changes are dropped. Once a combination fits a card, the search for that card goes on
    for at most as long as finding it took, or for four seconds.

    Cards share the traces, and cards of one architecture share the predictions.

    Args:
        risk: which value of a predicted peak has to be within the limit: the likely one, the high end of its
            interval, or the worst case.
        fixed: names of knobs that must not be changed.
        two_cards: setup on two cards; None if it must not be tried.
        given: names of knobs that the user set; to change one counts as harsher than lower precision, and as
            milder than another optimizer or other weights.
        with_traces: whether to try changes that cost a trace each.
        seconds: time limit from the start, for all cards together, after which nothing more is tried.
        clock: returns the time in seconds.
        emit: called with a progress event for each change that is tried.

    Attributes:
        num_untried: number of single changes that are left out because each costs a trace.
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
            AutofitError: the unchanged configuration cannot be predicted.
        """
        self._tried.for_another_card()
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
        """First combination of changes predicted to fit; empty if none fits, or after too many that do not.

        Args:
            promising: combinations that should fit by a rough estimate, the mildest first.
        """
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
                # The estimate was too low by peak_bytes / limit_bytes; other candidates with one of these
                # changes need an estimate that is lower by this factor.
                for lever in candidate.changes:
                    enough[lever] = min(enough[lever], candidate.share * limit_bytes / peak_bytes)
        return ()

    def _other_ways(
        self, promising: Sequence[Candidate], found: Changes, card: Card, limit_bytes: int
    ) -> list[Changes]:
        """Other combinations of changes that fit, at most one for each knob that `found` leaves alone."""
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
        """Changes that fit the step on two cards, with at most one that slows it; None if none do.

        Args:
            base_bytes: reserved peak of the unchanged step on one card.
        """
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
    is_layout = lever.name == "memory_format"  # channels_last is a layout of images for convolutions
    return lever.may_save and not lever.why_pointless(trace) and (trace.convolves or not is_layout)


def _promising_first(usable: Sequence[Lever]) -> list[Lever]:
    """Changes sorted by side effects, the mildest first; of equally mild ones, the last in `KNOBS` first."""
    names = [*KNOBS, "batch_size"]
    return sorted(usable, key=lambda lever: (gentleness([lever]), -names.index(lever.name)))
