"""Batches of texts that contain images or sounds, for models of transformers.

    input_ids        i i i i t t t t      a placeholder for each feature that the class makes of the image,
    pixel_values     one image a sample   then text
    labels           - - - - t t t t      for the text only

The layout of an image follows from the other arguments that the class takes:

    image_grid_thw             all patches of all images in one list, and rows and columns of each image
    image_sizes, pinpoints     tiles of an image, and its size
    spatial_shapes             patches of each image, and their rows and columns
    aspect_ratio_ids           tiles of an image, and their arrangement
    pixel_attention_mask       some images a sample
    else                       an image a sample
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.spec.errors import InapplicableError, UnsupportedError
from autofit_workers.spec.trace import SampleSize
from autofit_workers.workload.libraries.heads import sizes
from autofit_workers.workload.libraries.heads.features import rows_of
from autofit_workers.workload.libraries.heads.images import num_channels, pixels
from autofit_workers.workload.libraries.heads.sounds import encoder_of, heard
from autofit_workers.workload.libraries.heads.task import Batch, Batches, Head, takes
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.libraries.transformers_releases import text_config_of

_META = torch.device("meta")
_IGNORED = -100
_LEAST_TEXT = 256  # tokens of text beside an image that takes up most of a sample
_USUAL_GRID_SIDE = 448  # about the side in pixels of images that a class reads in any size
_OF_IMAGES, _OF_SOUNDS = ("image_token_id", "image_token_index"), ("audio_token_id", "audio_token_index")


def has_placeholder(config: Any) -> bool:
    """Whether a configuration has a field for the placeholder token of a part of an image."""
    return any(hasattr(config, name) for name in _OF_IMAGES)


def with_images() -> Callable[[Head], Batches]:
    """Function that makes batches of texts with an image in each."""
    return functools.partial(_batches, (_images,), "get_image_features", _OF_IMAGES)


def with_sounds() -> Callable[[Head], Batches]:
    """Function that makes batches of texts with a sound in each."""
    return functools.partial(_batches, (_sounds, _sounds_by_time), "get_audio_features", _OF_SOUNDS)


def described() -> Callable[[Head], Batches]:
    """Function that makes batches of images with captions as labels; the sample size is that of captions.

    The size is a number of tokens.
    """
    return lambda head: Batches(functools.partial(_described, head=head), sizes.of_targets(head.config))


def asked() -> Callable[[Head], Batches]:
    """Function that makes batches of images, questions and answers; sample size is the question's length."""
    return lambda head: Batches(functools.partial(_asked, head=head), sizes.of_texts(head.config))


def compared() -> Callable[[Head], Batches]:
    """Function that makes batches of texts and images as CLIP compares; sample size is a text's length."""

    def batches(head: Head) -> Batches:
        return Batches(functools.partial(_compared, head=head), sizes.of_texts(head.config))

    return batches


