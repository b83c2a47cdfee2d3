"""Batch sizes that a search considers: all of a range, or those that divide a global batch.

A boundary searches consecutive numbers for the largest that fits. Divisors are not consecutive, so
it searches their ranks instead:

    global batch 240     1  2  3  4  5  6  8 10 12 15 16 …     sizes
                         1  2  3  4  5  6  7  8  9 10 11 …     ranks
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from autofit_workers.spec.knobs import Knobs


def sizes_for(knobs: Knobs, *, min_batch: int, max_batch: int) -> Sequence[int]:
    """Batch sizes from `min_batch` to `max_batch` that a knob setting can be run with, ascending.

    With a global batch these are its divisors.
    """
    whole = knobs.global_batch
    if whole is None:
        return range(min_batch, max_batch + 1)
    return tuple(size for size in range(min_batch, min(max_batch, whole) + 1) if whole % size == 0)


class Ranks:
    """Numbering of batch sizes from small to large, so that a search can count in steps of 1.

    The number of a size is called its rank. In a range without gaps, sizes and ranks are equal.

    Args:
        sizes: batch sizes, ascending, at least one.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = None if isinstance(sizes, range) else sizes
        self.first = sizes[0] if self._sizes is None else 1
        self.last = sizes[-1] if self._sizes is None else len(sizes)

    def of(self, size: int) -> int:
        """Rank of a size or, if it is not among the sizes, of the next smaller one.

        It is below the first rank if all sizes are larger.
        """
        return size if self._sizes is None else bisect.bisect_right(self._sizes, size)

    def size(self, rank: int) -> int:
        """Batch size that has the given rank in the numbering."""
        return rank if self._sizes is None else self._sizes[rank - 1]

    def at_most(self, size: int) -> int:
        """Largest size that is at most the given one; 0 if there is none."""
        rank = self.of(size)
        return 0 if rank < self.first else self.size(rank)
