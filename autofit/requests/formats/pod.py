"""Pod of Kubernetes, which Kubernetes' own scheduler and KAI's read."""

from __future__ import annotations

from typing import Any

LABEL = "nvidia.com/gpu"  # whole GPUs, and the first part of labels on nodes that have some
_NAME, _IMAGE = "train", "your-image"


def pod(
    *,
    limits: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    scheduler: str = "",
    affinity: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Pod with one container, whose name and image are the user's to fill in.

    Args:
        limits: resources of the container, as quantities, which are texts in the published schema.
        scheduler: name of the scheduler; empty for Kubernetes' own.
        affinity: expressions on a node's labels, all of which have to be true.
    """
    metadata: dict[str, Any] = {"name": _NAME}
    metadata |= {"labels": labels} if labels else {}
    metadata |= {"annotations": annotations} if annotations else {}
    spec: dict[str, Any] = {"restartPolicy": "Never"}
    spec |= {"schedulerName": scheduler} if scheduler else {}
    if affinity:
        terms = {"nodeSelectorTerms": [{"matchExpressions": affinity}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    container: dict[str, Any] = {"name": _NAME, "image": _IMAGE}
    container |= {"resources": {"limits": limits}} if limits else {}
    spec["containers"] = [container]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def newer_than(major: int) -> dict[str, Any]:
    """Expression on a node's labels: its cards have at least this major compute capability."""
    return {"key": f"{LABEL}.compute.major", "operator": "Gt", "values": [str(major - 1)]}


def of_each_node(num_nodes: int) -> tuple[str, ...]:
    """Note on a request for several nodes; empty for one."""
    return () if num_nodes == 1 else (f"this is the pod of each of the {num_nodes} nodes",)
