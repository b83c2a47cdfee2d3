"""What convolutions take by each algorithm: cuDNN's own as a step's time has it, others never less."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autofit.hardware.card import card_named
from autofit.predict.convolutions.costs import ConvCosts
from autofit.predict.times.step_times import Timer
from autofit_workers.replay.time.kernels import kernel_of
from autofit_workers.spec.conv_algorithms.mixed import CANDIDATES
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.work import ConvPass
from tests.workers.replay.time.steps_by_hand import conv

CARDS = ("v100-16g", "t4", "a100-40g", "rtx-3090", "rtx-4090", "h100-80g", "b200", "rtx-5090")
LAYER = conv(64, 256, size=56, filter_size=3, batch_size=32)
REWRITES = ("native", *CANDIDATES)


def costs_on(card: str, knobs: Knobs | None = None) -> ConvCosts:
    return ConvCosts(Timer().costs(card_named(card), knobs or Knobs()))


@pytest.mark.parametrize("card", CARDS)
def test_cudnns_own_choice_takes_what_the_time_of_a_step_has_for_it(card: str) -> None:
    costs = Timer().costs(card_named(card), Knobs())
    for conv_pass in ConvPass:
        call = dataclasses.replace(LAYER, conv_pass=conv_pass)
        assert ConvCosts(costs).seconds(call, "cudnn") == costs.seconds(kernel_of(call, allow_tf32=True))
        assert ConvCosts(costs).relative([(call, "cudnn")]) == 1.0


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("filter_size", [1, 3, 31])
def test_what_nothing_was_timed_of_is_never_taken_to_be_faster_than_cudnns_choice(
    card: str, dtype: str, filter_size: int
) -> None:
    call = conv(64, 64, size=56, filter_size=filter_size, batch_size=32, dtype=dtype)
    assert all(costs_on(card).relative([(call, name)]) >= 1.0 for name in REWRITES)


def test_native_kernels_take_longer_where_tensor_cores_could_do_it() -> None:
    assert costs_on("a100-40g").relative([(LAYER, "native")]) > 2.0
    assert costs_on("a100-40g").relative([]) == 1.0


def test_a_faster_card_takes_less_by_any_algorithm() -> None:
    for name in REWRITES:
        assert costs_on("rtx-4090").seconds(LAYER, name) < costs_on("t4").seconds(LAYER, name)


def test_portions_of_a_batch_take_no_less_than_all_of_it_and_smaller_ones_more() -> None:
    by_size = [costs_on("rtx-3090").seconds(LAYER, f"chunked:{size}") for size in (32, 8, 1)]
    assert by_size == sorted(by_size)
    assert by_size[0] < by_size[-1]


def test_what_a_rewrite_leaves_is_cudnns() -> None:
    costs = costs_on("rtx-3090")
    assert costs.seconds(LAYER, "matmul-1x1") == costs.seconds(LAYER, "cudnn")


def test_products_of_a_rewrite_are_as_fast_as_their_precision() -> None:
    call = conv(2048, 2048, size=8, filter_size=1, batch_size=8)
    in_tf32 = costs_on("a100-40g", Knobs(precision="tf32")).seconds(call, "matmul-1x1")
    assert in_tf32 < costs_on("a100-40g").seconds(call, "matmul-1x1")


def test_calls_are_summed_by_the_algorithm_that_each_was_given() -> None:
    costs = costs_on("a100-40g")
    other = conv(256, 64, size=56, filter_size=1, batch_size=32)
    both = [(LAYER, "native"), (other, "cudnn")]
    total = sum(costs.seconds(call, name) for call, name in both)
    default = sum(costs.seconds(call, "cudnn") for call, _ in both)
    assert math.isclose(costs.relative(both), total / default)
