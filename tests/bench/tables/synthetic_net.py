"""Builds the networks of the synthetic table from the recipe and the layers that it lists."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from tests.bench.tables.synthetic_recipe import Recipe

Layers = tuple[tuple[str, int, int], ...]

GROWTH = 32  # channels that each layer of a dense block adds
LAYERS_PER_DENSE_BLOCK = 4
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
}


def build(recipe: Recipe, layers: Layers) -> nn.Module:
    """The network, whose layers have the sizes that the table lists.

    Args:
        recipe: how it was made.
        layers: of each layer its kind, its output's elements per sample, and its parameters.

    Raises:
        ValueError: the listed layers are not what the recipe makes.
    """
    convolutions = [(size, parameters) for kind, size, parameters in layers if kind == "conv2d"]
    if recipe.architecture == "dense":
        blocks, channels = _dense(recipe, convolutions)
    elif recipe.architecture == "residual":
        blocks, channels = _residual(recipe, convolutions)
    else:
        blocks, channels = _plain(recipe, convolutions)
    classifier = nn.Linear(channels, recipe.num_classes)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(1), classifier, nn.Softmax(dim=1))
    network = nn.Sequential(*blocks, *head)
    _check(network, layers)
    return network


def _check(network: nn.Module, layers: Layers) -> None:
    listed = [p for kind, _, p in layers if kind in ("conv2d", "batchnorm2d", "linear")]
    built = [
        sum(parameter.numel() for parameter in module.parameters())
        for module in network.modules()
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear))
    ]
    if layers and sorted(listed) != sorted(built):
        raise ValueError(f"{len(built)} layers were built where the table lists {len(listed)} or others")


def _plain(recipe: Recipe, convolutions: list[tuple[int, int]]) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    channels = recipe.input_channels
    for size, _ in convolutions:
        width = size // recipe.image_size**2
        blocks.append(_block(recipe, channels, width))
        channels = width
    return blocks, channels


def _residual(recipe: Recipe, convolutions: list[tuple[int, int]]) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    channels, side = recipe.input_channels, recipe.image_size
    remaining = iter(convolutions)
    for size, parameters in remaining:
        has_shortcut = _is_pointwise(size, parameters, channels, side)
        width = parameters // ((1 if has_shortcut else 9) * channels + 1)
        halves = size != width * side**2
        blocks.append(_Residual(recipe, channels, width, stride=2 if halves else 1, shortcut=has_shortcut))
        for _ in range(2 if has_shortcut else 1):  # the other convolutions of the block
            next(remaining, None)
        channels, side = width, -(-side // 2) if halves else side
    return blocks, channels


def _is_pointwise(size: int, parameters: int, channels: int, side: int) -> bool:
    """Whether a convolution of so many parameters is 1×1: its width then agrees with its output."""
    width, rest = divmod(parameters, channels + 1)
    return rest == 0 and size in (width * side**2, width * (-(-side // 2)) ** 2)


def _dense(recipe: Recipe, convolutions: list[tuple[int, int]]) -> tuple[list[nn.Module], int]:
    blocks: list[nn.Module] = []
    channels = recipe.input_channels
    remaining = [parameters for _, parameters in convolutions]
    while remaining:
        blocks.append(_Dense(recipe, channels))
        channels += LAYERS_PER_DENSE_BLOCK * GROWTH
        remaining = remaining[LAYERS_PER_DENSE_BLOCK:]
        if remaining and remaining[0] == channels // 2 * (channels + 1):
            blocks.append(_Transition(recipe, channels))
            channels //= 2
            remaining = remaining[1:]
    return blocks, channels


def _block(recipe: Recipe, channels: int, width: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        *_block_layers(recipe, nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2), width)
    )


def _block_layers(recipe: Recipe, convolution: nn.Conv2d, width: int) -> Iterator[nn.Module]:
    yield convolution
    if recipe.batch_norm:
        yield nn.BatchNorm2d(width)
    yield _ACTIVATIONS[recipe.activation]()
    if recipe.dropout_rate is not None:
        yield nn.Dropout(recipe.dropout_rate)


class _Residual(nn.Module):
    """Two layers beside a 1×1 convolution, or beside nothing where shapes agree."""

    def __init__(self, recipe: Recipe, channels: int, width: int, *, stride: int, shortcut: bool) -> None:
        super().__init__()
        self.first = _block(recipe, channels, width, stride=stride)
        self.second = _block(recipe, width, width)
        norm = nn.BatchNorm2d(width) if recipe.batch_norm else nn.Identity()
        pointwise = nn.Conv2d(channels, width, 1, stride)
        self.shortcut = nn.Sequential(pointwise, norm) if shortcut else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        beside = self.shortcut(x)
        x = self.first(x)
        x = self.second(x)
        return x + beside


class _Dense(nn.Module):
    """Layers that each see the outputs of all before them."""

    def __init__(self, recipe: Recipe, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _block(recipe, channels + number * GROWTH, GROWTH) for number in range(LAYERS_PER_DENSE_BLOCK)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            added = layer(torch.cat(features, 1))
            features.append(added)
        return torch.cat(features, 1)


class _Transition(nn.Module):
    """Halves the channels, then the sides; always with ReLU and without dropout."""

    def __init__(self, recipe: Recipe, channels: int) -> None:
        super().__init__()
        norm = [nn.BatchNorm2d(channels // 2)] if recipe.batch_norm else []
        self.convolution = nn.Sequential(nn.Conv2d(channels, channels // 2, 1), *norm, nn.ReLU())
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        if min(x.shape[2:]) > 1:
            x = self.pool(x)
        return x
