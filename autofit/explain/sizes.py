"""Sums over a part of a step: bytes of its allocations, and its operators' share of the time."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Protocol

_BITS = re.compile(r"[a-z]+([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Total bytes, count and time share of some allocations and operators of a step.

    Attributes:
        requested_bytes: bytes that the allocations requested.
        peak_bytes: bytes of the allocations' blocks that are alive at the peak.
        count: number of allocations.
        step_share: share of the step's time, from 0 to 1, that the operators take on the device.
    """

    requested_bytes: int = 0
    peak_bytes: int = 0
    count: int = 0
    step_share: float = 0.0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(
            requested_bytes=self.requested_bytes + other.requested_bytes,
            peak_bytes=self.peak_bytes + other.peak_bytes,
            count=self.count + other.count,
            step_share=self.step_share + other.step_share,
        )


class Sized(Protocol):
    """Item of a view with a name and sizes, by which it is sorted and filtered: a row, or a tree's node."""

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> Sizes: ...


@functools.cache
def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype, read from the bits in its name, as in `bfloat16`; 0 for no dtype."""
    bits = _BITS.match(dtype)
    return max(1, int(bits[1]) // 8) if bits else int(dtype == "bool")
