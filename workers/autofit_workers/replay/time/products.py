"""Seconds of a matrix product: tiles of the result, dealt out to the multiprocessors in waves.

A kernel makes the result in tiles, several at a time on each multiprocessor, so that a last wave may leave
most of them without work; where there are few tiles the sum is split, and the parts are added afterwards.
Wide tiles read less per product and so come nearer to the peak, and a multiprocessor wants several tiles at
once, or wide ones, to hide that it waits. cuBLAS and cuDNN choose among such kernels by heuristics of their
own; the fastest kernel by this model stands in for their choice.
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
_SUM_BYTES = 4  # of an element of a sum that is split, in float32
_SHORTEST_SPLIT = 64  # of a sum
_TILES_OF_SPLIT = 8  # for each unit: where there are more, nothing is split
# Results that a multiprocessor works on at once: half of its 65,536 registers hold sums.
_RESIDENT = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductConstants:
    """Constants of how close to a device's peak the matrix products of a class of kernels come.

    Attributes:
        efficiency: of the widest tiles, of long sums.
        half_intensity: multiplications by byte-free measure (side·side / (side + side)) of the tile that
            comes to half of that.
        start: multiplications along the sum that a tile takes to begin and to end.
        quantized: how much of a last, unfilled wave is lost; 1 is all of it.
        half_resident: results that a unit works on at once where it comes to half of its rate; 0 where their
            number makes no difference.
        overlapped: the share of the shorter of arithmetic and memory traffic that takes no time of its own.
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
        flops: per second, of the whole device.
        num_units: multiprocessors.
        bandwidth: bytes a second, for the sums of what is split.
        tiles: that kernels are known of.
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
