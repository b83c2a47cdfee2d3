"""Kubernetes manifests: read, held against the definitions of KubeRay, and their references followed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from tests.deploy.places import DEPLOY, ROOT, documents
from tests.marks import CRD_FOLDER_VARIABLE

Manifest = dict[str, Any]

MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))
CRD_FOLDER = Path(os.environ.get(CRD_FOLDER_VARIABLE) or ROOT.parent / "shared" / "kuberay")


def all_manifests() -> list[Manifest]:
    return [manifest for path in MANIFESTS for manifest in documents(path)]


def of_kind(kind: str) -> list[Manifest]:
    return [manifest for manifest in all_manifests() if manifest["kind"] == kind]


@functools.cache
def schema(kind: str, version: str) -> Any:
    """KubeRay's schema of a kind, in which a key that it does not name is an error."""
    (definition,) = documents(CRD_FOLDER / f"ray.io_{kind.lower()}s.yaml")
    for each in definition["spec"]["versions"]:
        if each["name"] == version:
            return strict(each["schema"]["openAPIV3Schema"])
    raise AssertionError(f"KubeRay defines no {kind} of {version}")


def strict(node: Any) -> Any:
    """A copy in which an object with properties allows no others, unless it says that it keeps them."""
    if isinstance(node, list):
        return [strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    copy = {key: strict(value) for key, value in node.items()}
    has_properties = isinstance(node.get("properties"), dict) and node.get("type") == "object"
    if has_properties and not node.get("x-kubernetes-preserve-unknown-fields"):
        copy.setdefault("additionalProperties", False)
    return copy


def problems(manifest: Manifest) -> list[str]:
    """What KubeRay's definitions have against a manifest."""
    _, _, version = manifest["apiVersion"].partition("/")
    definition = schema(manifest["kind"], version)
    definition["properties"]["metadata"] = {
        "type": "object"
    }  # Kubernetes' own, which a definition leaves open
    errors = jsonschema.Draft202012Validator(definition).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in errors]


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    """The templates of all pods that a manifest makes."""
    if isinstance(manifest, dict):
        for key, value in manifest.items():
            if key == "template":
                yield value
            yield from pod_templates(value)
    elif isinstance(manifest, list):
        for each in manifest:
            yield from pod_templates(each)


def containers(manifest: Manifest) -> list[Manifest]:
    return [each for template in pod_templates(manifest) for each in template["spec"]["containers"]]


def secret_references(manifest: Manifest) -> Iterator[tuple[str, str | None]]:
    """The secrets that a manifest needs, each with the key that is taken of it; None where all are."""
    for container in containers(manifest):
        for source in container.get("envFrom", []):
            yield source["secretRef"]["name"], None
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference and not reference.get("optional"):
                yield reference["name"], reference["key"]
    if name := manifest["spec"].get("authOptions", {}).get("secretName"):
        yield name, "auth_token"  # the key that KubeRay reads
