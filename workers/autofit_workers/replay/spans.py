"""Workspace sizes known as a range: low, likely, high, and the largest possible."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workspace:
    """Workspace of a call in bytes, as a range from low to worst.

    Attributes:
        low_bytes: the smallest workspace that a convolution can run with under its policy.
        likely_bytes, high_bytes: the workspace that the policy takes; the two differ if it is uncertain.
        worst_bytes: the largest workspace of all plans, whatever plan the policy takes.
        choices_bytes: workspaces of the plans that PyTorch tries one after the other when memory is short, in
            PyTorch's order.
        repeated_bytes: the likely workspace from the call's second run on; None if it does not change.
    """

    low_bytes: int
    likely_bytes: int
    high_bytes: int
    worst_bytes: int
    choices_bytes: tuple[int, ...] = ()
    repeated_bytes: int | None = None

    @property
    def is_benchmark(self) -> bool:
        """Whether cuDNN's benchmark mode times plans in the workspace at the call's first run."""
        return self.repeated_bytes is not None

    @property
    def repeated(self) -> Workspace:
        """Workspace of the call from its second run on."""
        if self.repeated_bytes is None:
            return self
        return dataclasses.replace(self, likely_bytes=self.repeated_bytes)

    def plus(self, num_bytes: int) -> Workspace:
        """Returns the workspace with `num_bytes` more at every level."""
        return Workspace(
            self.low_bytes + num_bytes,
            self.likely_bytes + num_bytes,
            self.high_bytes + num_bytes,
            self.worst_bytes + num_bytes,
            tuple(size + num_bytes for size in self.choices_bytes),
            None if self.repeated_bytes is None else self.repeated_bytes + num_bytes,
        )

    def choices_up_to(self, size_bytes: int) -> tuple[int, ...]:
        """Sizes in bytes that PyTorch tries in turn: `size_bytes`, then the smaller choices."""
        return (size_bytes, *(size for size in self.choices_bytes if size < size_bytes))


def between(low_bytes: int, likely_bytes: int, high_bytes: int) -> Workspace:
    """Makes a `Workspace` from its low, likely and high bytes, with worst equal to high."""
    return Workspace(low_bytes, likely_bytes, high_bytes, high_bytes)


def certain(num_bytes: int) -> Workspace:
    """Makes a `Workspace` of exactly `num_bytes` at every level."""
    return between(num_bytes, num_bytes, num_bytes)


NO_WORKSPACE = certain(0)
