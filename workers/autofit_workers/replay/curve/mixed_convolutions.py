"""Workspaces of a step's convolutions if every layer may have an algorithm of its own.

A layer is a convolution with its three passes; layers of the same shapes get the same algorithm.
Only one workspace is alive at a time, so the algorithm of each layer can be chosen by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofit_workers.replay.spans import Workspace
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms.mixed import CANDIDATES
from autofit_workers.spec.work import Convolution, ConvPass

# Returns the workspace of each call of a step under the convolution algorithm of a name.
Demands = Callable[[str], Sequence[Workspace]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Convolution algorithm that a layer may use, with the workspaces of the layer's calls.

    Attributes:
        algorithm: name of the algorithm.
        spans: workspace of each of the layer's calls (forward, and the two gradients in backward).
    """

    algorithm: str
    spans: Mapping[Convolution, Workspace]

    @property
    def likely_bytes(self) -> int:
        """Likely workspace in bytes of that pass of the layer, forward or backward, which takes most."""
        return max(span.likely_bytes for span in self.spans.values())


def layer_of(call: Convolution) -> Convolution:
    """Forward pass of a convolution call, which serves as the key of its layer for all three passes."""
    return dataclasses.replace(call, conv_pass=ConvPass.FPROP)


def candidates(device_kind: str) -> tuple[str, ...]:
    """Names of the algorithms from which the algorithm `mixed` chooses for each layer, the default first.

    Args:
        device_kind: `cuda` or `cpu`.
    """
    return conv.defaults(device_kind)[0], *CANDIDATES


def options(
    calls: Sequence[object], demands: Demands, names: Sequence[str]
) -> dict[Convolution, list[Candidate]]:
    """Algorithms among `names` that can compute each convolution layer, with their workspaces.

    Args:
        calls: calls of a step with workspace or scratch memory; only convolutions have candidates.
        demands: returns the workspace of each of `calls` under the algorithm of a name.
        names: names of the algorithms.

    Returns:
        The algorithms by layer; the key of a layer is its forward pass.
    """
    passes: dict[Convolution, list[int]] = {}
    for number, call in enumerate(calls):
        if isinstance(call, Convolution):
            passes.setdefault(layer_of(call), []).append(number)
    found: dict[Convolution, list[Candidate]] = {layer: [] for layer in passes}
    for name in names:
        algorithm = conv.find(name)
        spans = demands(name)
        for layer, numbers in passes.items():
            if not isinstance(algorithm, conv.Rewrite) or algorithm.leaves(layer) is None:
                by_call = {call: spans[n] for n in numbers if isinstance(call := calls[n], Convolution)}
                found[layer].append(Candidate(name, by_call))
    return found


def smallest(choices: Sequence[Candidate]) -> Candidate:
    """Candidate with the smallest likely workspace; where no memory budget is known, a layer uses it."""
    return min(choices, key=lambda option: option.likely_bytes)


def least(calls: Sequence[object], demands: Demands, device_kind: str) -> tuple[Workspace, ...]:
    """Workspace of each call if every layer uses its algorithm with the smallest likely workspace.

    Args:
        calls: calls of a step with workspace or scratch memory; those that are no convolutions keep their
            own.
        demands: returns the workspace of each of `calls` under the algorithm of a name.
        device_kind: `cuda` or `cpu`.
    """
    by_default = demands(conv.defaults(device_kind)[0])
    chosen: dict[Convolution, Workspace] = {}
    for choices in options(calls, demands, candidates(device_kind)).values():
        chosen |= smallest(choices).spans
    return tuple(
        chosen[call] if isinstance(call, Convolution) else span
        for call, span in zip(calls, by_default, strict=True)
    )
