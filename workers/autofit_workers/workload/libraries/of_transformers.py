"""Models of Hugging Face's transformers, from a configuration, with random weights."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from autofit_workers.errors import UnsupportedError
from autofit_workers.protocol import WorkloadRef
from autofit_workers.trace import SampleSize
from autofit_workers.workload.libraries.importing import imported, unknown
from autofit_workers.workload.libraries.token_batches import (
    LENGTHS,
    Batch,
    tokens_with_labels,
    unpackable_tokens,
)
from autofit_workers.workload.workload import Workload

MOST_TOKENS = 1024  # of a sample, unless --seq-len says another number
_TILE = 64  # to which kernels of attention, and nothing else of a step, round lengths
_USUAL_SIDE, _STRIDES = 224, 32
_LENGTHS = ("max_position_embeddings", "n_positions", "max_source_positions")


def load(ref: WorkloadRef) -> Workload:
    """The training of a model on its own loss, with AdamW.

    The name is a model type of transformers (`gpt2`), a `config.json` or its folder, or a model of the
    hub whose configuration is in the local cache.

    Raises:
        UnknownNameError: there is no such configuration here.
        UnsupportedError: the model has no head that this knows a batch for.
        MissingLibraryError: transformers is not installed.
    """
    transformers: Any = imported("transformers", ref.target)
    config = configuration_of(ref)
    task = _task(transformers, config, ref.target)
    sizes = task.sizes(config)
    return Workload(
        build_model=functools.partial(task.build_model, task.auto_class, config),
        make_batch=functools.partial(task.make_batch, config=config, size=sizes.size),
        loss=_own_loss,
        optimizer="adamw",
        name=ref.name,
        size_multiple=sizes.multiple,
        max_size=sizes.longest,
    )


@dataclass(frozen=True)
class _Task:
    """What a model is trained for.

    Attributes:
        auto_class: of transformers, which makes the model with its head.
        build_model: from the class and the configuration, the model.
        make_batch: from batch size, device, configuration and size of a sample, what the model takes.
        sizes: from the configuration, the size of a sample, and which others there may be.
    """

    auto_class: str
    build_model: Callable[..., nn.Module]
    make_batch: Callable[..., Batch]
    sizes: Callable[[Any], SampleSize]

    @classmethod
    def of_texts(cls, auto_class: str, make_batch: Callable[..., Batch]) -> Self:
        return cls(auto_class, _build, make_batch, _lengths_of_texts)

    @classmethod
    def of_images(cls, auto_class: str) -> Self:
        return cls(auto_class, _build_for_images, _images, _sides_of_images)


def configuration_of(ref: WorkloadRef) -> Any:
    """The configuration that a reference names.

    Nothing is downloaded, and no code that a configuration names (`auto_map`) is imported.

    Raises:
        UnknownNameError: there is no such configuration here.
        UnsupportedError: it asks for a kernel of a hub.
        DeviceError: transformers is not installed.
    """
    transformers: Any = imported("transformers", ref.target)
    name = ref.target.partition(":")[2]
    types = transformers.CONFIG_MAPPING
    try:
        if name in types:  # a file's name is absolute (see `autofit_workers.workload.references`)
            return transformers.AutoConfig.for_model(name)
        stated, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=True)
        _refuse_kernels_of_hubs(ref.target, stated)
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise unknown(
            ref.target,
            name,
            types,
            otherwise="give a model type of transformers, a config.json, or a model of the hub whose "
            f"configuration is in the cache (hf download {name} config.json); nothing is downloaded here",
        ) from error


def _refuse_kernels_of_hubs(name: str, stated: Any) -> None:
    """Raises where a configuration, or a part of it, names an attention kernel that would be downloaded."""
    for key, value in stated.items() if isinstance(stated, dict) else ():
        if key.endswith("attn_implementation"):
            named = value.values() if isinstance(value, dict) else [value]
            for kernel in named:
                if isinstance(kernel, str) and "/" in kernel:
                    raise UnsupportedError(
                        f"{name} asks for the attention kernel {kernel} of a hub ({key}), and nothing is "
                        "downloaded here: leave it out, and choose a kernel with --attention"
                    )
        _refuse_kernels_of_hubs(name, value)


def _task(transformers: Any, config: Any, wanted: str) -> _Task:
    """By the heads that there are for the configuration, the usual one first."""

    def has(mapping: str) -> bool:
        return type(config) in getattr(transformers, mapping)

    if config.is_encoder_decoder and has("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"):
        return _Task.of_texts("AutoModelForSeq2SeqLM", unpackable_tokens)
    if has("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"):
        return _Task.of_images("AutoModelForImageClassification")
    if has("MODEL_FOR_MASKED_LM_MAPPING") and not getattr(config, "is_decoder", False):
        return _Task.of_texts("AutoModelForMaskedLM", unpackable_tokens)
    if has("MODEL_FOR_CAUSAL_LM_MAPPING"):
        return _Task.of_texts("AutoModelForCausalLM", tokens_with_labels)
    raise UnsupportedError(
        f"{wanted} is neither a language model nor a classifier of images: write a Workload with its own "
        "batches and its own loss, and give path/file.py:name"
    )


def _lengths_of_texts(config: Any) -> SampleSize:
    text = config.get_text_config()
    lengths: list[int | None] = [getattr(text, name, None) for name in _LENGTHS]
    longest = min((length for length in lengths if length), default=None)
    own = MOST_TOKENS if longest is None else min(MOST_TOKENS, longest)
    return SampleSize(size=own, multiple=_TILE, longest=longest)


def _sides_of_images(config: Any) -> SampleSize:
    """Sides halve as often as networks' stages, or are cut into patches."""
    side, patch = getattr(config, "image_size", _USUAL_SIDE), getattr(config, "patch_size", 1)
    multiple = math.lcm(_STRIDES, patch) if isinstance(patch, int) else _STRIDES
    return SampleSize(size=side if isinstance(side, int) else None, multiple=multiple)


def _images(batch_size: int, device: torch.device, *, config: Any, size: int | None) -> Batch:
    side: Any = size or getattr(config, "image_size", _USUAL_SIDE)
    sides = (side, side) if isinstance(side, int) else tuple(side)
    return {
        "pixel_values": torch.randn(batch_size, getattr(config, "num_channels", 3), *sides, device=device),
        "labels": torch.randint(config.num_labels, (batch_size,), device=device),
    }


def _build(auto_class: str, config: Any) -> nn.Module:
    import transformers

    config = copy.deepcopy(config)  # the model writes into it what it was made with
    if config.is_encoder_decoder:  # what the labels are shifted by, which a model type alone leaves open
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, 0)
    model: nn.Module = getattr(transformers, auto_class).from_config(config)
    for part in model.modules():  # of a training: a cache for generation would grow when blocks run again
        own: Any = getattr(part, "config", None)
        if getattr(own, "use_cache", False):
            own.use_cache = False
    return model


def _build_for_images(auto_class: str, config: Any, *, size: int | None = None) -> nn.Module:
    """The model, which may have a position for every patch of an image."""
    config = copy.deepcopy(config)
    if size is not None and hasattr(config, "image_size"):
        config.image_size = size
    return _build(auto_class, config)


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != LENGTHS}).loss
    return loss
