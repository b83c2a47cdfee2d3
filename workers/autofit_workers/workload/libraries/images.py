"""Workloads that train image networks on random images and labels, with cross entropy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.workload import InvalidLossError, Workload

Images = tuple[Tensor, Tensor]
_STRIDES = 32  # product of the strides of all stages of usual networks


def image_workload(
    build: Callable[..., nn.Module],
    *,
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    dense_labels: bool = False,
) -> Workload:
    """Workload for an image network, with cross entropy and SGD with momentum as in the libraries' scripts.

    Args:
        build: makes the network, which maps N×C×H×W to logits; it may take the keyword `size`, the side of
            the images, if that is not the input shape's.
        input_shape: C×H×W.
        num_classes: number of classes; 0 for a network without a head, trained on the mean of its output.
        dense_labels: whether every pixel of the image has a label.
    """
    return Workload(
        build_model=build,
        make_batch=functools.partial(
            _batch, input_shape=input_shape, num_classes=num_classes, dense_labels=dense_labels, size=None
        ),
        loss=_mean if num_classes == 0 else _cross_entropy,
        optimizer="sgd-momentum",
        name=name,
        size_multiple=_STRIDES,
    )


def _batch(
    batch_size: int,
    device: torch.device,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    dense_labels: bool,
    size: int | None,
) -> Images:
    """Batch of random images with random labels, one for each image or for each pixel."""
    sides = input_shape[1:] if size is None else (size,) * len(input_shape[1:])
    images = torch.randn(batch_size, input_shape[0], *sides, device=device)
    shape = (batch_size, *sides) if dense_labels else (batch_size,)
    return images, torch.randint(max(num_classes, 1), shape, device=device)


def _cross_entropy(model: nn.Module, batch: Images) -> Tensor:
    """Cross entropy summed over all outputs, as some networks have auxiliary heads in training."""
    images, labels = batch
    losses = [functional.cross_entropy(logits, labels) for logits in _outputs(model(images))]
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def _mean(model: nn.Module, batch: Images) -> Tensor:
    return _outputs(model(batch[0]))[0].mean()


def _outputs(output: Any) -> list[Tensor]:
    """Tensors in a network's output, which is a tensor, a (named) tuple or a mapping.

    Raises:
        InvalidLossError: the output has no tensor.
    """
    values = output.values() if isinstance(output, Mapping) else output
    found = [output] if isinstance(output, Tensor) else [v for v in values if isinstance(v, Tensor)]
    if not found:
        raise InvalidLossError(
            f"the network returns {type(output).__name__} without a tensor: write a Workload with your loss"
        )
    return found
