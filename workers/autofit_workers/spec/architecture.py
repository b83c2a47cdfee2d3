"""What a card's kernels are compiled for: NVIDIA's `sm_86`, AMD's `gfx942`.

Documents and settings hold the name; whose card it is, and what follows from that, is read here.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

_VOLTA = 70


class Vendor(StrEnum):
    """Who made a card, and so which libraries PyTorch runs there: cuDNN and cuBLAS, or MIOpen and hipBLAS."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture by its name.

    Attributes:
        name: `sm_XY`, of a compute capability, or AMD's `gfxNNN`.
        vendor: whose cards have it.
        number: of NVIDIA's the compute capability, 10 × major + minor; of AMD's the target's digits, which
            are hexadecimal.
    """

    name: str
    vendor: Vendor
    number: int

    @classmethod
    @functools.cache
    def of(cls, name: str) -> Self:
        """The architecture of that name.

        Raises:
            ValueError: no vendor names its architectures so.
        """
        if match := re.fullmatch(r"sm_(\d{2,3})", name):
            return cls(name, Vendor.NVIDIA, int(match[1]))
        if match := re.fullmatch(r"gfx([0-9a-f]{3,4})", name):
            return cls(name, Vendor.AMD, int(match[1], 16))
        raise ValueError(f"no architecture is named {name!r}: expected a name such as sm_86 or gfx942")

    @property
    def capability(self) -> int:
        """The compute capability, 86 for 8.6.

        Raises:
            ValueError: it is AMD's, which have none.
        """
        if self.vendor is not Vendor.NVIDIA:
            raise ValueError(f"{self.name} has no compute capability")
        return self.number

    @property
    def is_planned_for(self) -> bool:
        """Whether cuDNN plans convolutions for it, as predictions know it: of NVIDIA's, from Volta on."""
        return self.vendor is Vendor.NVIDIA and self.number >= _VOLTA

    @property
    def age(self) -> tuple[bool, int]:
        """Orders the architectures of a vendor by their age, NVIDIA's before AMD's."""
        return self.vendor is Vendor.AMD, self.number


# Of the largest common card of each compute capability, from NVIDIA's data sheets.
_NUM_MULTIPROCESSORS = {
    60: 56,
    61: 28,
    70: 80,
    75: 40,
    80: 108,
    86: 82,
    87: 16,
    89: 128,
    90: 132,
    100: 148,
    120: 170,
}
_FEWEST_MULTIPROCESSORS = 40


def num_multiprocessors(capability: int) -> int:
    """Of the largest common card of a compute capability; of one that is not known the fewest of most."""
    return _NUM_MULTIPROCESSORS.get(capability, _FEWEST_MULTIPROCESSORS)


def of_capability(major: int, minor: int) -> str:
    """The name of the architecture of a compute capability."""
    return f"sm_{major}{minor}"


def of_device(properties: Any, hip: str | None) -> str:
    """The name of a device's architecture.

    Args:
        properties: `torch.cuda.get_device_properties`.
        hip: `torch.version.hip`, None in builds for NVIDIA's cards.
    """
    if hip is None:
        return of_capability(properties.major, properties.minor)
    target, _, _features = properties.gcnArchName.partition(":")  # "gfx90a:sramecc+:xnack-"
    return str(target)
