"""Casts a model's base weights to another type, or quantizes them with bitsandbytes or torchao.

Base weights are a model's own, which are frozen beside an adapter. As when transformers loads a quantized
model, linear layers are quantized one after the other as they move to the device: a layer's weights are on
the device in 16 bits only while it is quantized.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autofit_workers.apply import adapter, torchao_weights
from autofit_workers.spec.errors import InapplicableError, MissingLibraryError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.base import FLOATS, QUANTIZATIONS, Bitsandbytes, Torchao, is_of_bitsandbytes
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.libraries.transformers_releases import layers_kept_from_quantization

# Dtype of matrix products by the knob `precision`; float32, bitsandbytes' default, for all others.
_COMPUTE_TYPES = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16, "bf16": torch.bfloat16}
# bitsandbytes' class of weights by its class of layers.
_WEIGHTS = {each.layer: each.weight for each in QUANTIZATIONS.values() if isinstance(each, Bitsandbytes)}
_KEPT_AS = {torch.float32: torch.float16}  # dtype before quantization: most checkpoints are float16


def import_library(base: str) -> None:
    """Imports the library that quantizes weights for a value of the knob `base`.

    Raises:
        MissingLibraryError: the library is not installed here.
    """
    quantization = QUANTIZATIONS[base]
    if isinstance(quantization, Torchao):
        torchao_weights.config_of(quantization.config, base)
    else:
        library(base)


def library(base: str) -> ModuleType:
    """Imports the library bitsandbytes and returns its module.

    Raises:
        MissingLibraryError: bitsandbytes is not installed here.
    """
    bitsandbytes = imported("bitsandbytes", f"base {base}", "a quantization")
    if importlib.util.find_spec("bitsandbytes._ops") is None:  # the operators that it describes since 0.46
        raise MissingLibraryError(
            f"base {base} needs bitsandbytes 0.46 or newer, and {bitsandbytes.__version__} is installed "
            "where trials run: pip install --upgrade bitsandbytes"
        )
    # bitsandbytes caches its code table on the device of its first use, which may be a fake device.
    functional = bitsandbytes.functional
    if "dynamic" not in functional.name2qmap:
        functional.name2qmap["dynamic"] = functional.create_dynamic_map()
    return bitsandbytes


def with_base(model: nn.Module, knobs: Knobs) -> nn.Module:
    """Model on the CPU whose base weights have the type that the knob `base` names.

    Floating-point types are cast to here. For quantized types, layers are only prepared: they are quantized
    on the device.

    Raises:
        InapplicableError: the model has no linear layers to quantize.
        MissingLibraryError: the library that quantizes is not installed here.
    """
    if knobs.base is None:
        return model
    if knobs.base in FLOATS:
        return model.to(dtype=getattr(torch, FLOATS[knobs.base]))
    quantization = QUANTIZATIONS[knobs.base]
    compute_type = _COMPUTE_TYPES.get(knobs.precision, torch.float32)
    if isinstance(quantization, Torchao):
        config = torchao_weights.config_of(quantization.config, knobs.base)
        model = model.to(dtype=compute_type)  # dtype of matrix products
        torchao_weights.mark((layer for _, layer in _layers(model, knobs.base)), config)
        return model
    model = model.to(dtype=_KEPT_AS.get(compute_type, compute_type))
    _replace_layers(model, quantization, knobs.base, compute_type)
    setattr(model, quantization.mark, True)
    return model


def prepared(model: nn.Module, knobs: Knobs, *, shards: bool = False) -> nn.Module:
    """Model prepared for an adapter: weights that bitsandbytes has not quantized are cast to float32 by peft.

    They keep their dtype if the precision is bf16, if the model will be sharded (as weights of an FSDP unit
    need one dtype), and in models that torchao quantizes; torchao's layers are quantized here.

    Args:
        model: a model from `with_base`, on its device, or on the host if it will be sharded.
        knobs: the knob setting, of which base weights, precision and adapter matter.
        shards: whether the model will be sharded over ranks.
    """
    torchao_weights.quantize_on(model)
    keeps_types = shards or knobs.precision == "bf16"
    if not is_of_bitsandbytes(knobs.base) or keeps_types:
        return model
    peft: Any = adapter.library(str(knobs.adapter))
    with _hidden(each for each in model.modules() if type(each).__name__ in _WEIGHTS):
        made: nn.Module = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return made


@contextmanager
def _hidden(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Context manager that removes the weights of `layers`, so that casts of all weights skip them."""
    hidden = [(layer, layer.weight) for layer in layers]
    for layer, _ in hidden:
        del layer.weight
    try:
        yield
    finally:
        for layer, weight in hidden:
            layer.weight = weight


