"""Orders knob settings by the time of a sample, as far as it is known without running them.

The order has no times: settings that differ in a knob whose effect depends on the model or the card are not
compared. If times are measured, they count instead (`autofit.search.pareto`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE

_COSTS = sorted(
    ((knob.name, knob.cost) for knob in KNOBS.values() if knob.cost is not None),
    key=lambda named: named[1].rank,
)


@dataclass(frozen=True, slots=True)
class Pace:
    """Relative speed of a knob setting, which compares two settings by the time of a sample.

    Attributes:
        alike: values of knobs that must be equal for two settings to be compared.
        costs: relative costs of the other knobs; a setting whose costs are all at most those of another
            takes no longer for a sample.
    """

    alike: tuple[Any, ...]
    costs: tuple[float, ...]

    @classmethod
    def of(cls, knobs: Knobs, architecture: str, *, conv_cost: float | None = None) -> Self:
        """Relative speed of a knob setting on cards of an architecture.

        Args:
            architecture: architecture of the card, or `HOST_ARCHITECTURE`.
            conv_cost: predicted time of its convolutions over that of the backend's choice;
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
        """Sort key of a knob setting's usual speed, to order any two that fit as large a batch."""
        pace = cls.of(knobs, architecture)
        names_fast_kernels = {name for name, cost in _COSTS if cost.names_fast_kernels}
        is_last_resort = architecture != HOST_ARCHITECTURE and any(
            name in names_fast_kernels for name, _ in pace.alike
        )
        return (is_last_resort, *pace.costs)

    def is_no_slower_than(self, other: Pace) -> bool:
        """Whether a sample is known to take no longer than with the knob setting of `other`."""
        return self.alike == other.alike and all(a <= b for a, b in zip(self.costs, other.costs, strict=True))


def _capability(name: str) -> int | None:
    """Compute capability by which costs are ordered; None on the CPU and for cards that have none."""
    if name == HOST_ARCHITECTURE:
        return None
    card = Architecture.of(name)
    return card.capability if card.vendor.facts.has_capability else None
