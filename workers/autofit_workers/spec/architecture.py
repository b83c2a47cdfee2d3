"""Architectures that a card's kernels are compiled for, such as NVIDIA's `sm_86` and AMD's `gfx942`.

Documents and settings hold the name; this module reads vendor, number and properties from it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.pythons import Self
from autofit_workers.spec.vendors import Vendor


@dataclass(frozen=True, slots=True)
class Architecture:
    """Architecture of a card, read from its name.

    Attributes:
        name: `sm_XY` for NVIDIA, with X.Y the compute capability; `gfxNNN` for AMD.
        vendor: maker of the cards that have it.
        number: for NVIDIA the compute capability, 10 × major + minor; for AMD the name's hexadecimal
            digits as a number.
    """

    name: str
    vendor: Vendor
    number: int

    @classmethod
    @functools.cache
    def of(cls, name: str) -> Self:
        """Architecture parsed from its name, such as `sm_86` or `gfx942`.

        Raises:
            ValueError: `name` is not in the form of any vendor's names.
        """
        for vendor in Vendor:
            if match := re.fullmatch(vendor.facts.architectures, name):
                return cls(name, vendor, int(match[1], vendor.facts.number_base))
        raise ValueError(f"no architecture is named {name!r}: expected a name such as sm_86 or gfx942")

    @property
    def capability(self) -> int:
        """Compute capability as a number, 86 for 8.6.

        Raises:
            ValueError: the vendor's cards have no compute capability, as AMD's.
        """
        if not self.vendor.facts.has_capability:
            raise ValueError(f"{self.name} has no compute capability")
        return self.number

    @property
    def is_planned_for(self) -> bool:
        """Whether convolution plans are known for the architecture: cuDNN's from Volta on, none of AMD's."""
        since = self.vendor.facts.planned_since
        return since is not None and self.number >= since

    @property
    def age(self) -> tuple[int, int]:
        """Sort key of architectures: the vendors in the order of `Vendor`, each from old to new."""
        return list(Vendor).index(self.vendor), self.number


# Multiprocessors of the largest common card of each compute capability (NVIDIA's data sheets).
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
    """Multiprocessors of the largest common card of a compute capability; a small number if it is unknown.

    Args:
        capability: 10 × major + minor.
    """
    return _NUM_MULTIPROCESSORS.get(capability, _FEWEST_MULTIPROCESSORS)


def of_capability(major: int, minor: int) -> str:
    """Name of an NVIDIA architecture by its compute capability."""
    return f"sm_{major}{minor}"


def of_device(properties: Any, hip: str | None) -> str:
    """Name of the architecture of a GPU, such as `sm_86`, from its properties in PyTorch.

    Args:
        properties: result of `torch.cuda.get_device_properties`.
        hip: `torch.version.hip`, None in builds for NVIDIA's cards.
    """
    if hip is None:
        return of_capability(properties.major, properties.minor)
    target, _, _features = properties.gcnArchName.partition(":")  # "gfx90a:sramecc+:xnack-"
    return str(target)
