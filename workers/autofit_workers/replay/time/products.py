"""Seconds of a matrix product: tiles of the result, distributed to the multiprocessors in waves.

A kernel computes the result in tiles, several at a time on each multiprocessor, so that a last wave may leave
most of them idle; if there are few tiles the sum is split, and the parts are added afterwards.
Wide tiles read less per product and so come nearer to the peak, and a multiprocessor needs several tiles at
once, or wide ones, to hide its waits. cuBLAS and cuDNN choose among such kernels by heuristics of their
own; this model takes the kernel that it predicts to be the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autofit_workers.replay.time.kernels import Product

Tile = tuple[int, int]  # columns and rows of the result

# Sides of the tiles that CUTLASS, cuBLAS and cuDNN have kernels for.
TILES: tuple[Tile, ...] = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32),
    (32, 64), (32, 32), (16, 64), (64, 16),
)  # fmt: skip
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
_SUM_BYTES = 4  # of an element of a split sum, in float32
_SHORTEST_SPLIT = 64  # terms of a sum
_TILES_OF_SPLIT = 8  # for each unit: with more tiles than this, no sum is split
# Elements of the result that a multiprocessor computes at once: half of its 65,536 registers hold sums.
_RESIDENT = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductConstants:
    """Constants of how close to a device's peak the matrix products of a class of kernels come.

    Attributes:
        efficiency: share of the peak that the widest tiles reach for long sums.
        half_intensity: side·side / (side + side) of the tile that reaches half of that share: the products
            per element read.
        start: multiplications along the sum that take as long as the begin and the end of a tile.
        quantized: share of a last, unfilled wave that is lost; 1 for all of it.
        half_resident: elements of the result in computation at which a unit reaches half of its rate; 0 if
            their number makes no difference.
        overlapped: share of the shorter of arithmetic and memory traffic that takes no extra time.
    """

    efficiency: float
    half_intensity: float
    start: float
    quantized: float = 1.0
    half_resident: float = 0.0
    overlapped: float = 1.0


def product_seconds(
    product: Product,
    *,
    flops: float,
    num_units: int,
    bandwidth: float,
    constants: ProductConstants,
    tiles: Sequence[Tile] = TILES,
) -> float:
    """Seconds of a matrix product's arithmetic, with the fastest tile and the fastest split of the sum.

    Args:
        flops: FLOP per second of the whole device at its peak.
        num_units: number of multiprocessors.
        bandwidth: bytes per second of the memory, for the partial sums of a split.
        tiles: sizes of the tiles that the library has kernels for.
    """
    by_unit = flops * constants.efficiency / num_units
    longest = max(1, product.k // _SHORTEST_SPLIT)
    to_add = _SUM_BYTES * product.m * product.n * product.batch / bandwidth
    best = math.inf
    for width, height in tiles:
        num_tiles = math.ceil(product.m / height) * math.ceil(product.n / width) * product.batch
        intensity = height * width / (height + width)
        of_one = 2 * height * width / (by_unit * intensity / (intensity + constants.half_intensity))
        for split in SPLITS:
            if split > 1 and (split > longest or num_tiles * split > _TILES_OF_SPLIT * num_units):
                break
            waves = num_tiles * split / num_units
            whole = math.ceil(waves)
            seconds = constants.quantized * whole + (1 - constants.quantized) * max(waves, 1.0)
            seconds *= of_one * (product.k / split + constants.start)
            seconds /= _filled(whole * height * width, constants.half_resident)
            if split > 1:
                seconds += (split + 1) * to_add
            best = min(best, seconds)
    return best


def _filled(resident: int, half: float) -> float:
    """Share of a multiprocessor's full rate with `resident` output elements in work at once."""
    resident = min(resident, _RESIDENT)
    return resident / (resident + half) * (_RESIDENT + half) / _RESIDENT
