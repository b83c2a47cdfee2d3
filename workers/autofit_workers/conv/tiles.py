"""Tiles of a grid: boxes of points that are contiguous in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Box of points in a grid that are contiguous in memory.

    Attributes:
        slices: slice of the box in each dimension of the grid.
        start, stop: range of the box's points in the flattened grid.
    """

    slices: tuple[slice, ...]
    start: int
    stop: int


def runs(shape: tuple[int, ...], num_points: int) -> Iterator[Tile]:
    """Yields tiles of up to `num_points` contiguous points that cover a grid: parts of rows, rows, planes."""
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
