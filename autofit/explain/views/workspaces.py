"""What layers take beside their outputs while they run: the workspaces of convolutions, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.explain.profile import Profile
from autofit_workers.spec.work import ConvPass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWorkspaces:
    """The largest workspace of a layer in each pass; they follow each other, never two at a time.

    Attributes:
        module: path of the layer.
        pass_bytes: by pass, those that it ran.
    """

    module: str
    pass_bytes: dict[ConvPass, int]

    @property
    def largest_bytes(self) -> int:
        return max(self.pass_bytes.values(), default=0)


def layer_workspaces(profile: Profile) -> tuple[LayerWorkspaces, ...]:
    """The layers of a profile that convolve, those with the largest workspace first."""
    found: dict[str, dict[ConvPass, int]] = {}
    for allocation, num_bytes in zip(profile.trace.allocations, profile.requested_bytes, strict=True):
        if allocation.convolution is None:
            continue
        passes = found.setdefault(allocation.module, {})
        conv_pass = allocation.convolution.conv_pass
        passes[conv_pass] = max(num_bytes, passes.get(conv_pass, 0))
    layers = (LayerWorkspaces(module=module, pass_bytes=passes) for module, passes in found.items())
    return tuple(sorted(layers, key=lambda layer: -layer.largest_bytes))
