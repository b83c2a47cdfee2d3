"""Prunes knob settings that need no trials: another one is no slower and fits as large a batch.

    setting  at most  settled rival that is no slower        result
    A          160    –                                      searched first
    B           90    A fits 138                             pruned
    C          150    A fits 138                             139 is tried: pruned if it fails

The most that a setting could fit is the batch that the low end of its prediction allows, or one less than a
size that failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autofit.search.boundary import Boundary
from autofit.search.pace import Pace
from autofit_workers.spec.knobs import Knobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedSetting:
    """Knob setting whose search for the largest batch was cut short, with the reason.

    Attributes:
        at_most: upper bound of its largest batch; 0 if no batch fits.
        failing_batch: size that was tried and failed, which gives the bound; None if the prediction gives it.
        faster: other knob setting, which fits at least as large a batch and is no slower.
    """

    knobs: Knobs
    at_most: int
    failing_batch: int | None
    faster: Knobs


class Pruning:
    """Finds knob settings that need no trials, as another setting is no slower and fits as large a batch.

    Args:
        settings: all knob settings of the search; of settings that are equal in batch and speed, the first is
            kept.
        paces: usual relative speed of every setting.
        at_most: returns a predicted upper bound of a setting's largest batch, 0 if no batch fits, None
            without a prediction. Called only for settings that are comparable with another one.
    """

    def __init__(
        self,
        settings: Sequence[Knobs],
        *,
        paces: Mapping[Knobs, Pace],
        at_most: Callable[[Knobs], int | None],
    ) -> None:
        self.at_most = functools.cache(at_most)
        self._index = {knobs: number for number, knobs in enumerate(settings)}
        alike: dict[tuple[object, ...], list[Knobs]] = {}
        for knobs in settings:
            alike.setdefault(paces[knobs].alike, []).append(knobs)
        self._rivals = {
            knobs: tuple(
                other
                for other in alike[paces[knobs].alike]
                if other != knobs and paces[other].is_no_slower_than(paces[knobs])
            )
            for knobs in settings
        }

    def pruned(self, knobs: Knobs, largest: Mapping[Knobs, int], boundary: Boundary) -> PrunedSetting | None:
        """Record of why a knob setting needs no further trials; None if it still may be the best.

        Args:
            largest: largest batch of each setting for which it is known; 0 if none fits.
            boundary: outcomes so far of the setting itself.
        """
        rival = self.best_rival(knobs, largest)
        if rival is None:
            return None
        failing = boundary.fails_just_beyond(largest[rival])
        if failing is not None:
            at_most = boundary.at_most(failing - 1)
            return PrunedSetting(knobs=knobs, at_most=at_most, failing_batch=failing, faster=rival)
        predicted = self.at_most(knobs)
        if predicted is None or predicted > largest[rival]:
            return None
        return PrunedSetting(knobs=knobs, at_most=predicted, failing_batch=None, faster=rival)

    def best_rival(self, knobs: Knobs, largest: Mapping[Knobs, int]) -> Knobs | None:
        """Setting that is no slower than `knobs`, with the largest batch of all such; None if there is none.

        Args:
            largest: largest batch of each setting for which it is known; 0 if none fits.
        """
        rivals = [rival for rival in self._rivals[knobs] if largest.get(rival)]
        return max(rivals, key=lambda rival: (largest[rival], -self._index[rival]), default=None)

    def leading(self, open_settings: Sequence[Knobs], unsettled: Collection[Knobs]) -> list[Knobs]:
        """Knob settings to search first: those that no other unfinished setting is predicted to beat.

        If every setting waits for another one, all are returned.

        Args:
            open_settings: settings that have a batch size to try.
            unsettled: settings whose largest batch is not known yet.
        """
        leading = [
            knobs
            for knobs in open_settings
            if not any(self._comes_first(r, knobs) for r in self._rivals[knobs] if r in unsettled)
        ]
        return leading or list(open_settings)

    def affected_by(self, knobs: Knobs) -> Iterable[Knobs]:
        """Knob settings that would need no trials if `knobs` fits as large a batch."""
        return (other for other, rivals in self._rivals.items() if knobs in rivals)

    def _comes_first(self, rival: Knobs, knobs: Knobs) -> bool:
        theirs, own = self.at_most(rival), self.at_most(knobs)
        if theirs is None or own is None:
            return False
        if theirs != own:
            return theirs > own
        is_mutual = knobs in self._rivals[rival]
        return not is_mutual or self._index[rival] < self._index[knobs]
