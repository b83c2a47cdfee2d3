"""Plan source for MIOpen, which runs convolutions on AMD's cards in cuDNN's place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.work import Convolution


@dataclass(frozen=True)
class MiopenPlans:
    """Source of convolution plans for AMD's cards, which knows none: it raises for any call. A `PlanSource`.

    MIOpen takes the solution that its database or a search on the card finds best; the workspaces of these
    solutions are documented nowhere, and none was measured. `autofit.predict.unpredictable` refuses such
    steps before this source is asked.
    """

    name: ClassVar[str] = "nothing is left to MIOpen"
    knows_the_order: ClassVar[bool] = False

    def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
        """Returns an empty list if there are no calls; raises for any call.

        See `PlanSource`.

        Raises:
            LookupError: `calls` is not empty.
        """
        if calls:
            raise LookupError(f"MIOpen's plans are not known: of {calls[0]}")
        return []
