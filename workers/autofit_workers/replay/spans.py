"""A size that is known as a range: low, likely, high, and the largest possible."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes beside the output.

    Attributes:
        low_bytes: what the policy may get by with.
        likely_bytes, high_bytes: what it takes; they differ where that is not known for sure.
        worst_bytes: the largest that any plan wants, whatever plan the policy takes.
        choices_bytes: by plan, in PyTorch's order: what it tries one after the other when memory
            is short.
        repeated_bytes: what the same call likely takes from its second time on; None for as much.
    """

    low_bytes: int
    likely_bytes: int
    high_bytes: int
    worst_bytes: int
    choices_bytes: tuple[int, ...] = ()
    repeated_bytes: int | None = None

    @property
    def is_benchmark(self) -> bool:
        """Whether it is room to time plans in, at first."""
        return self.repeated_bytes is not None

    @property
    def repeated(self) -> Workspace:
        """The same from the second time on."""
        if self.repeated_bytes is None:
            return self
        return dataclasses.replace(self, likely_bytes=self.repeated_bytes)

    def plus(self, num_bytes: int) -> Workspace:
        """The same with so much more at every level."""
        return Workspace(
            self.low_bytes + num_bytes,
            self.likely_bytes + num_bytes,
            self.high_bytes + num_bytes,
            self.worst_bytes + num_bytes,
            tuple(size + num_bytes for size in self.choices_bytes),
            None if self.repeated_bytes is None else self.repeated_bytes + num_bytes,
        )

    def choices_up_to(self, size_bytes: int) -> tuple[int, ...]:
        """What is tried in turn from a size on: a larger one is not to be had where that was not."""
        return (size_bytes, *(size for size in self.choices_bytes if size < size_bytes))


def between(low_bytes: int, likely_bytes: int, high_bytes: int) -> Workspace:
    """A workspace of which only the ends are known."""
    return Workspace(low_bytes, likely_bytes, high_bytes, high_bytes)


def certain(num_bytes: int) -> Workspace:
    """A workspace that there is no doubt about."""
    return between(num_bytes, num_bytes, num_bytes)


NO_WORKSPACE = certain(0)
