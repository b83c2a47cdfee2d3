"""Seconds of a matrix product: tiles of the result, distributed to the multiprocessors in waves.

A kernel computes the result in tiles, several at a time on each multiprocessor, so a last wave may leave
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
    """Constants that say how close to a device's peak speed a class of kernels computes matrix products.

    A kernel computes the result in tiles; wider tiles read fewer elements per multiplication.

    Attributes:
        efficiency: share of the peak that the widest tiles reach for long sums.
        half_intensity: tile intensity at which kernels reach half of `efficiency`. The intensity of a tile of
            h×w elements is h·w / (h + w), the multiplications for each element read.
        start: begin and end of a tile, as the number of terms of the sum that would take as long.
        quantized: share of the idle time in a last, unfilled wave of tiles that counts; 1 for all of it.
        half_resident: number of result elements in work at once at which a multiprocessor reaches half of its
            rate; 0 if the number makes no difference.
        overlapped: share of the shorter of arithmetic and memory traffic that takes no extra time.
        wave_seconds: seconds to begin a wave of tiles, whatever their size.
        split_seconds: seconds that a split of the sum takes, beside the traffic of its parts.
    """

    efficiency: float
    half_intensity: float
    start: float
    quantized: float = 1.0
    half_resident: float = 0.0
    overlapped: float = 1.0
    wave_seconds: float = 0.0
    split_seconds: float = 0.0


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
        product: dimensions of the product.
        flops: FLOP per second of the whole device at its peak.
        num_units: number of multiprocessors.
        bandwidth: bytes per second of the memory, for the partial sums of a split.
        constants: how close to the peak the kernels come.
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
            seconds *= of_one * (product.k / split + constants.start) + constants.wave_seconds
            seconds /= _filled(whole * height * width, constants.half_resident)
            if split > 1:
                seconds += (split + 1) * to_add + constants.split_seconds
            best = min(best, seconds)
    return best


def _filled(resident: int, half: float) -> float:
    """Share of its full rate that a multiprocessor reaches with few elements of the result in work.

    With too few elements at once, it cannot hide the latency of its instructions.

    Args:
        resident: number of elements of the result in work at once; 32,768 and more give the full rate.
        half: number of elements that governs how fast the rate rises: at this number it is about half of the
            full rate; 0 for the full rate with any number.

    Returns:
        A factor from 0 to 1.
    """
    resident = min(resident, _RESIDENT)
    return resident / (resident + half) * (_RESIDENT + half) / _RESIDENT
