"""What the convolution algorithms are to a model's layers, for `autofit conv-algos --model`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

from workers.knobs import conv
from workers.knobs.conv import Rewrite
from workers.predict.workspace import Workspace
from workers.protocol import Device
from workers.trace import Convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWorkspace:
    """What one algorithm takes for a layer beside its output, in the pass that takes most.

    Attributes:
        low_bytes, likely_bytes, high_bytes: they differ where it is not known which plan is taken.
    """

    low_bytes: int
    likely_bytes: int
    high_bytes: int

    @classmethod
    def of(cls, span: Workspace) -> LayerWorkspace:
        return cls(low_bytes=span.low_bytes, likely_bytes=span.likely_bytes, high_bytes=span.high_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvLayer:
    """Layers of one shape.

    Attributes:
        call: the convolution, forward.
        modules: those that call it.
        workspaces: by algorithm, of those that apply.
        reasons: by algorithm, why the others do not.
    """

    call: Convolution
    modules: tuple[str, ...]
    workspaces: dict[str, LayerWorkspace]
    reasons: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        call = dataclasses.asdict(self.call)
        del call["conv_pass"]
        return {**call, **{key: value for key, value in dataclasses.asdict(self).items() if key != "call"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvLayers:
    """The convolution layers of a model's step, and what each algorithm is to them.

    Attributes:
        device: what was assumed.
        names: the algorithms, as they are offered.
        layers: in the order in which they run first.
    """

    workload: str
    batch_size: int
    mode: str
    device: Device
    names: tuple[str, ...]
    layers: tuple[ConvLayer, ...]

    @property
    def num_layers(self) -> int:
        return sum(len(layer.modules) for layer in self.layers)

    def num_applicable(self, name: str) -> int:
        """The number of layers that an algorithm works out."""
        return sum(len(layer.modules) for layer in self.layers if name in layer.workspaces)

    def reasons(self, name: str) -> dict[str, int]:
        """Why an algorithm leaves layers to the backend, with the number of layers."""
        counts: Counter[str] = Counter()
        for layer in self.layers:
            if name in layer.reasons:
                counts[layer.reasons[name]] += len(layer.modules)
        return dict(counts)

    def to_dict(self) -> dict[str, Any]:
        """The content of a document, ready for `json`."""
        return {
            "workload": self.workload,
            "batch_size": self.batch_size,
            "mode": self.mode,
            "device": dataclasses.asdict(self.device),
            "num_layers": self.num_layers,
            "conv_algos": [
                {
                    **dataclasses.asdict(conv.find(name)),
                    "num_layers": self.num_applicable(name),
                    "reasons": self.reasons(name),
                }
                for name in self.names
            ],
            "layers": [layer.to_dict() for layer in self.layers],
        }


def why_not(name: str, call: Convolution) -> str | None:
    """Why an algorithm leaves a layer to the backend; None where it works it out."""
    algorithm = conv.find(name)
    return algorithm.leaves(call) if isinstance(algorithm, Rewrite) else None
