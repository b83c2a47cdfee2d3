"""Which of two knob settings takes no longer for a sample, as far as that is known without running them.

An order, not a time: settings that differ in anything whose effect depends on the model or the card
are not compared. Measured times, where there are any, count instead (`autofit.search.pareto`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from workers.protocol import HOST_ARCHITECTURE, Knobs, split_checkpointing

_ALL_RECOMPUTED = 3
_BY_LAUNCHES = {"fused": 0, "default": 1, "foreach": 1, "loop": 2}  # of kernels per optimizer step

# From tensor cores down to fp32 without them. Before Ampere bfloat16 has no tensor cores, and TF32 is
# not there (NVIDIA's white papers on Volta, Turing and Ampere).
_BFLOAT16_SINCE = 80
_SINCE_AMPERE = {"bf16": 0, "amp-bf16": 1, "amp-fp16": 1, "tf32": 2, "fp32": 3, "ieee-fp32": 4}
_BEFORE_AMPERE = {"amp-fp16": 0, "tf32": 1, "fp32": 1, "ieee-fp32": 1}


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
            architecture: `sm_XY` of the card, or `HOST_ARCHITECTURE`.
            conv_cost: the predicted time of its convolutions over that of the backend's choice;
                without it settings of different algorithms are not compared.
        """
        left = dataclasses.asdict(knobs)
        costs: list[float] = [
            not left.pop("set_to_none"),
            _recomputed(left.pop("checkpointing")),
        ]
        if conv_cost is not None:
            del left["conv_algo"]
            costs.append(conv_cost)
        if architecture != HOST_ARCHITECTURE:  # where oneDNN and vector units decide, too different
            costs.append(_BY_LAUNCHES[left.pop("optimizer_impl")])
            has_bfloat16 = int(architecture.removeprefix("sm_")) >= _BFLOAT16_SINCE
            by_type = _SINCE_AMPERE if has_bfloat16 else _BEFORE_AMPERE
            if left["precision"] in by_type:
                costs.append(by_type[left.pop("precision")])
        return cls(tuple(left.items()), tuple(costs))

    @classmethod
    def usually(cls, knobs: Knobs, architecture: str) -> tuple[float, ...]:
        """Orders settings that fit as much by what they usually cost, whatever they differ in."""
        pace = cls.of(knobs, architecture)
        is_last_resort = architecture != HOST_ARCHITECTURE and any(
            name == "precision" for name, _ in pace.alike
        )
        return (is_last_resort, *pace.costs)

    def is_no_slower_than(self, other: Pace) -> bool:
        """Whether a sample takes at most as long, as far as that is known."""
        return self.alike == other.alike and all(a <= b for a, b in zip(self.costs, other.costs, strict=True))


def _recomputed(checkpointing: str) -> float:
    """How much of the forward pass runs again: none, what is cheap and a part of the rest, all of it."""
    kind, number = split_checkpointing(checkpointing)
    if kind == "none":
        return 0
    return 1 + (100 - (number or 100)) / 100 if kind == "selective" else _ALL_RECOMPUTED
