"""Finds combinations of changes that make a configuration fit, by their predicted peaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autofit.hardware.card import Card
from autofit.questions.levers import Effect, Lever, gentleness, in_order
from autofit.questions.tried_changes import Changes, TriedChanges

# Knobs that change the memory of the allocator and of convolutions, but no tensors of a step.
_AROUND_TENSORS = frozenset({"allocator", "conv_algo", "memory_format"})


class Combining:
    """Finds combinations of changes that make a configuration fit, until a time limit has passed.

    Args:
        tried: predicts the peak with given changes, within the time limit.
        levers: changes to choose from, the mildest side effects first.
    """

    def __init__(self, tried: TriedChanges, levers: Sequence[Lever]) -> None:
        self._tried = tried
        self._levers = levers

    def first_fitting(self, card: Card, limit_bytes: int) -> Changes:
        """Changes with the mildest side effects with which the step fits; empty if none fit."""
        alone = self._first_alone(card, limit_bytes)
        taken: Changes = ()
        for effect in Effect:
            if alone and alone[0].effect is effect:
                break
            within = self._effective(effect, card)
            for start, over_plains in ((taken, False), (taken, True), ((), False)):
                found = self._lowest(start, within, card, limit_bytes, over_plains=over_plains)
                if self.fits(found, card, limit_bytes):
                    return self._without_needless(found, card, limit_bytes)
            taken = self._lowest(taken, within, card, limit_bytes)
        return alone

    def _first_alone(self, card: Card, limit_bytes: int) -> Changes:
        """Single change with the mildest side effect with which the step fits; empty if none does."""
        is_above = self._tried.lower_bound_bytes(card) > limit_bytes
        # Changes that keep the tensors cannot suffice if the tensors alone exceed the limit.
        tried = [lever for lever in self._levers if not (is_above and lever.name in _AROUND_TENSORS)]
        for effect in Effect:
            fitting = [
                lever for lever in tried if lever.effect is effect and self.fits((lever,), card, limit_bytes)
            ]
            if fitting:
                return (min(fitting, key=lambda lever: self._tried.predicted_bytes((lever,), card)),)
        return ()

    def _without_needless(self, changes: Changes, card: Card, limit_bytes: int) -> Changes:
        """Copy of `changes` without those that are not needed to fit; the harshest are dropped first."""
        for lever in reversed(changes):
            others = tuple(other for other in changes if other is not lever)
            if self.fits(others, card, limit_bytes):
                changes = others
        return changes

    def gentlest(self, found: Changes, card: Card, limit_bytes: int) -> Changes:
        """Returns `found`, or a milder change or pair of changes that fits too.

        Among equally mild ones it returns the one with the lowest peak.

        Args:
            found: changes known to fit; empty if none are.
        """

        def place(changes: Changes) -> tuple[tuple[int, ...], int]:
            return gentleness(changes), self._tried.predicted_bytes(changes, card)

        effective = self._effective(Effect.LESS, card)
        single = [(lever,) for lever in effective]
        for changes in sorted((*single, *_pairs(effective)), key=gentleness):
            if found and gentleness(changes) > gentleness(found):
                break
            if self.fits(changes, card, limit_bytes):
                found = min(found, changes, key=place) if found else changes
        return found

    def fits(self, changes: Changes, card: Card, limit_bytes: int) -> bool:
        peak_bytes = self._tried.peak_bytes(changes, card)
        return peak_bytes is not None and peak_bytes <= limit_bytes

    def _effective(self, effect: Effect, card: Card) -> list[Lever]:
        """Changes that alter the traced step, with side effects up to `effect`; the largest saving first."""
        within = [
            (peak_bytes, lever)
            for lever in self._levers
            if lever.effect.rank <= effect.rank
            and (peak_bytes := self._tried.peak_bytes((lever,), card)) is not None
            and self._tried.changes_the_step(lever)
        ]
        return [lever for _, lever in sorted(within, key=lambda tried: tried[0])]

    def _lowest(
        self,
        taken: Changes,
        within: Sequence[Lever],
        card: Card,
        limit_bytes: int,
        *,
        over_plains: bool = False,
    ) -> Changes:
        """Changes in `taken` with further changes added, each the one that saves most, until the step fits.

        The result does not fit if no further change lowers the peak.

        Args:
            within: changes that may be added.
            over_plains: whether to add also changes that alone leave the peak as it is: if two moments of a
                step are equally high, only a change for each of them together lowers the peak.
        """
        peak_bytes = self._tried.predicted_bytes(taken, card)
        while peak_bytes > limit_bytes:
            together = [
                (peak, changes)
                for changes in (_with(taken, lever) for lever in within if lever not in taken)
                if (peak := self._tried.peak_bytes(changes, card)) is not None
                and (peak < peak_bytes or (over_plains and peak == peak_bytes and len(changes) > len(taken)))
            ]
            if not together:
                break
            peak_bytes, taken = min(together, key=lambda one: one[0])
        return taken


def _with(taken: Changes, lever: Lever) -> Changes:
    """Changes in `taken` with `lever` added; it replaces a change of the same knob."""
    return in_order(*(other for other in taken if other.name != lever.name), lever)


def _pairs(single: Sequence[Lever]) -> Iterator[Changes]:
    """Yields all pairs of the single changes that change different knobs."""
    for first, second in itertools.combinations(single, 2):
        if first.name != second.name:
            yield in_order(first, second)
