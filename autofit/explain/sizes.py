"""What some allocations come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
