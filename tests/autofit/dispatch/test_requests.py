"""What trials ask of nodes, and which nodes can give it."""

from __future__ import annotations

import pytest

from autofit.dispatch.requests import (
    Wishes,
    accelerator_type,
    can_run,
    in_words,
    num_at_once,
    num_groups_at_once,
    offers_in_words,
)
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup

CPU_NODE = {"CPU": 8.0, "memory": 2.0**34, "rack": 1.0}
T4_NODE = {"CPU": 4.0, "GPU": 2.0, "accelerator_type:T4": 1.0}
A100_NODE = {"CPU": 4.0, "GPU": 1.0, "accelerator_type:A100": 1.0}
NAMED_BY_HAND = {**A100_NODE, "accelerator_type:A100-80G": 1.0}
UNNAMED_NODE = {"CPU": 4.0, "GPU": 1.0}
TWO_RANKS = Setup(parallel=Parallel.parse("ddp:2"))


def spec(probe: Probe, **settings) -> TrialSpec:
    workload = WorkloadRef(kind="builtin", target="any")
    return TrialSpec(workload=workload, batch_size=1, probe=probe, **settings)


@pytest.mark.parametrize(
    ("probe", "settings", "request_"),
    [
        (Probe.PREDICT, {"budget_bytes": 7, "num_threads": 3}, {"CPU": 1}),
        (Probe.CUDA, {"budget_bytes": 7}, {"CPU": 1, "GPU": 1}),
        (Probe.CPU, {}, {"CPU": 1}),
        (Probe.CPU, {"budget_bytes": 7, "num_threads": 3}, {"CPU": 3, "memory": 7}),
        (Probe.PREDICT, {"setup": TWO_RANKS}, {"CPU": 1}),
        (Probe.CUDA, {"setup": TWO_RANKS}, {"CPU": 2, "GPU": 2}),
        (Probe.CPU, {"setup": TWO_RANKS, "budget_bytes": 7, "num_threads": 3}, {"CPU": 6, "memory": 14}),
    ],
)
def test_a_trial_asks_for_what_its_probe_uses(probe: Probe, settings: dict, request_: dict):
    assert Wishes().request(probe, spec(probe, **settings), [CPU_NODE]) == request_
    with_rack = Wishes(resources={"rack": 0.5}).request(probe, spec(probe, **settings), [CPU_NODE])
    assert with_rack == {**request_, "rack": 0.5}


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ([T4_NODE, A100_NODE], "accelerator_type:A100"),
        ([T4_NODE, A100_NODE, NAMED_BY_HAND], "accelerator_type:A100-80G"),
        ([T4_NODE, UNNAMED_NODE], "accelerator_type:A100"),  # an autoscaler may add one
        ([CPU_NODE], "accelerator_type:A100"),
        ([], "accelerator_type:A100"),
        ([CPU_NODE, UNNAMED_NODE], None),  # Ray could not name any of the cards
    ],
)
def test_a_cuda_trial_for_a_card_asks_for_the_type_that_the_nodes_know_it_by(nodes: list, asked: str | None):
    wishes = Wishes(accelerator_types=("A100-80G", "A100"))
    extra = wishes.request(Probe.CUDA, None, nodes).keys() - {"CPU", "GPU"}
    assert extra == ({asked} if asked else set())
    assert wishes.request(Probe.CPU, None, nodes) == {"CPU": 1}


@pytest.mark.parametrize(
    ("request_", "node", "num"),
    [
        ({"CPU": 1}, CPU_NODE, 8),
        ({"CPU": 3}, CPU_NODE, 2),
        ({"CPU": 1, "memory": 2**33}, CPU_NODE, 2),
        ({"CPU": 1, "GPU": 1}, T4_NODE, 2),
        ({"CPU": 1, "GPU": 1}, CPU_NODE, 0),
        ({"CPU": 1, "rack": 0.1}, CPU_NODE, 8),
        ({"CPU": 0.1, "rack": 0.1}, {"CPU": 1.0, "rack": 0.3}, 3),
    ],
)
def test_a_node_serves_as_many_at_once_as_its_scarcest_resource_allows(request_: dict, node: dict, num: int):
    assert num_at_once(node, request_) == num
    assert can_run([node], request_) is (num > 0)


def test_the_type_of_a_node_is_the_one_of_its_cards():
    assert [accelerator_type(node) for node in (T4_NODE, UNNAMED_NODE)] == ["T4", None]


def test_requests_and_offers_are_told_in_the_same_words():
    wishes = Wishes(resources={"rack": 1}, accelerator_types=("H100",))
    nodes = [CPU_NODE, T4_NODE, T4_NODE]
    request = wishes.request(Probe.CUDA, None, nodes)
    assert in_words(request) == "1 CPU, 1 GPU of type H100, 1 rack"
    assert offers_in_words(nodes, request) == "4 CPU, 2 GPU of type T4, 0 rack; 8 CPU, 0 GPU, 1 rack"
    assert offers_in_words([], request) == "nothing"
    memory = Wishes().request(Probe.CPU, spec(Probe.CPU, budget_bytes=2**30), nodes)
    assert in_words(memory) == "1 CPU, 1.00 GiB of memory"


def test_ranks_on_several_nodes_ask_each_for_their_share():
    four = Setup(parallel=Parallel.parse("ddp:4"))
    asked = Wishes().request(Probe.CPU, spec(Probe.CPU, setup=four, num_nodes=2, budget_bytes=7), ())
    assert asked == {"CPU": 2, "memory": 14}
    assert can_run([CPU_NODE, {**CPU_NODE, "CPU": 2.0}], asked, num_nodes=2)
    assert not can_run([CPU_NODE, {**CPU_NODE, "CPU": 1.0}], asked, num_nodes=2)


@pytest.mark.parametrize(
    ("cpus", "num_nodes", "num_groups"),
    [
        ((1, 1), 2, 1),
        ((4, 1), 2, 1),
        ((2, 2), 2, 2),
        ((2, 1, 1), 2, 2),
        ((5, 1, 1), 3, 1),
        ((9,), 2, 0),
        ((), 2, 0),
    ],
)
def test_a_node_is_in_a_group_once(cpus: tuple[int, ...], num_nodes: int, num_groups: int):
    nodes = [{"CPU": float(count)} for count in cpus]
    assert num_groups_at_once(nodes, {"CPU": 1}, num_nodes) == num_groups
