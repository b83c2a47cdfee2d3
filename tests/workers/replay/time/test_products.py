"""Products of matrices: what makes them take longer, and what they cannot do better than."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.kernels import Product
from autofit_workers.replay.time.products import ProductConstants, product_seconds

FLOPS, UNITS, BANDWIDTH = 20e12, 100, 1e12
PLAIN = ProductConstants(efficiency=1.0, half_intensity=4.0, start=8.0, half_resident=7500.0)
ONE_TILE = ((128, 128),)


def seconds(product: Product, constants: ProductConstants = PLAIN, **changes: object) -> float:
    values = {"flops": FLOPS, "num_units": UNITS, "bandwidth": BANDWIDTH, "tiles": ONE_TILE, **changes}
    return product_seconds(product, constants=constants, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("grown", ["m", "n", "k", "batch"])
def test_a_product_twice_as_large_takes_longer(grown: str) -> None:
    product = Product(2048, 2048, 2048, 2)
    larger = dataclasses.replace(product, **{grown: 2 * getattr(product, grown)})
    assert seconds(product) < seconds(larger) <= 2.2 * seconds(product)


@pytest.mark.parametrize("shape", [(64, 64, 64), (1000, 1000, 1000), (8192, 8192, 8192), (1, 50000, 4096)])
def test_no_product_is_faster_than_the_peak(shape: tuple[int, int, int]) -> None:
    product = Product(*shape)
    assert seconds(product, tiles=((128, 128), (64, 64), (32, 32))) >= product.flops / FLOPS


def test_a_large_product_comes_near_to_the_peak() -> None:
    product = Product(16384, 16384, 8192)
    assert seconds(product) < 1.1 * product.flops / FLOPS


def test_one_tile_beyond_a_wave_costs_another_wave() -> None:
    a_wave, one_more = (Product(128 * tiles, 128, 100) for tiles in (UNITS, UNITS + 1))  # too short to split
    unfilled = dataclasses.replace(PLAIN, half_resident=0.0)
    assert seconds(one_more, unfilled) == pytest.approx(2 * seconds(a_wave, unfilled))


def test_part_of_a_wave_costs_less_where_waves_are_not_whole() -> None:
    one_more = Product(128 * (UNITS + 1), 128, 100)
    mixed = dataclasses.replace(PLAIN, quantized=0.5)
    assert seconds(one_more, mixed) < seconds(one_more)


def test_sides_that_fill_no_tile_cost_as_much_as_the_tile() -> None:
    assert seconds(Product(1, 1, 100)) == pytest.approx(seconds(Product(128, 128, 100)))


def test_few_tiles_of_a_long_sum_are_split() -> None:
    product = Product(128, 128, 65536)
    unsplit = 2 * 128 * 128 * product.k / (FLOPS / UNITS)
    assert seconds(product) < unsplit / 4


def test_units_with_few_results_to_work_on_are_slower() -> None:
    product = Product(64 * UNITS, 64, 100)
    waiting = dataclasses.replace(PLAIN, half_resident=16000.0)
    assert seconds(product, waiting, tiles=((64, 64),)) > 1.5 * seconds(
        product, dataclasses.replace(PLAIN, half_resident=0.0), tiles=((64, 64),)
    )


def test_wide_tiles_come_nearer_to_the_peak() -> None:
    product = Product(8192, 8192, 4096)
    assert seconds(product) < seconds(product, tiles=((32, 32),))


def test_the_fastest_of_the_tiles_is_taken() -> None:
    product = Product(300, 4000, 1024)
    both = ((128, 128), (64, 64))
    assert seconds(product, tiles=both) == min(seconds(product, tiles=(tile,)) for tile in both)
