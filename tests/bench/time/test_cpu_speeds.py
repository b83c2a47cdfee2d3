"""The speeds of the processor that the tests run on."""

from __future__ import annotations

import pytest
import torch

from autofit_workers.spec.work import Operand, Work
from tests.bench.time.cpu_costs import CPU, CpuCosts, demand_of
from tests.bench.time.cpu_speeds import measure_cpu_speeds


@pytest.fixture(scope="module")
def speeds():
    return measure_cpu_speeds(seconds_each=0.0)


def test_all_speeds_of_a_processor_are_measured(speeds):
    assert set(speeds.flops) == {"float32", "bfloat16", "float16"}
    assert all(rate > 0 for rate in (*speeds.flops.values(), speeds.bandwidth, speeds.call_seconds))
    assert speeds.page_seconds >= 0
    assert (speeds.architecture, speeds.num_units) == (CPU, torch.get_num_threads())


def test_operators_are_predicted_from_them(speeds):
    costs = CpuCosts(speeds)
    small, large = (Operand((rows, 512), "float32") for rows in (8, 4096))
    weight = Operand((512, 512), "float32")
    times = [costs.seconds(demand_of(Work("aten.mm", (each, weight), (each,)))) for each in (small, large)]
    assert 0 < times[0] < times[1]
