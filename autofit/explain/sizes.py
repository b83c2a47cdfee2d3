"""The sizes of a set of allocations."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Protocol

_BITS = re.compile(r"[a-z]+([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What some allocations come to.

    Attributes:
        requested_bytes: that they asked for.
        peak_bytes: of their blocks that are alive at the peak.
        count: how many they are.
    """

    requested_bytes: int = 0
    peak_bytes: int = 0
    count: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(
            requested_bytes=self.requested_bytes + other.requested_bytes,
            peak_bytes=self.peak_bytes + other.peak_bytes,
            count=self.count + other.count,
        )


class Sized(Protocol):
    """What can be ordered and filtered: a row of a list, or a node of a tree with all below it."""

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> Sizes: ...


@functools.cache
def element_bytes(dtype: str) -> int:
    """Bytes of an element by the bits in PyTorch's name of its type: `bfloat16`; 0 for no type."""
    bits = _BITS.match(dtype)
    return max(1, int(bits[1]) // 8) if bits else int(dtype == "bool")
