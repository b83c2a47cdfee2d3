"""Sums over a part of a step: bytes of its allocations, and its operators' share of the time."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Protocol

_BITS = re.compile(r"[a-z]+([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Totals of some allocations and operators of a step: bytes, number, and share of its time.

    Attributes:
        requested_bytes: bytes that the allocations requested.
        peak_bytes: bytes of those of the allocations' blocks that are alive at the step's peak.
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
    """Protocol of a row or tree node of a view: its name and totals, by which it is sorted and filtered."""

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> Sizes: ...


@functools.cache
def element_bytes(dtype: str) -> int:
    """Bytes of one element of a data type, read from the number in its name, such as `bfloat16`.

    Args:
        dtype: name of the data type; for an empty name the result is 0.
    """
    bits = _BITS.match(dtype)
    return max(1, int(bits[1]) // 8) if bits else int(dtype == "bool")
