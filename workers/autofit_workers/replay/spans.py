"""Workspace sizes known as a range: low, likely, high, and the largest possible."""

from __future__ import annotations

from typing import NamedTuple


class Workspace(NamedTuple):
    """Workspace of an operator call in bytes, as a range: low, likely, high and worst.

    A tuple, because a search makes tens of thousands: a frozen dataclass takes four times as long.

    Attributes:
        low_bytes: the smallest workspace that a convolution can run with under its backend switches.
        likely_bytes, high_bytes: the workspace that PyTorch most probably takes, and the most it may take.
        worst_bytes: the largest workspace of all plans, even of those that PyTorch would not choose.
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
        """Whether cuDNN's benchmark mode times plans in this workspace at the call's first run."""
        return self.repeated_bytes is not None

    @property
    def repeated(self) -> Workspace:
        """Workspace of the call from its second run on; the same range if nothing changes then."""
        if self.repeated_bytes is None:
            return self
        return self._replace(likely_bytes=self.repeated_bytes)

    def plus(self, num_bytes: int) -> Workspace:
        """Returns the workspace with `num_bytes` more in each of its sizes."""
        return Workspace(
            self.low_bytes + num_bytes,
            self.likely_bytes + num_bytes,
            self.high_bytes + num_bytes,
            self.worst_bytes + num_bytes,
            tuple(size + num_bytes for size in self.choices_bytes),
            None if self.repeated_bytes is None else self.repeated_bytes + num_bytes,
        )

    def choices_up_to(self, size_bytes: int) -> tuple[int, ...]:
        """Sizes in bytes that PyTorch tries in turn: `size_bytes`, then the workspaces of smaller plans."""
        return (size_bytes, *(size for size in self.choices_bytes if size < size_bytes))


def between(low_bytes: int, likely_bytes: int, high_bytes: int) -> Workspace:
    """Makes a `Workspace` from its low, likely and high bytes, with worst bytes equal to the high ones."""
    return Workspace(low_bytes, likely_bytes, high_bytes, high_bytes)


def certain(num_bytes: int) -> Workspace:
    """Makes a `Workspace` of exactly `num_bytes`, without uncertainty."""
    return between(num_bytes, num_bytes, num_bytes)


NO_WORKSPACE = certain(0)
