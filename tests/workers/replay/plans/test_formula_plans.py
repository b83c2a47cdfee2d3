"""Plans by formula, worked out by hand."""

from __future__ import annotations

import pytest

from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.work import Convolution, ConvPass
from tests.workers.replay.plan_tables import (
    CONVOLUTION,
    DEPTHWISE,
    GROUPED,
    MAPS_BYTES,
    POINTWISE,
    of_samples,
    variant,
)

# F(4×4, 3×3) cuts 14×14 tiles of 36 transformed elements from either side, and transforms the filters.
WINOGRAD_BYTES = 4 * 36 * (64 * 64 * 14 * 14 + 64 * 64 * 14 * 14 + 64 * 64)


def sizes(call: Convolution, architecture: str = "sm_80") -> list[int]:
    (plans,) = FormulaPlans(architecture).plans([call])
    return [plan.workspace_bytes for plan in plans]


def test_the_forward_pass_copies_what_it_reads_and_may_copy_all_or_need_winograds_buffers():
    assert sizes(CONVOLUTION) == [MAPS_BYTES, 2 * MAPS_BYTES, WINOGRAD_BYTES, 0]
    assert WINOGRAD_BYTES > 2 * MAPS_BYTES


@pytest.mark.parametrize("conv_pass", [ConvPass.DGRAD, ConvPass.WGRAD])
def test_a_gradient_copies_both_maps(conv_pass):
    assert sizes(variant(conv_pass=conv_pass))[0] == 2 * MAPS_BYTES


def test_so_does_the_forward_pass_from_hopper_on():
    assert sizes(CONVOLUTION, "sm_90")[0] == 2 * MAPS_BYTES


def test_maps_that_are_channels_last_already_need_no_copy():
    assert sizes(variant(channels_last=True))[0] == 0


@pytest.mark.parametrize(
    ("architecture", "dtype", "has_tensor_cores"),
    [
        ("sm_61", "float32", False),
        ("sm_75", "float32", False),
        ("sm_75", "bfloat16", False),
        ("sm_70", "float16", True),
        ("sm_80", "float32", True),
        ("sm_86", "bfloat16", True),
        ("sm_100", "float32", True),
    ],
)
def test_without_tensor_cores_no_plan_needs_a_workspace(architecture, dtype, has_tensor_cores):
    (plans,) = FormulaPlans(architecture).plans([variant(dtype=dtype)])
    assert plans[0].uses_tensor_cores == has_tensor_cores
    assert (plans[0].workspace_bytes > 0) == has_tensor_cores


def test_before_volta_anything_up_to_winograds_buffers_may_be_taken():
    assert sizes(CONVOLUTION, "sm_61") == [0, WINOGRAD_BYTES, 0]
    assert sizes(variant(stride=(2, 2)), "sm_60") == [0, 2 * MAPS_BYTES, 0]
    assert sizes(POINTWISE, "sm_61") == [0]


@pytest.mark.parametrize("call", [POINTWISE, GROUPED, DEPTHWISE], ids=["pointwise", "grouped", "depthwise"])
def test_pointwise_and_grouped_convolutions_need_none(call):
    assert sizes(call) == [0]


@pytest.mark.parametrize(
    "call",
    [variant(stride=(2, 2)), variant(dilation=(2, 2)), variant(weight_shape=(64, 64, 5, 5))],
    ids=["strided", "dilated", "5×5"],
)
def test_winograd_is_for_3x3_filters_without_stride_and_dilation(call):
    assert max(sizes(call)) == 2 * MAPS_BYTES


def test_every_call_has_its_plans_and_the_last_needs_nothing():
    calls = [CONVOLUTION, of_samples(3), POINTWISE]
    answers = FormulaPlans("sm_80").plans(calls)
    assert [max(p.workspace_bytes for p in plans) for plans in answers] == [max(sizes(c)) for c in calls]
    assert all(plans[-1] == Plan(-1, 0) for plans in answers)


def test_formulas_do_not_claim_to_know_which_plan_pytorch_takes():
    assert not FormulaPlans("sm_80").knows_the_order
    assert FormulaPlans("sm_80").name == "formulas"
