"""Batches of images with labelled objects, for models of transformers.

labels                      for each image: class_labels (n), boxes (n × 4), and masks (n × H × W)
mask_labels, class_labels   for each image: masks (n × H × W) of its objects, and their classes
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.workload.libraries.heads import sizes
from autofit_workers.workload.libraries.heads.images import pixels
from autofit_workers.workload.libraries.heads.task import Batch, Batches, Head
from autofit_workers.workload.libraries.importing import imported

# Objects of an image: COCO has 7.3 on average (Lin et al. 2014, section 5).
NUM_OBJECTS = 8
_USUAL_SIDE = 640
_WIDER = 4 / 3  # longer over shorter side of most photographs


def detected() -> Callable[[Head], Batches]:
    """Function that makes batches of images with boxes around objects, for detection."""
    return functools.partial(_batches, functools.partial(_detected, with_masks=False))


def cut_out() -> Callable[[Head], Batches]:
    """Function that makes batches of images with boxes around objects, and a mask of each object."""
    return functools.partial(_batches, functools.partial(_detected, with_masks=True))


def outlined() -> Callable[[Head], Batches]:
    """Function that makes batches of images with masks of their objects, for segmentation."""
    return functools.partial(_batches, _outlined)


def _batches(make: Callable[..., Batch], head: Head) -> Batches:
    """Batches of images, with sides from the user, the configuration or the image processor."""
    if head.image_sides is None and getattr(head.config, "image_size", None) is None:
        sides, whole = _prepared_sides(head.config.model_type), _window(sizes.vision_of(head.config))
        height, width = (round(side / whole) * whole for side in sides)
        head = dataclasses.replace(head, image_sides=(height, width))
    return Batches(functools.partial(make, head=head), sizes.of_images(head), is_of_images=True)


def _window(backbone: Any) -> int:
    """Pixels that image sides must be a multiple of, for attention in windows of patches; else 1."""
    patch, windows = getattr(backbone, "patch_size", 1), getattr(backbone, "num_windows", None)
    if windows is None or not isinstance(patch, int):
        return 1
    return patch * int(getattr(backbone, "num_windows_side", windows))


def _prepared_sides(model_type: str) -> tuple[int, int]:
    """Default height and width of the image processor of a model type."""
    names = imported(
        "transformers.models.auto.image_processing_auto", model_type
    ).IMAGE_PROCESSOR_MAPPING_NAMES
    named: Any = names.get(model_type, ())
    candidates = named.values() if isinstance(named, dict) else (named,) if isinstance(named, str) else named
    transformers: Any = imported("transformers", model_type)
    for name in filter(None, candidates):
        size = getattr(getattr(transformers, name), "size", None) or {}
        if "height" in size:
            return size["height"], size["width"]
        if shortest := size.get("shortest_edge"):
            return shortest, min(round(shortest * _WIDER), size.get("longest_edge") or shortest)
    return _USUAL_SIDE, _USUAL_SIDE


def _detected(
    batch_size: int, device: torch.device, *, head: Head, size: int | None, with_masks: bool
) -> Batch:
    """Batch of images with random boxes, classes and, if asked for, masks of objects."""
    images = pixels(head, batch_size, device, size)

    def objects() -> dict[str, torch.Tensor]:
        found = {
            "class_labels": torch.randint(head.config.num_labels, (NUM_OBJECTS,), device=device),
            # Centres and sides as shares of the image's sides.
            "boxes": torch.rand(NUM_OBJECTS, 4, device=device) / 2 + 0.25,
        }
        if with_masks:
            found["masks"] = torch.ones(NUM_OBJECTS, *images.shape[-2:], device=device)
        return found

    return {"pixel_values": images, "labels": [objects() for _ in range(batch_size)]}


def _outlined(batch_size: int, device: torch.device, *, head: Head, size: int | None) -> Batch:
    """Batch of images with masks and classes of objects."""
    config, images = head.config, pixels(head, batch_size, device, size)
    batch: Batch = {
        "pixel_values": images,
        "mask_labels": [
            torch.ones(NUM_OBJECTS, *images.shape[-2:], device=device) for _ in range(batch_size)
        ],
        "class_labels": [
            torch.randint(config.num_labels, (NUM_OBJECTS,), device=device) for _ in range(batch_size)
        ],
    }
    if head.takes("task_inputs"):  # the task in words, and the objects on the image
        words = (batch_size, config.task_seq_len)
        num_texts = config.num_queries - config.text_encoder_n_ctx
        texts = (batch_size, num_texts, config.text_encoder_context_length)
        vocabulary = config.text_encoder_vocab_size
        batch["task_inputs"] = torch.randint(vocabulary, words, device=device)
        batch["text_inputs"] = torch.randint(vocabulary, texts, device=device)
    return batch
