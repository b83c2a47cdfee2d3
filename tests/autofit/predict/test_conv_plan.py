"""Plans of convolution algorithms: within their limits, and never dearer than one algorithm for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.errors import StorageError, UsageError
from autofit.hardware.card import card_named
from autofit.predict.convolutions.costs import ConvCosts
from autofit.predict.convolutions.plan import ConvPlan, ConvPlanner
from autofit.predict.predictor import Predictor
from autofit.predict.times.step_times import Timer
from autofit.settings.workloads import refer
from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.conv_algorithms.mixed import CANDIDATES
from autofit_workers.spec.knobs import Knobs
from autofit_workers.trials import door
from tests.bench.conv_plans import cost_alone

MIB = 2**20
BATCH_SIZE = 16
COSTS = ConvCosts(Timer().costs(card_named("a100-40g"), Knobs()))
NET = """
import torch
from autofit_workers.workload import Workload

def build():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, padding=3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1),
    )

net = Workload(build_model=build, optimizer="sgd", loss=lambda model, batch: model(batch).square().mean(),
               make_batch=lambda size, device: torch.ones(size, 3, 64, 64, device=device))
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("net")
    (folder / "net.py").write_text(NET)
    return Predictor(refer(f"{folder / 'net.py'}:net"), door.run, plans=FormulaPlans)


@pytest.fixture(scope="module")
def curve(net: Predictor) -> PeakCurve:
    return PeakCurve.through([net.trace(Knobs(), BATCH_SIZE)])


@pytest.fixture
def planner(curve: PeakCurve) -> ConvPlanner:
    return ConvPlanner(curve.on_card(BATCH_SIZE, Conditions()), COSTS)


def within(planner: ConvPlanner, limit_mib: int) -> ConvPlan:
    return planner.within(lambda _call: limit_mib * MIB)


@pytest.mark.parametrize("limit_mib", [0, 1, 4, 16, 64, 256, 1024])
def test_within_a_workspace_no_single_algorithm_is_cheaper(curve: PeakCurve, limit_mib: int) -> None:
    on_card = curve.on_card(BATCH_SIZE, Conditions())
    plan = within(ConvPlanner(on_card, COSTS), limit_mib)
    for name in ("cudnn", *CANDIDATES):
        alone = cost_alone(on_card, COSTS, name, limit_mib * MIB)
        if alone is not None:
            assert plan.relative_cost <= alone + 1e-12
            assert max(choice.workspace_bytes for choice in plan.layers) <= limit_mib * MIB


def test_every_layer_has_an_algorithm_and_its_share_of_the_time(planner: ConvPlanner) -> None:
    plan = within(planner, 64)
    assert [layer for layer, _ in plan.assignment] == ["0", "2", "4", "6"]
    assert sum(choice.cost for choice in plan.layers) == pytest.approx(1.0)


def test_within_a_budget_the_reserved_peak_is_and_more_memory_never_costs_time(planner: ConvPlanner) -> None:
    least = within(planner, 0).peak_reserved_bytes
    budgets = [least + extra * MIB for extra in (0, 4, 16, 64, 256)]
    plans = [plan for budget in budgets if (plan := planner.within_budget(budget)) is not None]
    assert len(plans) == len(budgets)
    assert all(plan.peak_reserved_bytes <= budget for plan, budget in zip(plans, budgets, strict=True))
    costs = [plan.relative_cost for plan in plans]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(1.0)


def test_what_no_plan_fits_has_none(planner: ConvPlanner) -> None:
    assert planner.within_budget(MIB) is None


def test_the_plan_of_a_setting_that_is_mixed_takes_least(curve: PeakCurve) -> None:
    peaks = {
        name: curve.on_card(BATCH_SIZE, Conditions(conv_algo=name)).reserved_bytes()
        for name in ("mixed", "cudnn", *CANDIDATES)
    }
    assert peaks["mixed"] == min(peaks.values())


def test_a_plan_survives_its_file(planner: ConvPlanner, tmp_path: Path) -> None:
    plan = within(planner, 16)
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert ConvPlan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "autofit.conv-plan/2", "layers": []}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match="is not a convolution plan"):
        ConvPlan.load(tmp_path / "plan.json")
    with pytest.raises(StorageError, match="cannot read the plan"):
        ConvPlan.load(tmp_path / "missing.json")


def test_a_setting_that_is_mixed_has_a_time_by_the_algorithms_that_its_layers_have(net: Predictor) -> None:
    mixed, cudnn = (net.curve(Knobs(conv_algo=name), card_named("rtx-3090")) for name in ("mixed", "cudnn"))
    least, default = mixed.step_time(BATCH_SIZE), cudnn.step_time(BATCH_SIZE)
    assert least is not None
    assert default is not None
    assert least.likely_seconds > default.likely_seconds
    with_all_memory = mixed.step_time(BATCH_SIZE, 2**40)
    assert with_all_memory is not None
    assert with_all_memory.likely_seconds == pytest.approx(default.likely_seconds)
    assert mixed.step_time(BATCH_SIZE, MIB) is None
    assert mixed(BATCH_SIZE).step_seconds is None  # nothing was timed of rewrites