def quantize(module: nn.Module) -> None:
    """Quantizes a layer that `with_base` set up and that is on its device, if not quantized yet.

    bitsandbytes itself quantizes a parameter in `Module.to`; this function is for parameters that came to the
    device in another way, and for torchao's layers.
    """
    torchao_weights.quantize(module)
    kind = _WEIGHTS.get(type(module).__name__)
    weight: Any = getattr(module, "weight", None)
    if kind is None or not weight.is_floating_point():
        return
    import bitsandbytes

    getattr(bitsandbytes.nn, kind)._quantize(weight, weight.device)  # noqa: SLF001 - no other name for it


def quantized_before_sharding(
    model: nn.Module, to_device: Callable[[nn.Parameter], nn.Parameter], to_host: Callable[[Tensor], Tensor]
) -> None:
    """Quantizes the weights of a model on the CPU that will be sharded.

    As when transformers loads a quantized model, each layer's weight in turn moves to the device, is
    quantized there, and moves back to the CPU; only bitsandbytes' quantization state stays on the device.
    FullyShardedDataParallel flattens weights of one floating-point dtype, so quantized weights are stored in
    the dtype of the others (`bnb_4bit_quant_storage`).

    Args:
        model: a model from `with_base`.
        to_device: returns a copy of a parameter on the device.
        to_host: returns a copy of a tensor on the CPU.

    Raises:
        InapplicableError: the weights are quantized to 8 bits, which cannot be stored in another dtype.
    """
    for layer in model.modules():
        if type(layer).__name__ not in _WEIGHTS:
            continue
        module: Any = layer
        if not hasattr(module, "quant_storage"):
            raise InapplicableError(
                "weights of 8 bits cannot be flattened with others to be sharded: use base nf4, or ddp:N"
            )
        module.weight = to_device(module.weight)
        module.quant_storage = module.weight.quant_storage = module.weight.dtype
        quantize(module)
        module.weight.data = to_host(module.weight.data)


def _replace_layers(
    model: nn.Module, quantization: Bitsandbytes, base: str, compute_type: torch.dtype
) -> None:
    """Replaces the linear layers of a model by layers of bitsandbytes with the same weights."""
    make = getattr(library(base).nn, quantization.layer)
    options: dict[str, Any] = dict(quantization.options)
    if quantization.has_compute_type:
        options["compute_dtype"] = compute_type
    for path, layer in _layers(model, base):
        made = make(layer.in_features, layer.out_features, layer.bias is not None, **options)
        made.weight.data, made.bias = layer.weight.data, layer.bias
        made.requires_grad_(False)
        model.set_submodule(path, made)


def _layers(model: nn.Module, base: str) -> list[tuple[str, nn.Linear]]:
    """Pairs of path and layer of a model's linear layers that are to be quantized.

    Raises:
        InapplicableError: the model has no such layers.
    """
    kept = layers_kept_from_quantization(model)
    found = [
        (path, layer)
        for path, layer in model.named_modules()
        if type(layer) is nn.Linear and path not in kept
    ]
    if not found:
        raise InapplicableError(
            f"base {base} quantizes linear layers, and the model has none: choose fp32, fp16 or bf16"
        )
    return found
