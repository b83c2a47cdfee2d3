"""Models of Hugging Face's transformers, from a configuration, with random weights."""

from __future__ import annotations

import copy
import functools
from typing import Any

from torch import Tensor, nn

from autofit_workers.errors import UnsupportedError
from autofit_workers.protocol import WorkloadRef
from autofit_workers.shown import brief_error
from autofit_workers.workload.libraries.heads import head_of
from autofit_workers.workload.libraries.importing import imported, unknown
from autofit_workers.workload.libraries.token_batches import LENGTHS, Batch
from autofit_workers.workload.workload import Workload


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
    head = head_of(transformers, config, ref.target, ref.task)
    size = head.task.size(config)
    return Workload(
        build_model=functools.partial(
            _build_for_images if head.task.is_of_images else _build, head.model_class, config
        ),
        make_batch=functools.partial(head.task.make_batch, config=config, size=size.size),
        loss=functools.partial(_own_loss, options={"return_loss": True} if head.task.asks_for_loss else {}),
        optimizer="adamw",
        name=ref.name,
        size_multiple=size.multiple,
        max_size=size.longest,
    )


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
    if name in types:  # a file's name is absolute (see `autofit_workers.workload.references`)
        return transformers.AutoConfig.for_model(name)
    try:
        stated, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise unknown(
            ref.target,
            name,
            types,
            otherwise="give a model type of transformers, a config.json, or a model of the hub whose "
            f"configuration is in the cache (hf download {name} config.json); nothing is downloaded here",
        ) from error
    _refuse_kernels_of_hubs(ref.target, stated)
    _refuse_what_is_not_followed(ref.target, stated, types)
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise UnsupportedError(
            f"{ref.target} is no configuration that transformers {transformers.__version__} takes: "
            f"{brief_error(error)}"
        ) from error


def _refuse_what_is_not_followed(name: str, stated: dict[str, Any], types: Any) -> None:
    """Raises where a configuration says something of its model that would not be so here."""
    kind = stated.get("model_type")
    if kind is not None and kind not in types:
        own = " and names code of its own (auto_map), which is not run" if "auto_map" in stated else ""
        raise UnsupportedError(
            f"{name} is of the model type {kind}, which transformers does not have{own}: write a Workload "
            "with that model, and give path/file.py:name"
        )
    if quantized := stated.get("quantization_config"):
        method = quantized.get("quant_method", "") if isinstance(quantized, dict) else ""
        raise UnsupportedError(
            f"{name} is of weights that are quantized ({method or 'quantization_config'}), which a "
            "configuration alone does not bring about: take quantization_config out of it, and say --base, "
            "such as --base nf4, if that is meant"
        )
    for key, value in stated.items():
        if isinstance(value, int) and value < 0 and (key.startswith("num_") or key.endswith("_size")):
            raise UnsupportedError(f"{name} says {key}: {value}, which cannot be less than 0")


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


def _build(model_class: Any, config: Any) -> nn.Module:
    config = copy.deepcopy(config)  # the model writes into it what it was made with
    if config.is_encoder_decoder:  # what the labels are shifted by, which a model type alone leaves open
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, 0)
    model: nn.Module = model_class._from_config(config)  # noqa: SLF001 - as `AutoModel.from_config` does
    for part in model.modules():  # of a training: a cache for generation would grow when blocks run again
        own: Any = getattr(part, "config", None)
        if getattr(own, "use_cache", False):
            own.use_cache = False
    return model


def _build_for_images(model_class: Any, config: Any, *, size: int | None = None) -> nn.Module:
    """The model, which may have a position for every patch of an image."""
    config = copy.deepcopy(config)
    if size is not None and hasattr(config, "image_size"):
        config.image_size = size
    return _build(model_class, config)


def _own_loss(model: nn.Module, batch: Batch, *, options: dict[str, Any]) -> Tensor:
    taken = {name: tensor for name, tensor in batch.items() if name != LENGTHS}
    loss: Tensor = model(**taken, **options).loss
    return loss
