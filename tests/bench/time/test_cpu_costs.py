"""Operators on a processor: what they demand, and what that takes."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.kernels import EXCHANGES, KernelClass
from autofit_workers.replay.time.lines import work_of
from autofit_workers.replay.time.step import clocked
from autofit_workers.spec.work import Convolution, ConvPass, Operand, Work
from tests.bench.time.cpu_costs import (
    CPU,
    MAPPED_FROM_BYTES,
    CpuConstants,
    CpuCosts,
    CpuSpeeds,
    cpu_constants,
    demand_of,
)
from tests.workers.replay.time.steps_by_hand import elementwise, product, trace_of_works

SPEEDS = CpuSpeeds(
    name="a processor",
    architecture=CPU,
    num_units=2,
    flops={"float32": 200e9, "bfloat16": 400e9},
    vector_flops=200e9,
    bandwidth=40e9,
    cache_bytes=2**25,
    call_seconds=2e-6,
    page_seconds=3e-10,
)
COSTS = CpuCosts(SPEEDS)


def seconds(work: Work, costs: CpuCosts = COSTS) -> float:
    return costs.seconds(demand_of(work))


def convolution(samples: int, *, inputs: int = 64, filters: int = 64, taps: int = 3) -> Work:
    call = Convolution(
        conv_pass=ConvPass.FPROP,
        input_shape=(samples, inputs, 28, 28),
        weight_shape=(filters, inputs, taps, taps),
        output_shape=(samples, filters, 28, 28),
        stride=(1, 1),
        padding=(taps // 2, taps // 2),
        dilation=(1, 1),
        groups=1,
        dtype="float32",
        element_bytes=4,
    )
    operands = [
        Operand(shape, "float32") for shape in (call.input_shape, call.weight_shape, call.output_shape)
    ]
    return Work("aten.convolution", tuple(operands[:2]), (operands[2],), (call,))


def attention(queries: int, *flags: str) -> Work:
    each = Operand((4, 8, queries, 64), "float32")
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    return Work(name, (each, each, each), (each,), flags=flags)


def lstm(num_steps: int) -> Work:
    operands = [Operand(shape, "float32") for shape in ((num_steps, 16, 256), (1024, 256), (1024, 256))]
    return Work("aten.mkldnn_rnn_layer", tuple(operands), (Operand((num_steps, 16, 256), "float32"),))


def test_a_processor_does_one_operator_after_the_other_and_its_caller_waits():
    step = work_of(trace_of_works([elementwise(1_000_000)] * 10))
    clock = clocked(step.calls, step.in_backward, COSTS)
    assert clock.seconds == pytest.approx(clock.device_seconds + 10 * COSTS.host.call)


def test_a_large_product_takes_what_the_measured_rate_says_within_a_fifth():
    work = product(4096, 4096, 4096)
    dtype = work.inputs[0].dtype
    assert seconds(work) == pytest.approx(2 * 4096**3 / SPEEDS.product_flops(dtype), rel=0.2)


def test_rates_bandwidth_and_calls_that_are_twice_as_good_halve_the_time():
    twice = dataclasses.replace(
        SPEEDS,
        flops={name: 2 * rate for name, rate in SPEEDS.flops.items()},
        vector_flops=2 * SPEEDS.vector_flops,
        bandwidth=2 * SPEEDS.bandwidth,
        call_seconds=SPEEDS.call_seconds / 2,
        page_seconds=SPEEDS.page_seconds / 2,
    )
    for work in (convolution(4), attention(256), lstm(20), elementwise(5_000_000), product(64, 512, 512)):
        assert seconds(work, CpuCosts(twice)) == pytest.approx(seconds(work) / 2)


def test_images_cost_the_more_the_more_there_are():
    assert 1.5 * seconds(convolution(8)) < seconds(convolution(16)) < 2 * seconds(convolution(8))


def test_channels_are_counted_in_whole_vectors_except_those_of_an_image():
    assert demand_of(convolution(1, inputs=65)).flops == demand_of(convolution(1, inputs=80)).flops
    image, wide = demand_of(convolution(1, inputs=3)).flops, demand_of(convolution(1, inputs=6)).flops
    assert wide == image * 16 / 3


def test_causal_attention_sees_whole_blocks_of_keys():
    whole, causal = demand_of(attention(256)), demand_of(attention(256, "causal"))
    assert causal.flops / whole.flops == pytest.approx((1 + 2 + 3 + 4) / 4 / 4)  # four blocks of 64
    assert causal.calls == whole.calls == 4 * 8 * 4


def test_a_recurrent_layer_begins_once_a_time_step():
    assert demand_of(lstm(30)).calls == 30
    assert demand_of(lstm(30)).kind is KernelClass.RECURRENT


@pytest.mark.parametrize(("elements", "is_fresh"), [(MAPPED_FROM_BYTES // 4 - 1, False), (2**24, True)])
def test_large_results_are_new_memory_unless_they_are_in_place(elements: int, is_fresh: bool):
    each = Operand((elements,), "float32")
    made = demand_of(Work("aten.mul.Tensor", (each,), (each,), flags=("pointwise",)))
    in_place = demand_of(Work("aten.mul_.Tensor", (each,), (each,), flags=("pointwise",)))
    assert (made.fresh_bytes > 0) is is_fresh
    assert in_place.fresh_bytes == 0


def test_a_class_without_constants_of_its_own_has_those_of_less():
    classes = {
        "elementwise float32": CpuConstants(calls=1.0, moved=1.0),
        "pool float32": CpuConstants(calls=9.0),
    }
    costs = CpuCosts(SPEEDS, classes)
    each = Operand((1,), "float16")
    assert costs.class_of(demand_of(Work("aten.max_pool2d_with_indices", (each,), (each,)))) == "pool float32"
    assert costs.class_of(demand_of(Work("aten.sort", (each,), (each,)))) == "elementwise float32"


def test_every_class_of_both_types_has_constants():
    known, _ = cpu_constants()
    of_cards = {KernelClass.OPTIMIZER, KernelClass.TRANSFER, *EXCHANGES}
    for dtype in ("float32", "bfloat16"):
        named = {name.partition(" ")[0] for name in known if name.endswith(dtype)}
        assert set(KernelClass) - of_cards - {KernelClass.OTHER} <= named
