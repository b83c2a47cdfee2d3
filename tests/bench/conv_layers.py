"""Single convolutions as workloads: `conv_layers.py:layer_17` is the eighteenth of the grid."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import nn

from autofit_workers.workload.workload import Workload

NUM_LAYERS = 66
_KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
# Of the layers of common networks: channels by how large the image is.
_SIDES = {1: (256, 1024, 4000), 2: (14, 28, 56, 112), 3: (6, 10, 16)}
_CHANNELS = {1: (16, 64, 128), 2: (8, 32, 64, 128), 3: (4, 8, 16)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the grid."""

    num_dimensions: int
    channels: int
    outputs: int
    side: int
    filter_size: int
    stride: int
    padding: int
    dilation: int
    groups: int

    def __str__(self) -> str:
        text = (
            f"{self.num_dimensions}-D {self.channels}→{self.outputs} {self.side} filter {self.filter_size} "
            f"/{self.stride} +{self.padding}"
        )
        return text + f" ×{self.dilation}" * (self.dilation > 1) + f" g{self.groups}" * (self.groups > 1)


def grid() -> list[Layer]:
    """The layers, always the same: most of two dimensions, a quarter by filters of one point."""
    draw = random.Random(0)
    layers = []
    for number in range(NUM_LAYERS):
        num_dimensions = (1, 2, 2, 2, 2, 3)[number % 6]
        channels, outputs = (draw.choice(_CHANNELS[num_dimensions]) for _ in range(2))
        filter_size = 1 if number % 4 == 0 else draw.choice((3, 3, 5, 7) if num_dimensions < 3 else (3, 3, 5))
        layers.append(
            Layer(
                num_dimensions=num_dimensions,
                channels=channels,
                outputs=outputs,
                side=draw.choice(_SIDES[num_dimensions]),
                filter_size=filter_size,
                stride=draw.choice((1, 1, 2)),
                padding=draw.choice((0, filter_size // 2)),
                dilation=draw.choice((1, 1, 1, 2)) if filter_size < 5 else 1,
                groups=draw.choice((1, 1, 1, 4)),
            )
        )
    return layers


def __getattr__(name: str) -> Workload:
    prefix, _, number = name.rpartition("_")
    if prefix != "layer":
        raise AttributeError(name)
    return _workload(grid()[int(number)])


def _workload(layer: Layer) -> Workload:
    def build_model() -> nn.Module:
        return _KINDS[layer.num_dimensions](
            layer.channels,
            layer.outputs,
            layer.filter_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
        )

    def make_batch(batch_size: int, device: torch.device) -> torch.Tensor:
        shape = (batch_size, layer.channels, *(layer.side,) * layer.num_dimensions)
        return torch.ones(shape, device=device, requires_grad=True)

    return Workload(
        build_model=build_model,
        make_batch=make_batch,
        # The gradient of a plain sum is one number that is seen as many, which every backend copies.
        loss=lambda model, batch: model(batch).square().sum(),
        optimizer="sgd",
    )
