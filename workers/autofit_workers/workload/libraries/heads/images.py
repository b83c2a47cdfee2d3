"""Batches of random images for models of transformers, with the labels of each task."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.workload.libraries.heads import sizes
from autofit_workers.workload.libraries.heads.task import Batch, Batches, Head
from autofit_workers.workload.libraries.heads.texts import classes_of


def classified() -> Callable[[Head], Batches]:
    """Function that makes batches of images, with one class label for each image."""
    return functools.partial(_batches, _classified)


def segmented() -> Callable[[Head], Batches]:
    """Function that makes batches of images, with a class label for each pixel."""
    return functools.partial(_batches, _segmented)


def measured() -> Callable[[Head], Batches]:
    """Function that makes batches of images, with a number such as the depth for each pixel."""
    return functools.partial(_batches, _measured)


def masked() -> Callable[[Head], Batches]:
    """Function that makes batches of images with masked patches, for masked image modelling."""
    return functools.partial(_batches, _masked)


def filmed() -> Callable[[Head], Batches]:
    """Function that makes batches of videos, with one class label for each or with masked patches."""
    return functools.partial(_batches, _filmed)


def pixels(head: Head, batch_size: int, device: torch.device, size: int | None = None) -> torch.Tensor:
    """Batch of random images, `size` pixels high and wide, or of the head's own height and width."""
    height, width = (size, size) if size else sizes.sides(head)
    return torch.randn(batch_size, num_channels(head.config), height, width, device=device)


def num_channels(config: Any) -> int:
    """Number of channels of a configuration's images; 3 if the configuration has no such field."""
    names = ("num_channels", "in_channels", "in_chans")
    parts = (config, sizes.vision_of(config))
    named: list[Any] = [getattr(part, name, None) for part in parts for name in names]
    return next((each for each in named if isinstance(each, int)), 3)


def _batches(make: Callable[..., Batch], head: Head) -> Batches:
    return Batches(functools.partial(make, head=head), sizes.of_images(head), is_of_images=True)


def _classified(batch_size: int, device: torch.device, *, head: Head, size: int | None) -> Batch:
    images = pixels(head, batch_size, device, size)
    return {"pixel_values": images, "labels": classes_of(head.config, (batch_size,), device)}


def _segmented(batch_size: int, device: torch.device, *, head: Head, size: int | None) -> Batch:
    images = pixels(head, batch_size, device, size)
    labels = torch.randint(head.config.num_labels, (batch_size, *images.shape[-2:]), device=device)
    return {"pixel_values": images, "labels": labels}


def _measured(batch_size: int, device: torch.device, *, head: Head, size: int | None) -> Batch:
    images = pixels(head, batch_size, device, size)
    return {"pixel_values": images, "labels": torch.rand(batch_size, *images.shape[-2:], device=device)}


def _masked(batch_size: int, device: torch.device, *, head: Head, size: int | None) -> Batch:
    """Batch of images with every other patch masked, unless the class masks patches itself."""
    images = pixels(head, batch_size, device, size)
    if not head.takes("bool_masked_pos"):
        return {"pixel_values": images}
    num_patches = images.shape[-2] * images.shape[-1] // head.config.patch_size**2
    return {"pixel_values": images, "bool_masked_pos": _every_other(batch_size, num_patches, device)}


def _filmed(batch_size: int, device: torch.device, *, head: Head, size: int | None) -> Batch:
    config = head.config
    num_frames: int = getattr(config, "num_frames", None) or config.frames_per_clip
    frames = pixels(head, batch_size * num_frames, device, size)
    videos = {head.main_input: frames.view(batch_size, num_frames, *frames.shape[1:])}
    if not head.takes("bool_masked_pos"):
        return {**videos, "labels": classes_of(config, (batch_size,), device)}
    num_patches = num_frames // config.tubelet_size * frames.shape[-2] * frames.shape[-1]
    return {
        **videos,
        "bool_masked_pos": _every_other(batch_size, num_patches // config.patch_size**2, device),
    }


def _every_other(batch_size: int, num_patches: int, device: torch.device) -> torch.Tensor:
    hidden = torch.arange(num_patches) % 2 == 0
    return hidden.repeat(batch_size, 1).to(device)  # known on the host, as a collator makes it
