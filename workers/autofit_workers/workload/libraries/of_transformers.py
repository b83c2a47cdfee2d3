"""Loads models of Hugging Face's transformers as workloads, by configuration, with random weights."""

from __future__ import annotations

import functools
import traceback
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.shown import brief_error
from autofit_workers.workload.libraries.heads.building import build
from autofit_workers.workload.libraries.heads.head import batches_of, head_of, with_images_of
from autofit_workers.workload.libraries.heads.task import Batch, Head
from autofit_workers.workload.libraries.importing import imported, unknown
from autofit_workers.workload.libraries.token_batches import LENGTHS
from autofit_workers.workload.libraries.transformers_releases import configuration_class
from autofit_workers.workload.workload import Workload


def load(ref: WorkloadRef) -> Workload:
    """Workload that trains a model of transformers on its own loss, with AdamW.

    The name is a model type of transformers (`gpt2`), a `config.json` or its folder, or a model of the
    hub whose configuration is in the local cache.

    Raises:
        UnknownNameError: there is no such configuration on this machine.
        UnsupportedError: the model has no head whose batches can be made.
        MissingLibraryError: transformers is not installed.
    """
    transformers: Any = imported("transformers", ref.target)
    config = configuration_of(ref)
    head = head_of(transformers, config, ref.target, ref.task)
    if ref.input_shape is not None:
        head = with_images_of(head, ref.target, ref.input_shape)
    batches = batches_of(head, ref.target)
    build_model = functools.partial(build if batches.is_of_images else _build_of_any_text, head)
    of_size: dict[str, Any] = (
        {}
        if batches.size is None
        else {
            "make_batch": functools.partial(batches.make, size=batches.size.size),
            "size_multiple": batches.size.multiple,
            "max_size": batches.size.longest,
        }
    )
    return Workload(
        **{"make_batch": batches.make, **of_size},
        build_model=build_model,
        loss=functools.partial(_own_loss, options={"return_loss": True} if head.task.asks_for_loss else {}),
        optimizer="adamw",
        name=ref.name,
    )


def _build_of_any_text(head: Head) -> nn.Module:
    """Builds a head's model for texts or sounds; the model does not depend on the sample size."""
    return build(head)


def configuration_of(ref: WorkloadRef) -> Any:
    """Configuration of transformers that a reference names.

    Nothing is downloaded, and no code that a configuration names (`auto_map`) is imported.

    Raises:
        UnknownNameError: there is no such configuration on this machine.
        UnsupportedError: transformers does not accept the configuration, or it asks for a kernel of a hub,
            code of its own, quantized weights or a size below 0.
        DeviceError: transformers is not installed.
    """
    transformers: Any = imported("transformers", ref.target)
    name = ref.target.partition(":")[2]
    types = transformers.CONFIG_MAPPING
    if name in types:  # a file's name is an absolute path (see `autofit_workers.spec.workloads.references`)
        return transformers.AutoConfig.for_model(name)
    try:
        stated, _ = configuration_class(transformers).get_config_dict(name, local_files_only=True)
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
            f"{ref.target} is no configuration that transformers {transformers.__version__} takes "
            f"({brief_error(error)}): mend the configuration, or install the release that it was written for"
        ) from error


def _refuse_what_is_not_followed(name: str, stated: dict[str, Any], types: Any) -> None:
    """Raises `UnsupportedError` for a config with code of its own, quantization or negative sizes."""
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
        is_size = isinstance(value, int) and (key.startswith("num_") or key.endswith("_size"))
        # Some classes give a negative number a meaning, such as all layers.
        if is_size and value < 0 and value != getattr(types.get(kind), key, None):
            raise UnsupportedError(
                f"{name} says {key}: {value}, which cannot be less than 0: mend the configuration"
            )


def _refuse_kernels_of_hubs(name: str, stated: Any) -> None:
    """Raises `UnsupportedError` for a config whose attention kernel a hub would have to deliver."""
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


def _own_loss(model: nn.Module, batch: Batch, *, options: dict[str, Any]) -> Tensor:
    """Loss that a transformers model computes itself, from a batch with labels.

    Args:
        model: the model.
        batch: arguments of its forward pass, with labels.
        options: further arguments of the forward pass.

    Raises:
        UnsupportedError: the model computes no loss for this batch, or does not accept it.
    """
    taken = {each: tensor for each, tensor in batch.items() if each != LENGTHS}
    name = type(model).__name__
    try:
        loss: Tensor | None = model(**taken, **options).loss
    except NotImplementedError as error:
        if not _is_of_transformers(error):  # an error of PyTorch, in an operator
            raise
        raise _no_loss(name, brief_error(error)) from error
    except (ValueError, TypeError, AttributeError, LookupError, RuntimeError) as error:
        # An operator without a kernel raises a subclass, and a real device may have run out of memory.
        if isinstance(error, RuntimeError) and (type(error) is not RuntimeError or not _is_predicted(model)):
            raise
        raise UnsupportedError(
            f"{name} does not take the batch that is made for it here ({brief_error(error)}): "
            "see whether its configuration is whole, or write a Workload with its own batches, and give "
            "path/file.py:name"
        ) from error
    if loss is None:
        raise _no_loss(name, "it returns none for this batch")
    return loss


def _is_predicted(model: nn.Module) -> bool:
    return isinstance(next(model.parameters(), None), FakeTensor)


def _is_of_transformers(error: Exception) -> bool:
    """Whether transformers' own code raised an error, as opposed to PyTorch code that it called."""
    return "transformers" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts


def _no_loss(name: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} computes no loss ({why}): write a Workload with its own batches and its own "
        "loss, and give path/file.py:name"
    )
