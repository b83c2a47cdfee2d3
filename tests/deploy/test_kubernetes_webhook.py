"""The manifests of the webhook, held against the command that they start and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autofit.cli.commands.serve import serve
from autofit.webhook.answering import HEALTH_PATH, PATH
from autofit.webhook.pods import ANNOTATION, pods_of
from tests.deploy.kubernetes import Manifest
from tests.deploy.places import DEPLOY, documents

MANIFESTS: list[Manifest] = documents(DEPLOY / "kubernetes" / "webhook.yaml")


def of_kind(kind: str) -> Manifest:
    [found] = [manifest for manifest in MANIFESTS if manifest["kind"] == kind]
    return found


@pytest.fixture
def container() -> dict[str, Any]:
    [found] = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def options(container: dict[str, Any]) -> dict[str, Any]:
    """Options of the container's command, as `autofit serve` reads them."""
    program, command, *arguments = container["command"]
    assert (program, command) == ("autofit", "serve")
    return serve.make_context("serve", arguments, resilient_parsing=False).params


def ports(container: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_the_command_listens_where_the_service_and_the_probes_ask(
    container: dict[str, Any], options: dict[str, Any]
) -> None:
    assert ports(container) == {"webhook": options["webhook"], "metrics": options["port"]}
    service = {port["name"]: port["targetPort"] for port in of_kind("Service")["spec"]["ports"]}
    assert set(service.values()) == set(ports(container))
    ready = container["readinessProbe"]["httpGet"]
    assert (ready["path"], ready["port"], ready["scheme"]) == (HEALTH_PATH, "webhook", "HTTPS")
    [endpoint] = of_kind("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] in service


def test_the_command_reads_what_is_mounted(container: dict[str, Any], options: dict[str, Any]) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {
        volume["name"]: volume for volume in of_kind("Deployment")["spec"]["template"]["spec"]["volumes"]
    }
    [locks] = options["locks"]
    assert "configMap" in volumes[mounts[str(locks)]]
    assert options["tls_cert"].parent == options["tls_key"].parent
    secret = volumes[mounts[str(options["tls_cert"].parent)]]["secret"]
    assert secret["secretName"] == of_kind("Certificate")["spec"]["secretName"]
    assert (options["tls_cert"].name, options["tls_key"].name) == ("tls.crt", "tls.key")  # of a TLS secret
    [variable] = container["env"]
    assert any(variable["value"].startswith(path) for path in mounts)  # the root is read-only


def test_the_certificate_is_for_the_name_by_which_the_api_server_asks() -> None:
    service = of_kind("Service")["metadata"]["name"]
    configuration = of_kind("ValidatingWebhookConfiguration")
    [name] = of_kind("Certificate")["spec"]["dnsNames"]
    for webhook in configuration["webhooks"]:
        asked = webhook["clientConfig"]["service"]
        assert (asked["name"], asked["path"]) == (service, PATH)
        assert name == f"{asked['name']}.{asked['namespace']}.svc"
        assert asked["port"] in [port["port"] for port in of_kind("Service")["spec"]["ports"]]
    certificate = f"default/{of_kind('Certificate')['metadata']['name']}"
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == certificate
    assert of_kind("Certificate")["spec"]["issuerRef"]["name"] == of_kind("Issuer")["metadata"]["name"]


def resources() -> Iterator[str]:
    for webhook in of_kind("ValidatingWebhookConfiguration")["webhooks"]:
        for rule in webhook["rules"]:
            assert rule["operations"] == ["CREATE"]
            yield from rule["resources"]


def test_every_kind_that_is_sent_is_understood() -> None:
    kinds = {
        "pods": "Pod",
        "jobs": "Job",
        "cronjobs": "CronJob",
        "jobsets": "JobSet",
        "pytorchjobs": "PyTorchJob",
        "rayjobs": "RayJob",
        "rayclusters": "RayCluster",
        "rayservices": "RayService",
        "workloads": "Workload",
    }
    assert {name: pods_of(kinds[name], {}) for name in resources()}.keys() == kinds.keys()
    assert all(pods_of(kinds[name], {}) is not None for name in resources())


def test_pods_are_sent_by_the_annotation_that_is_read() -> None:
    [first, _] = of_kind("ValidatingWebhookConfiguration")["webhooks"]
    [condition] = first["matchConditions"]
    assert f'"{ANNOTATION}" in object.metadata.annotations' in condition["expression"]
