"""Kernels on a device: bound by its memory, its units, or its latency, whichever is longest."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.constants import (
    ClassConstants,
    Constants,
    GroupedConstants,
    HostConstants,
    constants,
)
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.kernels import Kernel, KernelClass, Product
from autofit_workers.replay.time.products import ProductConstants
from autofit_workers.replay.time.speeds import Speeds
from autofit_workers.spec.work import Operand, Work

SPEEDS = Speeds(
    name="a card",
    architecture="sm_80",
    num_units=100,
    flops={"float32": 20e12, "float16": 300e12},
    vector_flops=20e12,
    bandwidth=1e12,
    cache_bytes=40_000_000,
    clock=1.5e9,
    launch_seconds=1e-6,
)
HOST = HostConstants(call=1e-6, backward_call=1e-6, view=0.0, launch=0.0, step=0.0)


def costs(**classes: ClassConstants) -> Costs:
    named = {name.replace("__", " "): each for name, each in classes.items()}
    return Costs(SPEEDS, Constants(classes=named, host=HOST))


def moving(num_bytes: int, dtype: str = "float32") -> Kernel:
    return Kernel(KernelClass.ELEMENTWISE, num_bytes, dtype)


def test_a_kernel_that_only_moves_bytes_takes_their_time_and_a_launch() -> None:
    known = costs(elementwise=ClassConstants(bandwidth=0.5))
    assert known.seconds(moving(1_000_000_000)) == pytest.approx(2e-3 + 1e-6)


def test_what_the_cache_still_has_is_not_read_from_memory() -> None:
    plain, cached = (costs(elementwise=ClassConstants(bandwidth=1.0, cached=part)) for part in (0.0, 0.33))
    small, large = moving(10_000_000), moving(10_000_000_000)
    assert cached.seconds(small) < 0.75 * plain.seconds(small)
    assert cached.seconds(large) == pytest.approx(plain.seconds(large), rel=0.01)


def test_a_kernel_takes_its_least_time_however_little_it_has_to_do() -> None:
    known = costs(elementwise=ClassConstants(bandwidth=1.0, least_seconds=5e-6))
    assert known.seconds(moving(4)) == pytest.approx(6e-6)
    assert known.seconds(moving(1_000_000_000)) == pytest.approx(1e-3 + 1e-6)


def test_elements_one_by_one_are_bound_by_the_units_and_not_by_their_bytes() -> None:
    known = costs(elementwise=ClassConstants(bandwidth=1.0, elements_per_clock=1.0))
    half, single = (
        known.seconds(moving(4_000_000 * size, dtype)) for size, dtype in ((2, "float16"), (4, "float32"))
    )
    assert half == single == pytest.approx(4_000_000 / (100 * 1.5e9) + 1e-6)


def test_tensor_cores_have_constants_of_their_own() -> None:
    product = ProductConstants(efficiency=1.0, half_intensity=0.0, start=0.0)
    slow = dataclasses.replace(product, efficiency=0.5)
    known = costs(
        matmul=ClassConstants(bandwidth=1.0, product=product),
        matmul__tensor=ClassConstants(bandwidth=1.0, product=slow),
    )
    square = Product(12800, 12800, 4096)
    vector, tensor = (
        known.seconds(Kernel(KernelClass.MATMUL, 0, dtype, square)) for dtype in ("float32", "float16")
    )
    assert vector / tensor == pytest.approx(15 / 2, rel=0.01)


def test_what_is_not_overlapped_is_added() -> None:
    def of(overlapped: float) -> float:
        product = ProductConstants(efficiency=1.0, half_intensity=0.0, start=0.0, overlapped=overlapped)
        kernel = Kernel(KernelClass.MATMUL, 1_000_000_000, "float32", Product(12800, 12800, 1024))
        return costs(matmul=ClassConstants(bandwidth=1.0, product=product)).seconds(kernel)

    assert of(0.0) == pytest.approx(of(1.0) + 1e-3)


def test_a_variant_has_its_constants_before_those_of_its_class() -> None:
    known = costs(elementwise=ClassConstants(bandwidth=1.0), elementwise__slow=ClassConstants(bandwidth=0.1))
    slow = dataclasses.replace(moving(1_000_000_000), variant="slow")
    assert known.seconds(slow) > 9 * known.seconds(moving(1_000_000_000))


def operand(*shape: int) -> Operand:
    return Operand(shape, "float32")


@pytest.mark.parametrize("name", ["addmm", "_softmax", "native_layer_norm", "gelu", "embedding"])
def test_operators_take_longer_on_more_rows(name: str) -> None:
    def work(rows: int) -> Work:
        hidden = operand(rows, 1024)
        inputs = {
            "addmm": (operand(4096), hidden, operand(1024, 4096)),
            "embedding": (operand(50000, 1024), Operand((rows,), "int64")),
        }.get(name, (hidden,))
        return Work(f"aten.{name}", inputs, (operand(rows, 4096) if name == "addmm" else hidden,))

    known = Costs(SPEEDS, constants())
    times = [sum(map(known.seconds, known.kernels(work(rows)))) for rows in (1000, 10_000, 100_000)]
    assert times[0] < times[1] < times[2]


def test_long_rows_of_a_softmax_are_read_more_than_once() -> None:
    known = Costs(SPEEDS, constants())
    short, long = (
        Work("aten._softmax", (each,), (each,)) for each in (operand(2**17, 1024), operand(2**10, 2**17))
    )
    assert sum(map(known.seconds, known.kernels(long))) > 1.3 * sum(map(known.seconds, known.kernels(short)))


RATED = ClassConstants(
    bandwidth=0.8, is_rated=True, launch=2e-6, fill_seconds=1e-6, kept=0.1, kept_per_clock=100.0
)


def test_a_kernel_that_runs_again_finds_its_operands_in_the_cache_as_far_as_they_fit() -> None:
    known = {"elementwise": RATED}
    cold, again = (
        Costs(SPEEDS, Constants(classes=known, host=HOST), is_repeated=each) for each in (False, True)
    )
    small, large = moving(4_000_000), moving(8_000_000)
    assert cold.seconds(small) == pytest.approx(4e6 / 0.8e12 + 1e-6 + 2e-6)
    assert again.seconds(small) == pytest.approx(4e6 / (100 * 100 * 1.5e9) + 2e-6)
    assert again.seconds(large) == pytest.approx(cold.seconds(large)), "twice as much as there is room for"


def test_an_older_cublas_takes_longer_to_multiply_on_cards_with_rows_of_it() -> None:
    product = Product(8192, 8192, 8192)
    large = Kernel(KernelClass.MATMUL, 3 * 2 * 8192**2, "float16", product)
    older, newer = (Costs(SPEEDS, constants(), of_older_cublas=each) for each in (True, False))
    assert older.seconds(large) == pytest.approx(1.09 * newer.seconds(large), rel=0.02)


def test_classes_fitted_to_pytorch_2_take_the_place_of_the_older_ones_without_their_factor() -> None:
    known = Constants(
        classes={"pool": ClassConstants(bandwidth=0.5), "elementwise": ClassConstants(bandwidth=0.5)},
        newer_classes={"elementwise": ClassConstants(bandwidth=1.0)},
        since_pytorch_2={"elementwise": 3.0, "pool": 3.0},
        host=HOST,
    )
    older, newer = (Costs(SPEEDS, known, of_pytorch_1=each) for each in (True, False))
    assert older.seconds(moving(1_000_000_000)) == pytest.approx(2e-3 + 1e-6)
    assert newer.seconds(moving(1_000_000_000)) == pytest.approx(1e-3 + 1e-6)
    pooled = Kernel(KernelClass.POOL, 1_000_000_000, "float32")
    assert newer.seconds(pooled) == pytest.approx(6e-3 + 1e-6)


def test_groups_of_their_own_kernels_are_faster_and_slowed_by_no_stride() -> None:
    grouped = GroupedConstants(
        rate=0.01, width_power=1.0, groups_power=0.0, most=0.5,
        taps_power=1.0, own=2.0, own_widths=(8,), own_multiple=4, strided=0.1,
    )  # fmt: skip
    assert grouped.share(8, 3, num_taps=9) == pytest.approx(0.08)
    assert grouped.share(8, 4, num_taps=9) == pytest.approx(0.16)
    assert grouped.share(8, 4, num_taps=9, is_strided=True) == pytest.approx(0.16)
    assert grouped.share(8, 4, num_taps=9, is_dilated=True) == pytest.approx(0.08)
    assert grouped.share(8, 3, num_taps=9, is_strided=True) == pytest.approx(0.008)
    assert grouped.share(8, 3, num_taps=1) == pytest.approx(0.08 / 9)
    assert grouped.share(100, 3, num_taps=9) == pytest.approx(0.5), "at most"


def test_wide_groups_in_channels_last_run_many_times_as_fast_forward_since_pytorch_2() -> None:
    product = Product(m=100_000, n=128, k=9 * 128, batch=8)
    kernel = Kernel(
        KernelClass.GROUPED_CONVOLUTION, 400_000_000, "float16", product, "fprop channels_last", num_taps=9
    )
    older, newer = (Costs(SPEEDS, constants(), of_pytorch_1=each).seconds(kernel) for each in (True, False))
    assert older > 3 * newer
