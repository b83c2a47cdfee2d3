"""How long a product of matrices takes: tiles of the result, dealt out to the units in waves.

A kernel makes the result in tiles, one at a time on each multiprocessor, so that a last wave may leave most
of them without work; where there are few tiles the sum is split, and the parts are added afterwards. Wide
tiles read less per product and so come nearer to the peak. cuBLAS and cuDNN choose among such kernels by
heuristics of their own, of which the fastest by this account stands in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workers.predict.time.kernels import Product

# Sides of the tiles that CUTLASS, cuBLAS and cuDNN have kernels for.
TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64),
    (32, 32), (16, 64), (64, 16),
)  # fmt: skip
SPLITS = (1, 2, 4, 8, 16, 32)
_SUM_BYTES = 4  # of an element of a sum that is split, in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductConstants:
    """How near to a device's peak kernels of a class come.

    Attributes:
        efficiency: of the widest tiles, of long sums.
        half_intensity: multiplications by byte-free measure (side·side / (side + side)) of the tile that
            comes to half of that.
        start: multiplications along the sum that a tile takes to begin and to end.
        quantized: how much of a last, unfilled wave is lost; 1 is all of it.
    """

    efficiency: float
    half_intensity: float
    start: float
    quantized: float = 1.0


def product_seconds(
    product: Product, *, flops: float, num_units: int, bandwidth: float, constants: ProductConstants
) -> float:
    """Seconds of the arithmetic, by the tile and the split that are fastest.

    Args:
        flops: per second, of the whole device.
        num_units: multiprocessors.
        bandwidth: bytes a second, for the sums of what is split.
    """
    best = math.inf
    by_unit = flops * constants.efficiency / num_units
    for height, width in TILES:
        tiles = math.ceil(product.m / height) * math.ceil(product.n / width) * product.batch
        intensity = height * width / (height + width)
        rate = by_unit * intensity / (intensity + constants.half_intensity)
        of_one = 2 * height * width / rate
        for split in SPLITS:
            if split > 1 and (product.k < 64 * split or tiles * split > 4 * num_units):
                break
            waves = tiles * split / num_units
            filled = constants.quantized * math.ceil(waves) + (1 - constants.quantized) * max(waves, 1.0)
            seconds = filled * of_one * (product.k / split + constants.start)
            if split > 1:
                seconds += _SUM_BYTES * (split + 1) * product.m * product.n * product.batch / bandwidth
            best = min(best, seconds)
    return best
