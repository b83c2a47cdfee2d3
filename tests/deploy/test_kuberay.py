"""The manifests against KubeRay's own definitions, and against each other."""

from __future__ import annotations

import copy
import json
import shlex
from typing import Any

import pytest

from autofit.cli.app import autofit
from autofit.hardware.gpus import find_gpu
from autofit.settings.resolve import resolve_settings
from tests.deploy.kubernetes import (
    CRD_FOLDER,
    all_manifests,
    containers,
    of_kind,
    pod_templates,
    problems,
    secret_references,
)
from tests.deploy.places import ROOT

PORT_OF_SERVE = 9465
RAY_KINDS = ("RayCluster", "RayJob")

needs_definitions = pytest.mark.skipif(
    not CRD_FOLDER.is_dir(), reason=f"KubeRay's definitions are not in {CRD_FOLDER} (AUTOFIT_CRD_DIR)"
)


def cluster() -> dict[str, Any]:
    (found,) = of_kind("RayCluster")
    return found


@needs_definitions
@pytest.mark.parametrize("kind", RAY_KINDS)
def test_kuberay_takes_the_manifest(kind: str) -> None:
    for manifest in of_kind(kind):
        assert problems(manifest) == []


@needs_definitions
@pytest.mark.parametrize(
    "where",
    [
        ("spec", "workerGroupSpecs", 0, "minReplica"),
        ("spec", "headGroupSpec", "template", "spec", "containers", 0, "resource"),
        ("spec", "authOptions", "secretname"),
    ],
    ids=lambda where: str(where[-1]),
)
def test_a_misspelt_key_is_found(where: tuple[Any, ...]) -> None:
    manifest = copy.deepcopy(cluster())
    *parents, misspelt = where
    place = manifest
    for key in parents:
        place = place[key]
    place[misspelt] = {}
    (problem,) = problems(manifest)
    assert f"'{misspelt}' was unexpected" in problem


@needs_definitions
def test_a_missing_key_is_found() -> None:
    manifest = copy.deepcopy(cluster())
    del manifest["spec"]["workerGroupSpecs"][0]["maxReplicas"]
    assert problems(manifest) == ["$.spec.workerGroupSpecs[0]: 'maxReplicas' is a required property"]


def test_the_cluster_has_the_version_of_ray_that_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"\nray=={cluster()['spec']['rayVersion']}\n" in pins


def test_only_the_head_takes_drivers_and_the_head_takes_no_trials() -> None:
    head = cluster()["spec"]["headGroupSpec"]["rayStartParams"]
    assert head["num-cpus"] == "0"
    assert json.loads(json.loads(head["resources"])).keys() == {"autofit_driver"}


@pytest.mark.parametrize("group", [group["groupName"] for group in cluster()["spec"]["workerGroupSpecs"]])
def test_a_group_of_workers_is_found_by_the_name_of_its_card(group: str) -> None:
    (spec,) = [each for each in cluster()["spec"]["workerGroupSpecs"] if each["groupName"] == group]
    offered = json.loads(json.loads(spec["rayStartParams"]["resources"]))
    kinds = {name.removeprefix("accelerator_type:") for name in offered}
    assert kinds <= set(find_gpu(group).accelerator_types)
    (container,) = spec["template"]["spec"]["containers"]
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == 1


@pytest.mark.parametrize("job", of_kind("RayJob"), ids=lambda job: job["metadata"]["name"])
def test_a_job_runs_on_the_cluster_with_a_command_that_is_one(job: dict[str, Any]) -> None:
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster()["metadata"]["name"]}
    assert json.loads(job["spec"]["entrypointResources"]) == {"autofit_driver": 1}
    program, name, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert program == "autofit"
    command = autofit.commands[name]
    given = command.make_context(name, list(arguments)).params
    settings = resolve_settings(
        {key: value for key, value in given.items() if key not in ("config", "quiet", "as_json")}, {}, None
    )
    groups = [group["groupName"] for group in cluster()["spec"]["workerGroupSpecs"]]
    assert settings.gpu is not None
    assert settings.gpu.key in groups
    assert (settings.address, settings.probe) == ("auto", "measure")
    assert settings.node_wait_seconds >= 300  # a node has to be started first


