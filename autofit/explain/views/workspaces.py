"""Workspaces of a profile's convolutions, by layer and pass."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.explain.profile import Profile
from autofit_workers.spec.work import ConvPass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWorkspaces:
    """Workspace (scratch memory) of a convolution layer in each pass; passes never run at the same time.

    Attributes:
        module: path of the layer.
        pass_bytes: largest workspace by pass (forward, gradient of the input or of the weight), for the
            passes that the layer ran.
    """

    module: str
    pass_bytes: dict[ConvPass, int]

    @property
    def largest_bytes(self) -> int:
        return max(self.pass_bytes.values(), default=0)


def layer_workspaces(profile: Profile) -> tuple[LayerWorkspaces, ...]:
    """Workspaces of each convolution layer in a profile, the layer with the largest first.

    Empty if the profile has no convolutions.
    """
    found: dict[str, dict[ConvPass, int]] = {}
    for allocation, num_bytes in zip(profile.trace.allocations, profile.requested_bytes, strict=True):
        if allocation.convolution is None:
            continue
        passes = found.setdefault(allocation.module, {})
        conv_pass = allocation.convolution.conv_pass
        passes[conv_pass] = max(num_bytes, passes.get(conv_pass, 0))
    layers = (LayerWorkspaces(module=module, pass_bytes=passes) for module, passes in found.items())
    return tuple(sorted(layers, key=lambda layer: -layer.largest_bytes))
