"""What every source of plans has in common."""

from __future__ import annotations

import pytest

from autofit_workers.replay.plans.cudnn_plans import CudnnPlans
from autofit_workers.replay.plans.device_properties import DeviceProperties
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.grid_plans import GridPlans
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.spec.work import ConvPass
from tests.workers.replay.plan_tables import CONVOLUTION, DEPTHWISE, GROUPED, POINTWISE, of_samples, variant

CARD = DeviceProperties(
    name="a card",
    architecture="sm_86",
    num_sms=82,
    total_bytes=24 << 30,
    sm_clock_khz=1_695_000,
    memory_clock_khz=9_751_000,
    memory_bus_bits=384,
    l2_bytes=6 << 20,
)
CALLS = [
    *(variant(conv_pass=conv_pass) for conv_pass in ConvPass),
    of_samples(5),
    GROUPED,
    POINTWISE,
    DEPTHWISE,
    variant(dtype="float16", element_bytes=2, channels_last=True),
    CONVOLUTION,
]


@pytest.fixture(params=["formulas", "formulas on a grid", "libcudnn", "libcudnn on a grid"])
def source(request: pytest.FixtureRequest) -> PlanSource:
    if "libcudnn" in request.param and not CudnnPlans.is_available():
        pytest.skip("needs libcudnn: pip install -c constraints.txt '.[cudnn]'")
    inner = CudnnPlans(CARD) if "libcudnn" in request.param else FormulaPlans("sm_86")
    return GridPlans(inner) if "grid" in request.param else inner


def test_every_call_has_plans_in_its_place(source):
    answers = source.plans(CALLS)
    assert len(answers) == len(CALLS)
    assert all(answers)
    assert [source.plans([call]) for call in CALLS] == [[plans] for plans in answers]


def test_no_plan_needs_less_than_nothing(source):
    sizes = {plan.workspace_bytes for plans in source.plans(CALLS) for plan in plans}
    assert min(sizes) == 0


def test_no_calls_have_no_answers(source):
    assert source.plans([]) == []


def test_a_source_has_a_name_for_reports_and_is_a_key(source):
    assert source.name
    assert isinstance(source.knows_the_order, bool)
    assert {source: 1}[source] == 1