def _batches(
    every_way: tuple[Callable[..., Batch], ...], method: str, names: tuple[str, ...], head: Head
) -> Batches:
    """Batches of texts, each long enough for the tokens that stand for one image or sound in it.

    Args:
        every_way: functions that make images or sounds, each in another layout.
        method: name of the model class's method that computes their features.
        names: fields of the configuration that may hold the placeholder token for a part of an image or
            sound.
        head: model class with its configuration.
    """
    token = _placeholder(head, names)
    media, num_tokens = (every_way[0], 0) if token is None else _taken(every_way, method, head)
    text = sizes.of_texts(head.config)
    own = sizes.MOST_TOKENS if text.size is None else text.size
    size = SampleSize(
        size=max(own, -(-(num_tokens + _LEAST_TEXT) // text.multiple) * text.multiple),
        multiple=text.multiple,
        longest=text.longest,
    )
    make = functools.partial(_texts, head=head, media=media, token=token, num_tokens=num_tokens)
    return Batches(make, size)


def _taken(
    every_way: tuple[Callable[..., Batch], ...], method: str, head: Head
) -> tuple[Callable[..., Batch], int]:
    """First layout of images or sounds that a model class accepts, and its number of tokens for one of them.

    Args:
        every_way, method, head: see `_batches`.

    Raises:
        UnsupportedError: the class accepts none of the layouts.
    """
    refused = []
    for media in every_way:
        try:
            return media, rows_of(head, method, media(head, 1, _META))
        except UnsupportedError as error:
            refused.append(error)
    raise refused[0]


def _placeholder(head: Head, names: tuple[str, ...]) -> int | None:
    """Id of the placeholder token for a part of an image or a sound.

    Args:
        head: model class with its configuration.
        names: fields of the configuration that may hold the id.

    Returns:
        The id; None if the class takes images or sounds without placeholders in the text.

    Raises:
        UnsupportedError: the configuration has such a field, but no id in it.
    """
    if head.takes("cross_attention_mask"):
        return None
    said = [getattr(head.config, name) for name in names if hasattr(head.config, name)]
    token = next((each for each in said if each is not None), None)
    if said and token is None:
        raise UnsupportedError(
            f"a {head.wanted} needs a placeholder token for images or sound, and its configuration names "
            f"none: add {names[0]} to it"
        )
    return token


def _texts(
    batch_size: int,
    device: torch.device,
    *,
    head: Head,
    media: Callable[..., Batch],
    token: int | None,
    num_tokens: int,
    size: int,
) -> Batch:
    """Batch of texts of `size` tokens, with an image or a sound at placeholder tokens in each."""
    if size <= num_tokens:
        raise InapplicableError(
            f"an image or a sound takes {num_tokens} tokens of {head.wanted}, and a sample has {size}: give "
            "a longer --seq-len, or a smaller image with --input"
        )
    shape, vocabulary = (batch_size, size), text_config_of(head.config).vocab_size
    # Made on the CPU, as a collator does, because the class counts the placeholders.
    ids = torch.randint(vocabulary, shape)
    is_placeholder = torch.zeros(shape, dtype=torch.bool)
    if token is not None:
        ids[ids == token] = 0 if token else 1
        is_placeholder[:, :num_tokens] = True
        ids[is_placeholder] = token
    batch = {
        "input_ids": ids.to(device),
        "attention_mask": torch.ones(shape, dtype=torch.int64, device=device),
        "labels": ids.masked_fill(is_placeholder, _IGNORED).to(device),
    }
    for name in ("token_type_ids", "mm_token_type_ids"):
        if head.takes(name):
            batch[name] = is_placeholder.long().to(device)
    if head.takes("cross_attention_mask"):
        tiles = head.config.vision_config.max_num_tiles
        batch["cross_attention_mask"] = torch.ones(*shape, 1, tiles, dtype=torch.int64, device=device)
    return {**batch, **media(head, batch_size, device)}


# ── images ──────────────────────────────────────────────────────────────────────────────────────


def _images(head: Head, batch_size: int, device: torch.device) -> Batch:
    """Images of a batch, one for each sample, in the layout that the model class accepts."""
    config = head.config
    if head.takes("image_grid_thw"):
        return _patches_in_one_list(head, batch_size, device)
    if head.takes("spatial_shapes"):
        return _patches(head, batch_size, device)
    if head.takes("aspect_ratio_ids"):
        return _arranged_tiles(head, batch_size, device)
    if getattr(config, "image_grid_pinpoints", None) and head.takes("image_sizes"):
        return _tiles(head, batch_size, device)
    images = pixels(head, batch_size, device)
    if head.takes("pixel_attention_mask"):
        return {"pixel_values": images.unsqueeze(1)}
    batch: Batch = {"pixel_values": images}
    if head.takes("image_sizes") and _reads_any_size(sizes.vision_of(config)):
        batch["image_sizes"] = _of_each(batch_size, tuple(images.shape[-2:]), device)
    return batch


def _reads_any_size(vision: Any) -> bool:
    """Whether the class that reads images takes the size of each image."""
    transformers: Any = imported("transformers", vision.model_type)
    model_class = transformers.MODEL_MAPPING.get(type(vision), None)
    return model_class is not None and takes(model_class, "image_sizes")


def _of_each(batch_size: int, row: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Integer tensor that repeats `row` for each image of a batch."""
    return sizes.read_by_class(torch.tensor([row] * batch_size), device)


def _grid(head: Head, patch: int, merged: int) -> tuple[int, int]:
    """Numbers of rows and columns of an image's patches, both multiples of `merged`.

    Args:
        head: model class with its configuration, which gives the image's height and width.
        patch: side of a patch in pixels.
        merged: number of patches, along each side, that the model merges into one token.
    """
    vision, square = sizes.vision_of(head.config), patch * merged
    own = head.image_sides or getattr(vision, "image_size", None) or _USUAL_GRID_SIDE
    height, width = (own, own) if isinstance(own, int) else own
    return tuple(max(1, round(side / square)) * merged for side in (height, width))  # type: ignore[return-value]


def _patches_in_one_list(head: Head, batch_size: int, device: torch.device) -> Batch:
    """Images of a batch as one list of patches, with each image's numbers of rows and columns."""
    vision = sizes.vision_of(head.config)
    patch, merged = vision.patch_size, getattr(vision, "spatial_merge_size", 1)
    if not isinstance(patch, int) or not isinstance(merged, int):
        raise UnsupportedError(
            f"{head.wanted} reads patches that are not square, for which no batches are made: write a "
            "Workload with its own batches, and give path/file.py:name"
        )
    rows, columns = _grid(head, patch, merged)
    elements = num_channels(vision) * getattr(vision, "temporal_patch_size", 1) * patch**2
    return {
        "pixel_values": torch.randn(batch_size * rows * columns, elements, device=device),
        "image_grid_thw": _of_each(batch_size, (1, rows, columns), device),
    }


def _patches(head: Head, batch_size: int, device: torch.device) -> Batch:
    vision = sizes.vision_of(head.config)
    patch = vision.patch_size
    side = round(vision.num_patches**0.5)
    elements = num_channels(vision) * patch**2
    return {
        "pixel_values": torch.randn(batch_size, side**2, elements, device=device),
        "pixel_attention_mask": sizes.read_by_class(
            torch.ones(batch_size, side**2, dtype=torch.int64), device
        ),
        "spatial_shapes": _of_each(batch_size, (side, side), device),
    }


def _arranged_tiles(head: Head, batch_size: int, device: torch.device) -> Batch:
    """Images of the largest number of tiles, in the configuration's last aspect ratio."""
    vision = sizes.vision_of(head.config)
    tiles, side = vision.max_num_tiles, vision.image_size
    arrangement = len(vision.supported_aspect_ratios)
    shape = (batch_size, 1, tiles, num_channels(vision), side, side)
    return {
        "pixel_values": torch.randn(shape, device=device),
        "aspect_ratio_ids": sizes.read_by_class(torch.full((batch_size, 1), arrangement), device),
        "aspect_ratio_mask": sizes.read_by_class(torch.ones(batch_size, 1, tiles, dtype=torch.int64), device),
    }


def _tiles(head: Head, batch_size: int, device: torch.device) -> Batch:
    """Images cut into tiles of the size that the encoder reads, with one more tile for the whole image.

    Images have 2×2 tiles unless the user gives a size.
    """
    side = sizes.sides(head)[0] if head.image_sides is None else sizes.vision_of(head.config).image_size
    height, width = head.image_sides or (2 * side, 2 * side)
    rows, columns = -(-height // side), -(-width // side)
    shape = (batch_size, rows * columns + 1, num_channels(head.config), side, side)
    return {
        "pixel_values": torch.randn(shape, device=device),
        "image_sizes": _of_each(batch_size, (height, width), device),
    }


# ── sounds ──────────────────────────────────────────────────────────────────────────────────────


def _sounds(head: Head, batch_size: int, device: torch.device) -> Batch:
    """Sounds of a batch, one for each sample, with masks of all ones.

    Time is the last dimension; for spectrograms of encoders without `max_source_positions` dimension 1.
    """
    (name, sound), *_ = heard(head, batch_size, device).items()
    has_positions = getattr(encoder_of(head.config), "max_source_positions", None) is not None
    return _counted(head, name, sound, num_frames=sound.shape[-1 if has_positions or sound.dim() == 2 else 1])


def _sounds_by_time(head: Head, batch_size: int, device: torch.device) -> Batch:
    """Sounds of a batch, with the dimensions of frequency and time swapped against `_sounds`."""
    (name, sound), *_ = heard(head, batch_size, device).items()
    turned = sound.transpose(1, -1).contiguous()
    return _counted(head, name, turned, num_frames=max(turned.shape[1:]))


def _counted(head: Head, name: str, sound: torch.Tensor, *, num_frames: int) -> Batch:
    mask = torch.ones(sound.shape[0], num_frames, dtype=torch.int64)
    names = ("feature_attention_mask", "input_features_mask", "padding_mask")
    return {
        name: sound,
        **{each: sizes.read_by_class(mask, sound.device) for each in names if head.takes(each)},
    }


# ── images beside texts ─────────────────────────────────────────────────────────────────────────


def _described(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    vocabulary = sizes.decoder_of(head.config).vocab_size
    batch: Batch = {
        "pixel_values": pixels(head, batch_size, device),
        "labels": torch.randint(vocabulary, (batch_size, size), device=device),
    }
    if head.takes("input_ids"):
        batch["input_ids"] = torch.randint(vocabulary, (batch_size, size), device=device)
    return batch


def _asked(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    """Batch of images with questions; labels are an answer's tokens, or a score of each answer."""
    batch = _compared(batch_size, device, head=head, size=size)
    if head.takes("decoder_input_ids"):
        return {**batch, "labels": batch["input_ids"].clone()}
    return {**batch, "labels": torch.rand(batch_size, head.config.num_labels, device=device)}


def _compared(batch_size: int, device: torch.device, *, head: Head, size: int) -> Batch:
    texts = (batch_size, size)
    vocabulary = text_config_of(head.config).vocab_size
    batch = {
        "input_ids": torch.randint(vocabulary, texts, device=device),
        "attention_mask": torch.ones(texts, dtype=torch.int64, device=device),
    }
    if head.takes("spatial_shapes"):
        return {**batch, **_patches(head, batch_size, device)}
    return {**batch, "pixel_values": pixels(head, batch_size, device)}
