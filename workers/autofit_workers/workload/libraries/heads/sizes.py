"""Sizes of texts, sounds and images for a model, from its configuration."""

from __future__ import annotations

import math
from typing import Any

import torch

from autofit_workers.spec.trace import SampleSize
from autofit_workers.workload.libraries.heads.task import Head
from autofit_workers.workload.libraries.transformers_releases import text_config_of

MOST_TOKENS = 1024  # of a sample, unless --seq-len is given
TILE = 64  # attention kernels round lengths up to this; no other kernel of a step rounds them
HERTZ, SECONDS = 16_000, 10  # of a sound that a model reads as samples
FIRST_STAGE = 320  # samples for which the usual first layers make one frame
_USUAL_SIDE, _STRIDES = 224, 32
_LENGTHS = ("max_position_embeddings", "n_positions", "max_source_positions", "max_text_positions")
_TARGET_LENGTHS = ("max_target_positions", "max_position_embeddings", "n_positions")
_VISION = ("vision_config", "image_config", "vit_config", "encoder", "backbone_config")
# The first position of these model types is the one after the padding's.
_COUNT_FROM_PADDING = (
    "camembert",
    "data2vec-text",
    "ibert",
    "layoutlmv3",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)


def of_texts(config: Any) -> SampleSize:
    """Sample size for texts that a model reads: usual number of tokens, rounding multiple and maximum."""
    return _lengths(text_config_of(config), _LENGTHS)


def of_targets(config: Any) -> SampleSize:
    """Sample size for texts that a model writes about sounds or images: tokens, multiple and maximum."""
    return _lengths(decoder_of(config), _TARGET_LENGTHS)


def of_sounds() -> SampleSize:
    """Sample size for sounds: usual number of audio samples, with its rounding multiple."""
    return SampleSize(size=HERTZ * SECONDS, multiple=FIRST_STAGE)


def of_images(head: Head) -> SampleSize:
    """Sample size for images: side in pixels, None if not square, and multiple of strides and patches."""
    height, width = sides(head)
    patch = getattr(head.config, "patch_size", 1)
    multiple = math.lcm(_STRIDES, patch) if isinstance(patch, int) else _STRIDES
    return SampleSize(size=height if height == width else None, multiple=multiple)


def decoder_of(config: Any) -> Any:
    """Configuration of the part of a model that writes text."""
    return getattr(config, "decoder", None) or text_config_of(config, decoder=True)


def vision_of(config: Any) -> Any:
    """Configuration of a model's part that reads images; the whole configuration if there is none."""
    parts = (getattr(config, name, None) for name in _VISION)
    return next((part for part in parts if part is not None and not isinstance(part, str)), config)


def sides(head: Head) -> tuple[int, int]:
    """Height and width of images, from the user, else from the configuration, else the usual ones."""
    if head.image_sides is not None:
        return head.image_sides
    own = (getattr(part, "image_size", None) for part in (head.config, vision_of(head.config)))
    side: Any = next((each for each in own if each), _USUAL_SIDE)
    if isinstance(side, dict):
        return side["height"], side["width"]
    return (side, side) if isinstance(side, int) else (side[0], side[-1])


def read_by_class(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Moves integers to a device; for `meta` they stay on the host, as classes read their values."""
    return values if device.type == "meta" else values.to(device)


def _lengths(config: Any, names: tuple[str, ...]) -> SampleSize:
    lengths: list[Any] = [getattr(config, name, None) for name in names]
    longest = min((length for length in lengths if isinstance(length, int) and length > 0), default=None)
    if longest is not None and config.model_type in _COUNT_FROM_PADDING:
        longest -= (getattr(config, "pad_token_id", None) or 0) + 1
    own = MOST_TOKENS if longest is None else min(MOST_TOKENS, longest)
    return SampleSize(size=own, multiple=TILE, longest=longest)
