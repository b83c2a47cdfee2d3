"""Quantizes the weights of linear layers with torchao, one layer after the other, on the layers' device.

`torchao.quantize_` replaces a weight by a tensor of its own class, on the weight's device. Until then, a
layer that `mark` marked holds the configuration to quantize it by.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from autofit_workers.workload.libraries.importing import imported

_CONFIG = "_autofit_torchao_config"


def config_of(path: str, base: str) -> Any:
    """Instance of torchao's configuration class at `path`, with default values.

    Raises:
        MissingLibraryError: torchao is not installed here.
    """
    module, _, name = path.rpartition(".")
    return getattr(imported(module, f"base {base}", "a quantization"), name)()


def mark(layers: Iterable[nn.Module], config: Any) -> None:
    """Freezes layers and marks them with the configuration to quantize them by."""
    for layer in layers:
        vars(layer)[_CONFIG] = config
        layer.requires_grad_(False)


def quantize(layer: nn.Module) -> None:
    """Quantizes a layer that `mark` marked, on the layer's device; leaves other layers as they are."""
    config = vars(layer).pop(_CONFIG, None)
    if config is not None:
        torchao: Any = importlib.import_module("torchao")
        torchao.quantize_(layer, config)


def quantize_on(model: nn.Module, device: torch.device | None = None) -> None:
    """Quantizes, one after the other, the layers that `mark` has given a torchao configuration.

    Args:
        model: model whose layers are quantized.
        device: device to which each of these layers is moved first; None leaves it where it is.
    """
    for layer in [each for each in model.modules() if _CONFIG in vars(each)]:
        quantize(layer if device is None else layer.to(device))
