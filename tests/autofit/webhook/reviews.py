"""Admission reviews as an API server sends them, and locks that they are answered from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.locks.lock_file import Lock, LockedConfiguration, LockedPeak, write_lock

GIB = 1024**3


def peak(gpu: str, likely: float, high: float, *, torch: str = "2.13.0") -> LockedPeak:
    """Peak of so many GiB."""
    return LockedPeak(
        torch=torch,
        gpu=gpu,
        likely_bytes=int(likely * GIB),
        high_bytes=int(high * GIB),
        allocated_bytes=int(likely * GIB),
        parameters_bytes=GIB,
        activations_bytes=GIB,
    )


def lock_of(*configurations: LockedConfiguration) -> Lock:
    """Lock of some configurations."""
    return Lock(configurations={each.name: each for each in configurations})


def lock_in(path: Path, name: str, *peaks: LockedPeak, arguments: tuple[str, ...] = ()) -> Path:
    """Writes a lock of one configuration to a file."""
    write_lock(path, lock_of(LockedConfiguration(name=name, arguments=arguments, peaks=peaks)))
    return path


def template(
    name: str | None = None,
    *,
    limits: Mapping[str, Any] | None = None,
    selector: Mapping[str, str] | None = None,
    terms: list[dict[str, str | list[str]]] | None = None,
) -> dict[str, Any]:
    """Template of a pod.

    Args:
        name: value of the annotation `autofit.dev/check`.
        limits: resources of its container; one GPU by default.
        selector: labels that its node must have.
        terms: expressions, each the only one of a term of its node affinity.
    """
    spec: dict[str, Any] = {
        "containers": [{"name": "train", "resources": {"limits": limits or {"nvidia.com/gpu": 1}}}]
    }
    if selector:
        spec["nodeSelector"] = dict(selector)
    if terms:
        required = {"nodeSelectorTerms": [{"matchExpressions": [term]} for term in terms]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    made: dict[str, Any] = {"metadata": {}, "spec": spec}
    if name is not None:
        made["metadata"]["annotations"] = {"autofit.dev/check": name}
    return made


def review(kind: str, manifest: Mapping[str, Any], *, operation: str = "CREATE") -> dict[str, Any]:
    """Document that asks whether an object may be created."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": f"{kind.lower()}s"},
            "namespace": "team",
            "operation": operation,
            "userInfo": {"username": "ada"},
            "object": dict(manifest),
            "oldObject": None,
            "dryRun": False,
        },
    }


def pod_on(card: str, name: str = "gpt") -> bytes:
    """Review of a pod that needs a card."""
    made = template(name, selector={"nvidia.com/gpu.product": card})
    return json.dumps(review("Pod", made)).encode()
