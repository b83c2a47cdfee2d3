"""Models of Hugging Face's transformers, from a configuration, with random weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workers.errors import UnsupportedError
from workers.protocol import WorkloadRef
from workers.workload.libraries.importing import imported, unknown
from workers.workload.libraries.token_batches import LENGTHS, Batch, tokens_with_labels, unpackable_tokens
from workers.workload.workload import Workload

MOST_TOKENS = 1024  # of a sample, unless --seq-len says another number
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
    config = _configuration(transformers, ref)
    task = _task(transformers, config, ref.target)
    num_tokens = ref.sequence_length or _tokens(config)
    if ref.sequence_length is not None and task.make_batch is _images:
        raise UnsupportedError(f"{ref.target} takes images: leave out --seq-len")
    return Workload(
        build_model=functools.partial(_build, task.auto_class, config),
        make_batch=functools.partial(task.make_batch, config=config, num_tokens=num_tokens),
        loss=_own_loss,
        optimizer="adamw",
        name=ref.name,
    )


@dataclass(frozen=True)
class _Task:
    """What a model is trained for.

    Attributes:
        auto_class: of transformers, which makes the model with its head.
        make_batch: from batch size, device, configuration and tokens a sample, what the model is called with.
    """

    auto_class: str
    make_batch: Callable[..., Batch]


def _configuration(transformers: Any, ref: WorkloadRef) -> Any:
    name = ref.target.partition(":")[2]
    types = transformers.CONFIG_MAPPING
    try:
        if name in types:  # a file's name is absolute (see `workers.workload.references`)
            return transformers.AutoConfig.for_model(name)
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise unknown(
            ref.target,
            name,
            types,
            otherwise="give a model type of transformers, a config.json, or a model of the hub whose "
            f"configuration is in the cache (hf download {name} config.json); nothing is downloaded here",
        ) from error


def _task(transformers: Any, config: Any, wanted: str) -> _Task:
    """By the heads that there are for the configuration, the usual one first."""

    def has(mapping: str) -> bool:
        return type(config) in getattr(transformers, mapping)

    if config.is_encoder_decoder and has("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"):
        return _Task("AutoModelForSeq2SeqLM", unpackable_tokens)
    if has("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"):
        return _Task("AutoModelForImageClassification", _images)
    if has("MODEL_FOR_MASKED_LM_MAPPING") and not getattr(config, "is_decoder", False):
        return _Task("AutoModelForMaskedLM", unpackable_tokens)
    if has("MODEL_FOR_CAUSAL_LM_MAPPING"):
        return _Task("AutoModelForCausalLM", tokens_with_labels)
    raise UnsupportedError(
        f"{wanted} is neither a language model nor a classifier of images: write a Workload with its own "
        "batches and its own loss, and give path/file.py:name"
    )


def _tokens(config: Any) -> int:
    text = config.get_text_config()
    lengths: list[int | None] = [getattr(text, name, None) for name in _LENGTHS]
    return min([MOST_TOKENS, *(length for length in lengths if length)])


def _images(batch_size: int, device: torch.device, *, config: Any, num_tokens: int) -> Batch:  # noqa: ARG001
    side = getattr(config, "image_size", 224)
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


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != LENGTHS}).loss
    return loss
