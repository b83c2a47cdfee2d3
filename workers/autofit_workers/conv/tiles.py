"""Boxes of a grid whose points follow each other in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of a grid whose points follow each other in memory.

    Attributes:
        slices: of every dimension.
        start, stop: where its points lie in the flattened grid.
    """

    slices: tuple[slice, ...]
    start: int
    stop: int


def runs(shape: tuple[int, ...], num_points: int) -> Iterator[Tile]:
    """Covers a grid with boxes of at most so many points: parts of a row, rows, or planes."""
    dimension = next(d for d in range(len(shape)) if math.prod(shape[d + 1 :]) <= num_points)
    inner = math.prod(shape[dimension + 1 :])
    step = max(1, num_points // inner)
    whole = tuple(slice(0, size) for size in shape[dimension + 1 :])
    for number, outer in enumerate(itertools.product(*(range(size) for size in shape[:dimension]))):
        begin = number * shape[dimension] * inner
        for first in range(0, shape[dimension], step):
            last = min(first + step, shape[dimension])
            yield Tile(
                (*(slice(i, i + 1) for i in outer), slice(first, last), *whole),
                begin + first * inner,
                begin + last * inner,
            )
