"""What PyTorch takes of a convolution's plans under each policy, over plans that are made up."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.workspace import (
    at_once,
    goes_to_cudnn,
    is_depthwise,
    native_workspace,
    workspace,
)
from autofit_workers.replay.spans import NO_WORKSPACE, Workspace, between, certain
from autofit_workers.spec.conv_algorithms import cudnn, cudnn_benchmark, cudnn_capped, cudnn_deterministic
from autofit_workers.spec.work import ConvPass
from tests.workers.replay.plan_tables import CONVOLUTION, DEPTHWISE, GROUPED, POINTWISE, variant

MIB = 2**20
CUDNN, DETERMINISTIC, BENCHMARK = cudnn.POLICY, cudnn_deterministic.POLICY, cudnn_benchmark.POLICY
PLANS = (
    Plan(38, 500, uses_tensor_cores=True),
    Plan(46, 900, uses_tensor_cores=True, is_deterministic=False),
    Plan(25, 300, is_deterministic=False),
    Plan(1, 700),
    Plan(0, 0),
)


def test_the_first_plan_is_likely_and_all_are_tried_in_order_when_memory_is_short():
    assert workspace(CONVOLUTION, PLANS, CUDNN) == Workspace(0, 500, 500, 900, (500, 900, 300, 700, 0))


def test_where_the_order_is_unknown_the_high_end_is_the_largest():
    needed = workspace(CONVOLUTION, PLANS, CUDNN, knows_the_order=False)
    assert needed == Workspace(0, 500, 900, 900, (500, 900, 300, 700, 0))


def test_without_tf32_fp32_has_no_plans_on_tensor_cores():
    assert workspace(CONVOLUTION, PLANS, CUDNN, allow_tf32=False).choices_bytes == (300, 700, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_its_tensor_cores_without_tf32(dtype):
    call = variant(dtype=dtype, element_bytes=2)
    assert workspace(call, PLANS, CUDNN, allow_tf32=False) == workspace(call, PLANS, CUDNN)


def test_the_deterministic_policy_passes_over_what_is_not():
    needed = workspace(CONVOLUTION, PLANS, DETERMINISTIC)
    assert needed == Workspace(0, 500, 500, 700, (500, 700, 0))


def test_a_cap_makes_the_plans_within_it_likely_and_where_there_are_none_the_smallest():
    capped = workspace(CONVOLUTION, [Plan(1, 3 * MIB), Plan(2, MIB), Plan(3, 0)], cudnn_capped.policy(1))
    assert (capped.likely_bytes, capped.choices_up_to(capped.likely_bytes)) == (MIB, (MIB, 0))
    over = workspace(CONVOLUTION, [Plan(1, 5 * MIB), Plan(2, 2 * MIB)], cudnn_capped.policy(1))
    assert over.likely_bytes == 2 * MIB


def test_that_cudnn_keeps_to_a_cap_is_not_relied_on():
    plans = [Plan(1, 3 * MIB), Plan(2, 5 * MIB), Plan(3, MIB)]
    capped, free = (workspace(CONVOLUTION, plans, policy) for policy in (cudnn_capped.policy(1), CUDNN))
    assert (
        (capped.high_bytes, capped.worst_bytes) == (free.high_bytes, free.worst_bytes) == (3 * MIB, 5 * MIB)
    )


def test_benchmarking_begins_with_the_largest_and_comes_down_by_size():
    needed = workspace(CONVOLUTION, PLANS, BENCHMARK)
    assert needed == Workspace(500, 900, 900, 900, (900, 700, 500, 300, 0), repeated_bytes=500)


def test_what_benchmarking_found_is_taken_again_without_the_room_to_find_it():
    again = workspace(CONVOLUTION, PLANS, BENCHMARK).plus(7).repeated
    assert (again.low_bytes, again.likely_bytes, again.high_bytes) == (507, 507, 907)
    found = workspace(CONVOLUTION, PLANS, CUDNN)
    assert found.repeated == found


def test_where_no_plan_meets_the_policy_all_of_them_count():
    plans = (Plan(38, 500, uses_tensor_cores=True), Plan(46, 900, uses_tensor_cores=True))
    assert workspace(CONVOLUTION, plans, CUDNN, allow_tf32=False) == workspace(CONVOLUTION, plans, CUDNN)


@pytest.mark.parametrize("knows_the_order", [True, False])
@pytest.mark.parametrize("allow_tf32", [True, False])
@pytest.mark.parametrize("policy", [CUDNN, DETERMINISTIC, BENCHMARK, cudnn_capped.policy(1)])
@pytest.mark.parametrize("plans", [PLANS, PLANS[::-1], PLANS[:1], PLANS[1:3]])
def test_the_levels_are_in_order(plans, policy, allow_tf32, knows_the_order):
    needed = workspace(CONVOLUTION, plans, policy, allow_tf32=allow_tf32, knows_the_order=knows_the_order)
    assert 0 <= needed.low_bytes <= needed.likely_bytes <= needed.high_bytes <= needed.worst_bytes
    assert needed.likely_bytes == needed.choices_bytes[0]
    assert len(set(needed.choices_bytes)) == len(needed.choices_bytes)


def test_from_a_size_on_only_smaller_ones_are_tried_in_order():
    needed = Workspace(0, 500, 900, 900, (500, 900, 300, 700, 0))
    assert needed.choices_up_to(500) == (500, 300, 0)
    assert needed.choices_up_to(900) == (900, 500, 300, 700, 0)
    assert needed.choices_up_to(0) == (0,)
    assert certain(64).choices_up_to(64) == (64,)


def test_a_certain_workspace_is_the_same_at_every_level():
    assert certain(64) == Workspace(64, 64, 64, 64)
    assert between(1, 2, 3) == Workspace(1, 2, 3, 3)


def test_native_convolutions_unfold_one_sample_at_a_time():
    columns_bytes = 4 * (64 * 9) * (56 * 56)
    assert native_workspace(CONVOLUTION) == certain(columns_bytes)
    assert native_workspace(variant(input_shape=(1, 64, 56, 56))) == certain(columns_bytes)


def test_native_convolutions_unfold_the_channels_of_one_group():
    assert native_workspace(GROUPED) == certain(4 * (2 * 9) * (56 * 56))


@pytest.mark.parametrize("call", [POINTWISE, DEPTHWISE], ids=["pointwise", "depthwise"])
def test_native_convolutions_of_one_pixel_or_one_channel_unfold_nothing(call):
    assert native_workspace(call) == NO_WORKSPACE


def test_one_pixel_with_a_stride_is_unfolded():
    strided = variant(
        weight_shape=(64, 64, 1, 1), padding=(0, 0), stride=(2, 2), output_shape=(64, 64, 28, 28)
    )
    assert native_workspace(strided) == certain(4 * 64 * (28 * 28))


def test_a_convolution_is_depthwise_when_every_channel_is_a_group():
    assert is_depthwise(DEPTHWISE)
    assert not is_depthwise(GROUPED)
    one_channel = variant(input_shape=(64, 1, 56, 56), weight_shape=(64, 1, 3, 3))
    assert not is_depthwise(one_channel)


@pytest.mark.parametrize("conv_pass", ConvPass)
@pytest.mark.parametrize("call", [CONVOLUTION, POINTWISE, GROUPED], ids=["dense", "pointwise", "grouped"])
def test_all_but_depthwise_convolutions_go_to_cudnn(call, conv_pass):
    assert goes_to_cudnn(call, 80, (2, 7))


# 64 -> 250 maps of 100×100: 858 samples have up to 2^31 elements where they have most.
WIDE = variant(
    input_shape=(1, 64, 100, 100),
    weight_shape=(250, 64, 1, 1),
    output_shape=(1, 250, 100, 100),
    padding=(0, 0),
)


@pytest.mark.parametrize("conv_pass", ConvPass)
@pytest.mark.parametrize(("num_samples", "at_a_time"), [(1, 1), (858, 858), (859, 858), (5000, 858)])
def test_cudnn_goes_through_a_batch_in_pieces_that_32_bits_index(conv_pass, num_samples, at_a_time):
    call = dataclasses.replace(WIDE, conv_pass=conv_pass).of_samples(num_samples)
    assert at_once(call) == call.of_samples(at_a_time)


def test_a_piece_is_a_sample_at_least_and_may_have_just_2_to_the_31_elements():
    half = variant(input_shape=(3, 2**30, 1, 1), output_shape=(3, 1, 1, 1))
    assert at_once(half).input_shape[0] == 2
    huge = variant(input_shape=(3, 2**32, 1, 1), output_shape=(3, 1, 1, 1))
    assert at_once(huge).input_shape[0] == 1


def test_bfloat16_goes_to_cudnn_from_ampere_on():
    half = variant(dtype="bfloat16", element_bytes=2)
    assert [goes_to_cudnn(half, capability, (2, 7)) for capability in (70, 75, 80, 90)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_depthwise_convolutions_go_to_cudnn_in_channels_last_alone(dtype):
    assert not goes_to_cudnn(depthwise(dtype=dtype), 80, (2, 7))
    assert goes_to_cudnn(depthwise(dtype=dtype, channels_last=True), 80, (2, 7))


def depthwise(num_samples=64, channels=64, size=(56, 56), kernel=(3, 3), stride=(1, 1), **changes):
    return variant(
        **{
            "input_shape": (num_samples, channels, *size),
            "weight_shape": (channels, 1, *kernel),
            "output_shape": (num_samples, channels, *(-(-n // s) for n, s in zip(size, stride, strict=True))),
            "stride": stride,
            "padding": tuple(k // 2 for k in kernel),
            "dilation": (1,) * len(size),
            "groups": channels,
            "dtype": "float16",
            "element_bytes": 2,
        }
        | changes
    )


# `use_cudnn_depthwise` and `check_cudnn_depthwise_workload_with_filter` of PyTorch's Convolution.cpp.
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (depthwise(), True),
        (depthwise(channels=32), True),
        (depthwise(channels=31), False),
        (depthwise(size=(56, 7)), True),
        (depthwise(size=(56, 6)), False),
        (depthwise(kernel=(5, 5)), True),
        (depthwise(kernel=(7, 7)), False),
        (depthwise(kernel=(3, 5)), False),
        (depthwise(dilation=(2, 2)), False),
        (depthwise(stride=(1, 2)), False),
        (depthwise(stride=(3, 3)), False),
        # stride 2: by samples, filter, channels and width
        (depthwise(stride=(2, 2)), False),
        (depthwise(stride=(2, 2), channels=256, size=(28, 28)), True),
        (depthwise(stride=(2, 2), channels=256, size=(27, 27)), False),
        (depthwise(stride=(2, 2), channels=512, size=(7, 7)), True),
        (depthwise(stride=(2, 2), num_samples=1), True),
        (depthwise(stride=(2, 2), num_samples=1, kernel=(1, 1)), False),
        (depthwise(stride=(2, 2), num_samples=1, kernel=(1, 1), size=(28, 28)), True),
        (depthwise(stride=(2, 2), num_samples=16, kernel=(1, 1), channels=128, size=(7, 7)), True),
        (depthwise(stride=(2, 2), num_samples=17, kernel=(1, 1), channels=128, size=(7, 7)), False),
        # 1-D and 3-D
        (depthwise(size=(1000,), kernel=(9,), stride=(1,)), True),
        (depthwise(size=(1000,), kernel=(9,), stride=(2,)), False),
        (depthwise(size=(8, 56, 56), kernel=(3, 3, 3), stride=(1, 1, 1)), False),
    ],
)
def test_half_precision_goes_to_cudnn_where_pytorch_found_that_faster(call, expected):
    assert goes_to_cudnn(call, 80, (2, 7)) == expected
