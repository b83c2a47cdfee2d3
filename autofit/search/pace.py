"""Orders knob settings by the time of a sample, as far as it is known without running them.

The order has no times: settings that differ in a knob whose effect depends on the model or the card are not
compared. If times are measured, they count instead (`autofit.search.pareto`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE
from autofit_workers.spec.pythons import Self

_COSTS = sorted(
    ((knob.name, knob.cost) for knob in KNOBS.values() if knob.cost is not None),
    key=lambda named: named[1].rank,
)


@dataclass(frozen=True, slots=True)
class Pace:
    """Usual relative speed of a knob setting, known without a run, to compare it with another.

    Attributes:
        alike: values of the knobs whose effect on speed is unknown. Only settings with equal values are
            compared.
        costs: rank of the cost of each other knob's value. If all costs are at most those of another setting,
            a sample takes no longer.
    """

    alike: tuple[Any, ...]
    costs: tuple[float, ...]

    @classmethod
    def of(cls, knobs: Knobs, architecture: str, *, conv_cost: float | None = None) -> Self:
        """Usual relative speed of a knob setting on cards of an architecture.

        Args:
            architecture: architecture of the card, or `HOST_ARCHITECTURE`.
            conv_cost: predicted time of the convolutions divided by that with the algorithms that the backend
                would choose; None if unknown. Without it, settings with different convolution algorithms are
                not compared.
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
        """Sort key of knob settings by their usual speed, the fastest first; any two settings can be ordered.

        Its order is only plausible, not certain as `is_no_slower_than`.
        """
        pace = cls.of(knobs, architecture)
        names_fast_kernels = {name for name, cost in _COSTS if cost.names_fast_kernels}
        is_last_resort = architecture != HOST_ARCHITECTURE and any(
            name in names_fast_kernels for name, _ in pace.alike
        )
        return (is_last_resort, *pace.costs)

    def is_no_slower_than(self, other: Pace) -> bool:
        """Whether a sample surely takes no longer than with the knob setting of `other`."""
        return self.alike == other.alike and all(a <= b for a, b in zip(self.costs, other.costs, strict=True))


def _capability(name: str) -> int | None:
    """Compute capability of an architecture, on which the costs of knobs depend.

    Returns:
        The capability; None for the CPU and for cards without one, such as AMD's.
    """
    if name == HOST_ARCHITECTURE:
        return None
    card = Architecture.of(name)
    return card.capability if card.vendor.facts.has_capability else None
