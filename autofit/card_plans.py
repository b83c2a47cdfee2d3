"""The card that a prediction is for, and who knows cuDNN's plans on it."""

from __future__ import annotations

from collections.abc import Callable

from autofit.hardware.card import Card
from workers.predict.grid_plans import GridPlans
from workers.predict.other_cards import OtherCards
from workers.predict.plans import PlanSource

PlanSources = Callable[[str], PlanSource]  # by architecture


class CardPlans:
    """Who knows cuDNN's plans on a card; what was asked for one curve is known to the others.

    Args:
        likely: the source for the likely architecture of a card.
        elsewhere: the same for the others that it may be of.
    """

    def __init__(self, likely: PlanSources, elsewhere: PlanSources) -> None:
        self._likely = likely
        self._elsewhere = elsewhere
        self._grids: dict[str, GridPlans] = {}
        self._others: dict[tuple[str, ...], OtherCards] = {}

    def source(self, card: Card, *, on_grid: bool) -> PlanSource:
        """The plans on the likely architecture.

        Args:
            on_grid: many batch sizes will be asked for, of which cuDNN is not asked each.
        """
        name = card.architecture
        if not on_grid:
            return self._likely(name)
        if name not in self._grids:
            self._grids[name] = GridPlans(self._likely(name))
        return self._grids[name]

    def others(self, card: Card) -> OtherCards | None:
        """What the ends span beside, if anything."""
        names = card.architectures[1:]
        if not names:
            return None
        if names not in self._others:
            self._others[names] = OtherCards({name: self._elsewhere(name) for name in names})
        return self._others[names]
