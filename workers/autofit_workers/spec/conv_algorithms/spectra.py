"""Tiles of an FFT convolution, and the lengths of its transforms."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

# Longer transforms cost more than several tiles, unless the filter fills a tile.
_LENGTH = 512
_FILTERS_IN_A_TILE = 2
_FAST_FACTORS = (2, 3, 5, 7)  # factors that MKL, pocketfft and cuFFT all have kernels for


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles, all of one size, of the output that a convolution would have with stride 1.

    An FFT convolution transforms one tile at a time.

    Attributes:
        sides: output pixels of a tile in each dimension, a multiple of the stride if there are several tiles.
        lengths: lengths of the FFT in each dimension: a tile and the margin that the filters read around it.
        corners: the first output pixel of every tile.
    """

    sides: tuple[int, ...]
    lengths: tuple[int, ...]
    corners: tuple[tuple[int, ...], ...]

    @property
    def num_points(self) -> int:
        """Number of points of the FFT of one tile."""
        return math.prod(self.lengths)

    @property
    def num_frequencies(self) -> int:
        """Number of complex values in the spectrum of a tile: about half its points, as the input is real."""
        return math.prod((*self.lengths[:-1], self.lengths[-1] // 2 + 1))


def tiling(padded: tuple[int, ...], extents: tuple[int, ...], stride: tuple[int, ...]) -> Tiling:
    """Chooses the tiles of an FFT convolution.

    Args:
        padded: spatial shape of the input with its padding.
        extents: size of the filter in each dimension, including the gaps of its dilation.
        stride: stride of the convolution.
    """
    sides, lengths, firsts = [], [], []
    for size, extent, step in zip(padded, extents, stride, strict=True):
        num_outputs = size - extent + 1
        longest = max(_LENGTH, fast_length(_FILTERS_IN_A_TILE * extent))
        side, length = num_outputs, fast_length(size)
        if size > longest and longest - extent + 1 >= step:
            side, length = (longest - extent + 1) // step * step, longest
        sides.append(side)
        lengths.append(length)
        firsts.append(range(0, num_outputs, side))
    return Tiling(tuple(sides), tuple(lengths), tuple(itertools.product(*firsts)))


def fast_length(size: int) -> int:
    """Smallest length of at least `size` whose prime factors are 2, 3, 5 and 7 only."""
    return next(length for length in itertools.count(size) if _is_fast(length))


def _is_fast(length: int) -> bool:
    for factor in _FAST_FACTORS:
        while length % factor == 0:
            length //= factor
    return length == 1
