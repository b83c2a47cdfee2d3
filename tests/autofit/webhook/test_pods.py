"""Pods and GPUs of manifests, kind by kind."""

from __future__ import annotations

from typing import Any

import pytest

from autofit.webhook.pods import GpuAsked, PodAsked, pods_of
from tests.autofit.webhook.reviews import template

T4 = {"nvidia.com/gpu.product": "Tesla-T4"}
TEMPLATE = template(selector=T4)
HEAD = {"spec": {"containers": [{"name": "head", "resources": {"limits": {"cpu": "4"}}}]}}
GROUPS = {"headGroupSpec": {"template": HEAD}, "workerGroupSpecs": [{"template": TEMPLATE}]}

MANIFESTS: dict[str, dict[str, Any]] = {
    "Pod": {"spec": TEMPLATE["spec"]},
    "Job": {"spec": {"template": TEMPLATE}},
    "StatefulSet": {"spec": {"template": TEMPLATE}},
    "CronJob": {"spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}},
    "JobSet": {"spec": {"replicatedJobs": [{"template": {"spec": {"template": TEMPLATE}}}]}},
    "PyTorchJob": {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}}},
    "RayCluster": {"spec": GROUPS},
    "RayJob": {"spec": {"rayClusterSpec": GROUPS}},
    "RayService": {"spec": {"rayClusterConfig": GROUPS}},
    "Workload": {"spec": {"podSets": [{"name": "main", "count": 1, "template": TEMPLATE}]}},
}


def keys(gpu: GpuAsked) -> list[str]:
    return [card.key for card in gpu.cards]


def only_pod(manifest: dict[str, Any]) -> PodAsked:
    pods = pods_of("Pod", manifest)
    assert pods is not None
    [pod] = pods
    return pod


@pytest.mark.parametrize("kind", MANIFESTS)
def test_the_annotation_of_an_object_holds_for_its_pods(kind: str) -> None:
    manifest = {"metadata": {"annotations": {"autofit.dev/check": "gpt"}}, **MANIFESTS[kind]}
    pods = pods_of(kind, manifest)
    assert pods is not None
    [pod] = [pod for pod in pods if pod.gpus]
    assert pod.configuration == "gpt"
    assert [keys(gpu) for gpu in pod.gpus] == [["t4"]]


def test_an_annotation_of_a_template_goes_before_that_of_the_object() -> None:
    manifest = {
        "metadata": {"annotations": {"autofit.dev/check": "outer"}},
        "spec": {"template": template("inner", selector=T4)},
    }
    pods = pods_of("Job", manifest)
    assert pods is not None
    assert [pod.configuration for pod in pods] == ["inner"]


def test_a_kind_without_pods_is_not_known() -> None:
    assert pods_of("ConfigMap", {"data": {}}) is None


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("NVIDIA-A100-SXM4-80GB", ["a100-80g"]),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", ["a100-80g-mig-1g.10gb"]),
        ("nvidia-tesla-v100", ["v100-16g", "v100-32g"]),
        ("NVIDIA-GeForce-RTX-3090", ["rtx-3090"]),
    ],
)
def test_a_label_names_cards(product: str, expected: list[str]) -> None:
    [gpu] = only_pod(template(selector={"nvidia.com/gpu.product": product})).gpus
    assert (keys(gpu), gpu.unknown, gpu.is_shared) == (expected, (), False)


def test_a_label_of_no_known_card_is_kept_as_unknown() -> None:
    [gpu] = only_pod(template(selector={"nvidia.com/gpu.product": "NVIDIA-X9000"})).gpus
    assert (gpu.cards, gpu.unknown) == ((), ("NVIDIA-X9000",))


def test_a_slice_that_is_asked_for_by_its_profile_may_be_of_several_cards() -> None:
    [gpu] = only_pod(template(limits={"nvidia.com/mig-3g.40gb": 1})).gpus
    assert {"a100-80g-mig-3g.40gb", "h100-80g-mig-3g.40gb"} <= set(keys(gpu))
    assert all(key.endswith("-mig-3g.40gb") for key in keys(gpu))
    product = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    [gpu] = only_pod(template(limits={"nvidia.com/mig-3g.40gb": 1}, selector=product)).gpus
    assert keys(gpu) == ["a100-80g-mig-3g.40gb"]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu.shared", "nvidia.com/gpu"])
def test_a_share_of_a_card_is_told(resource: str) -> None:
    product = "Tesla-T4-SHARED" if resource == "nvidia.com/gpu" else "Tesla-T4"
    [gpu] = only_pod(template(limits={resource: 1}, selector={"nvidia.com/gpu.product": product})).gpus
    assert gpu.is_shared


def test_terms_of_an_affinity_are_alternatives() -> None:
    terms: list[dict[str, str | list[str]]] = [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4", "Tesla-T4"]},
        {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"]},
    ]
    first, second = only_pod(template(terms=terms)).gpus
    assert (keys(first), first.memory_mib) == (["l4", "t4"], None)
    assert (keys(second), second.memory_mib) == ([], 40001)


def test_a_selector_and_a_term_hold_together() -> None:
    terms: list[dict[str, str | list[str]]] = [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4", "Tesla-T4"]}
    ]
    [gpu] = only_pod(template(selector=T4, terms=terms)).gpus
    assert keys(gpu) == ["t4"]


@pytest.mark.parametrize("limits", [{"cpu": 4}, {"nvidia.com/gpu": 0}, {"nvidia.com/gpu": "0"}])
def test_a_pod_without_a_gpu_asks_for_none(limits: dict[str, Any]) -> None:
    assert only_pod(template("gpt", limits=limits)).gpus == ()
