"""Which of two knob settings takes no longer for a sample, as far as that is known without running them.

An order, not a time: settings that differ in anything whose effect depends on the model or the card
are not compared. Measured times, where there are any, count instead (`autofit.search.pareto`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from autofit_workers.spec.architecture import Architecture, Vendor
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE

_COSTS = sorted(
    ((knob.name, knob.cost) for knob in KNOBS.values() if knob.cost is not None),
    key=lambda named: named[1].rank,
)


@dataclass(frozen=True, slots=True)
class Pace:
    """What orders settings by the time that a sample takes.

    Attributes:
        alike: what has to be equal for a comparison.
        costs: each of them at most another setting's: then a sample takes no longer.
    """

    alike: tuple[Any, ...]
    costs: tuple[float, ...]

    @classmethod
    def of(cls, knobs: Knobs, architecture: str, *, conv_cost: float | None = None) -> Self:
        """The pace of a setting.

        Args:
            architecture: of the card, or `HOST_ARCHITECTURE`.
            conv_cost: the predicted time of its convolutions over that of the backend's choice;
                without it settings of different algorithms are not compared.
        """
        left = dataclasses.asdict(knobs)
        capability = _capability(architecture)
        costs: list[float] = []
        for name, cost in _COSTS:
            if (place := cost.of(left[name], capability)) is not None:
                del left[name]
                costs.append(place)
        if conv_cost is not None:
            del left["conv_algo"]
            costs.append(conv_cost)
        return cls(tuple(left.items()), tuple(costs))

    @classmethod
    def usually(cls, knobs: Knobs, architecture: str) -> tuple[float, ...]:
        """Orders settings that fit as much by what they usually cost, whatever they differ in."""
        pace = cls.of(knobs, architecture)
        names_fast_kernels = {name for name, cost in _COSTS if cost.names_fast_kernels}
        is_last_resort = architecture != HOST_ARCHITECTURE and any(
            name in names_fast_kernels for name, _ in pace.alike
        )
        return (is_last_resort, *pace.costs)

    def is_no_slower_than(self, other: Pace) -> bool:
        """Whether a sample takes at most as long, as far as that is known."""
        return self.alike == other.alike and all(a <= b for a, b in zip(self.costs, other.costs, strict=True))


def _capability(name: str) -> int | None:
    """The compute capability that costs are ordered by; None on the CPU and AMD's cards, which have none."""
    if name == HOST_ARCHITECTURE:
        return None
    card = Architecture.of(name)
    return card.capability if card.vendor is Vendor.NVIDIA else None
