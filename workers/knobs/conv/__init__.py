"""The convolution algorithms: one description per policy, in the order they are offered."""

from __future__ import annotations

from workers.knobs.conv import cudnn, cudnn_benchmark, cudnn_deterministic, native
from workers.knobs.conv.policy import ConvPolicy

POLICIES: dict[str, ConvPolicy] = {
    policy.name: policy
    for policy in (cudnn.POLICY, cudnn_benchmark.POLICY, cudnn_deterministic.POLICY, native.POLICY)
}

__all__ = ["POLICIES", "ConvPolicy", "applicable"]


def applicable(device_kind: str) -> tuple[str, ...]:
    """The names of the policies that mean something on a device of this kind (`cuda`, `cpu`)."""
    return tuple(policy.name for policy in POLICIES.values() if device_kind in policy.device_kinds)