def test_serve_reads_the_clusters_storage_and_knows_its_head() -> None:
    (deployment,) = of_kind("Deployment")
    (container,) = containers(deployment)
    program, name, *arguments = container["command"]
    assert (program, name) == ("autofit", "serve")
    options = autofit.commands[name].make_context(name, arguments).params
    assert (options["host"], options["port"]) == ("0.0.0.0", PORT_OF_SERVE)
    assert options["address"] == f"http://{cluster()['metadata']['name']}-head-svc:8265"
    assert {port["containerPort"] for port in container["ports"]} == {PORT_OF_SERVE}


def test_a_service_finds_the_pods_of_its_deployment() -> None:
    (deployment,) = of_kind("Deployment")
    (service,) = of_kind("Service")
    (template,) = pod_templates(deployment)
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    named = {port["name"] for container in containers(deployment) for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
    (container,) = containers(deployment)
    probes = [container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")]
    assert set(probes) <= named


def test_what_is_monitored_is_there_under_the_names_of_the_scrape_jobs() -> None:
    (service,), (deployment,) = of_kind("Service"), of_kind("Deployment")
    (of_service,), (of_pods,) = of_kind("ServiceMonitor"), of_kind("PodMonitor")
    labels = of_service["spec"]["selector"]["matchLabels"]
    assert labels.items() <= service["metadata"]["labels"].items()
    assert {each["port"] for each in of_service["spec"]["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }
    assert of_pods["spec"]["selector"]["matchLabels"] == {"ray.io/cluster": cluster()["metadata"]["name"]}
    ports = {port["name"] for container in containers(cluster()) for port in container["ports"]}
    assert {each["port"] for each in of_pods["spec"]["podMetricsEndpoints"]} <= ports
    endpoints = [*of_service["spec"]["endpoints"], *of_pods["spec"]["podMetricsEndpoints"]]
    jobs = [
        rule["replacement"]
        for each in endpoints
        for rule in each["relabelings"]
        if rule["targetLabel"] == "job"
    ]
    assert jobs == ["autofit", "ray", "ray", "ray"]
    assert deployment["metadata"]["name"] == service["metadata"]["name"]


def test_secrets_are_referred_to_and_hold_placeholders() -> None:
    secrets = {secret["metadata"]["name"]: secret["stringData"] for secret in of_kind("Secret")}
    used = set()
    for manifest in all_manifests():
        for name, key in secret_references(manifest) if "spec" in manifest else ():
            assert name in secrets
            assert key is None or key in secrets[name]
            used.add(name)
    assert used == secrets.keys()
    for values in secrets.values():
        assert all("REPLACE-WITH-A" in value for value in values.values())


def test_no_secret_is_written_into_a_container() -> None:
    for manifest in all_manifests():
        for container in containers(manifest):
            for variable in container.get("env", []):
                secret = any(word in variable["name"] for word in ("TOKEN", "STORAGE", "PASSWORD"))
                assert not (secret and "value" in variable), variable
            assert "://autofit:" not in json.dumps(container)


def test_the_placeholder_of_the_storage_is_a_url_of_postgresql() -> None:
    from sqlalchemy.engine import make_url

    (secret,) = [each for each in of_kind("Secret") if each["metadata"]["name"] == "autofit-storage"]
    url = make_url(secret["stringData"]["AUTOFIT_STORAGE"])
    assert url.get_backend_name() == "postgresql"
    assert url.get_dialect().driver == "psycopg"


def test_no_container_runs_as_root() -> None:
    for manifest in all_manifests():
        for template in pod_templates(manifest):
            assert template["spec"]["securityContext"]["runAsNonRoot"] is True
            for container in template["spec"]["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert container["resources"]["limits"]["memory"]
