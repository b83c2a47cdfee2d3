"""What a search is for: the card, its budget, and whether it is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from autofit.dispatch.base import Devices
from autofit.errors import BudgetError, DispatchError, DriverError, UsageError
from autofit.hardware.gpus import LocalGpu, catalogue_architectures, find_gpu
from autofit.settings.resolve import resolve_settings
from autofit.settings.target import Target, resolve_target
from autofit_workers.spec.protocol import Device, Probe

MIB, GIB = 1024**2, 1024**3
H200 = LocalGpu(
    name="NVIDIA H200",
    uuid="GPU-1",
    architecture="sm_90",
    total_bytes=140 * GIB,
    used_bytes=0,
    driver_version="570.1",
)


class Cluster:
    """The GPUs that can be reached, and whether anybody asked."""

    def __init__(self, num_gpus: int, *names: str) -> None:
        self.num_gpus = num_gpus
        self.names = names
        self.was_asked = False

    def devices(self) -> Devices:
        self.was_asked = True
        return Devices(num_gpus=self.num_gpus, names=self.names)


def target(
    *local: LocalGpu,
    cluster: Cluster | None = None,
    local_gpus: Callable[[], Any] | None = None,
    **options: Any,
) -> Target:
    """The target on a machine with these cards; Ray would see them too."""
    settings = resolve_settings({"model": "davenet", **options}, {}, None)
    reachable = (cluster or Cluster(len(local))).devices
    return resolve_target(settings, local_gpus=local_gpus or (lambda: local), reachable=reachable)


def driver_that_does_not_answer() -> tuple[LocalGpu, ...]:
    raise DriverError("the driver does not answer")


def test_a_named_card_gives_name_architecture_and_memory() -> None:
    found, gpu = target(gpu="t4"), find_gpu("t4")
    assert found.device == Device(kind="cuda", name="t4")
    assert (found.card.name, found.card.architecture) == ("t4", "sm_75")
    assert found.budget.device_total_bytes == gpu.total_bytes
    assert found.card.context_bytes == found.budget.context_bytes == 254 * MIB
    assert found.probe is None


def test_the_memory_alone_spans_the_catalogue_and_makes_sm_80_likely() -> None:
    found = target(gpu_mem="16G")
    assert (found.device.name, found.card.architecture) == ("16.00 GiB card", "sm_80")
    assert found.budget.device_total_bytes == 16 * GIB
    assert "no card is named" in found.budget.assumptions[0]
    assert found.card.may_be == catalogue_architectures()
    assert found.card.architectures[0] == "sm_80"  # the likely one, then all others
    assert set(found.card.architectures) == set(catalogue_architectures())


def test_a_card_that_is_known_spans_nothing() -> None:
    for found in (target(gpu="t4"), target(H200), target(gpu_mem="8G", device="cpu")):
        assert found.card.architectures == (found.card.architecture,)


def test_without_either_the_local_card_is_meant() -> None:
    found = target(H200)
    assert found.device == Device(kind="cuda", name="NVIDIA H200", driver="570.1")
    assert (found.card.architecture, found.budget.device_total_bytes) == ("sm_90", 140 * GIB)
    assert found.probe is Probe.CUDA


def test_a_named_card_is_not_said_to_have_the_local_driver() -> None:
    assert target(H200, gpu="t4", cluster=Cluster(0)).device.driver is None


def test_margin_and_reserve_come_off() -> None:
    budget = target(gpu_mem="16G", margin="10%", reserve="2G").budget
    assert (budget.other_bytes, budget.margin_bytes) == (2 * GIB, -(-16 * GIB // 10))


def test_without_a_card_anywhere_it_says_how_to_name_one() -> None:
    with pytest.raises(UsageError, match=r"--gpu-mem 16G or --gpu rtx-3090") as raised:
        target()
    assert raised.value.exit_code == 2


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(BudgetError, match="nothing is left of") as raised:
        target(gpu_mem="16G", reserve="16G")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("options", [{"gpu": "t4"}, {"gpu_mem": "16G"}])
def test_a_prediction_for_a_named_card_does_without_the_driver(options: dict[str, str]) -> None:
    cluster = Cluster(1)
    found = target(local_gpus=driver_that_does_not_answer, cluster=cluster, probe="predict", **options)
    assert found.probe is None
    assert not cluster.was_asked


@pytest.mark.parametrize("options", [{"gpu": "t4"}, {"gpu_mem": "16G"}])
def test_a_driver_that_does_not_answer_leaves_a_named_card_to_prediction(options: dict[str, str]) -> None:
    assert target(local_gpus=driver_that_does_not_answer, **options).probe is None


def test_a_local_gpu_does_not_measure_a_larger_card() -> None:
    small = dataclasses.replace(H200, total_bytes=4 * 1024 * MIB)
    assert target(small, gpu="t4").probe is None


@pytest.mark.parametrize(
    "options", [{"probe": "predict"}, {"gpu": "t4", "probe": "measure"}, {"gpu_mem": "16G", "device": "cuda"}]
)
def test_else_a_driver_that_does_not_answer_is_an_error(options: dict[str, str]) -> None:
    with pytest.raises(DriverError):
        target(local_gpus=driver_that_does_not_answer, **options)


def test_a_local_gpu_is_measured_under_a_smaller_card_s_cap() -> None:
    found = target(H200, gpu="t4")
    assert (found.probe, found.card.name) == (Probe.CUDA, "t4")


def test_the_budget_is_the_local_card_s_own_where_it_or_its_memory_is_meant() -> None:
    t4 = dataclasses.replace(H200, name="Tesla T4", total_bytes=find_gpu("t4").total_bytes + 30 * MIB)
    assert target(H200).is_own_budget
    assert target(H200, gpu_mem="140G").is_own_budget
    assert target(t4, gpu="t4").is_own_budget
    assert not target(H200, gpu="t4").is_own_budget
    assert not target(H200, gpu_mem="16G").is_own_budget
    assert not target(dataclasses.replace(t4, name="Tesla P4"), gpu="t4").is_own_budget
    assert not target(t4, H200, gpu="t4").is_own_budget  # a trial may land on either


def test_the_budget_is_a_cluster_s_own_where_it_names_that_card_alone() -> None:
    assert target(gpu="t4", address="head:6379", cluster=Cluster(2, "T4", "Tesla T4")).is_own_budget
    assert not target(gpu="t4", address="head:6379", cluster=Cluster(2, "T4", "H200")).is_own_budget
    assert not target(gpu="t4", address="head:6379", cluster=Cluster(2, "T4")).is_own_budget
    assert not target(gpu_mem="16G", address="head:6379", cluster=Cluster(1, "T4")).is_own_budget


def test_what_is_not_measured_on_a_card_claims_none() -> None:
    assert not target(H200, probe="predict").is_own_budget
    assert not target(device="cpu", gpu_mem="1G").is_own_budget


def test_a_local_gpu_that_trials_cannot_reach_is_predicted() -> None:
    assert target(H200, gpu="t4", cluster=Cluster(0)).probe is None


def test_nothing_is_connected_where_there_is_nothing_to_measure_on() -> None:
    cluster = Cluster(8)
    assert target(gpu="t4", cluster=cluster).probe is None
    assert not cluster.was_asked


def test_a_cluster_that_has_a_gpu_is_measured_on() -> None:
    assert target(gpu="t4", address="head:6379", cluster=Cluster(8)).probe is Probe.CUDA
    assert target(gpu="t4", address="head:6379", cluster=Cluster(0)).probe is None


@pytest.mark.parametrize("wish", [{"probe": "measure"}, {"device": "cuda"}])
def test_a_measurement_without_a_gpu_is_refused(wish: dict[str, str]) -> None:
    with pytest.raises(
        DispatchError, match=r"this machine has no GPU with that memory to measure on: .* --address"
    ) as raised:
        target(gpu="t4", cluster=Cluster(0), **wish)
    assert raised.value.exit_code == 5


@pytest.mark.parametrize("wish", [{"probe": "measure"}, {"device": "cuda"}])
def test_a_cluster_that_has_no_gpu_yet_is_measured_on_where_that_is_wanted(wish: dict[str, str]) -> None:
    assert target(gpu="t4", address="head:6379", cluster=Cluster(0), **wish).probe is Probe.CUDA


def test_the_cpu_has_a_limit_instead_of_a_card_and_is_measured() -> None:
    cluster = Cluster(0)
    found = target(device="cpu", gpu_mem="1500M", cluster=cluster, local_gpus=driver_that_does_not_answer)
    assert (found.device.kind, found.probe) == ("cpu", Probe.CPU)
    assert found.budget.device_total_bytes == 1500 * MIB
    assert (found.budget.context_bytes, found.card.context_bytes) == (0, 0)
    assert not cluster.was_asked
