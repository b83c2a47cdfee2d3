"""Loads models of timm as workloads, with images of the model's size or by a reference's arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from autofit_workers.spec.errors import InapplicableError, UnknownNameError, text_of
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.workloads.library_arguments import split_arguments
from autofit_workers.workload.libraries.images import image_workload
from autofit_workers.workload.libraries.importing import hint, imported, unknown
from autofit_workers.workload.workload import Workload

_USUAL_SHAPE, _USUAL_CLASSES = (3, 224, 224), 1000  # for a model without a configuration
_SIDES, _CHANNELS, _CLASSES = "img_size", "in_chans", "num_classes"
_OF_WEIGHTS = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
_OF_FEATURES = ("features_only", "out_indices")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def load(ref: WorkloadRef) -> Workload:
    """Workload that trains a model of timm.

    Raises:
        UnknownNameError: timm has no such model.
        InapplicableError: an argument does not fit training from random weights, or a size is invalid.
        MissingLibraryError: timm is not installed.
    """
    timm: Any = imported("timm", ref.target)
    name, told = split_arguments(ref.target.partition(":")[2])
    if not timm.is_model(name.partition(".")[0]):
        raise unknown(f"timm:{name}", name, timm.list_models(), otherwise="`timm.list_models()` lists them")
    _require_trainable(told)
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    own_shape = _USUAL_SHAPE if config is None else tuple(config.input_size)
    num_classes = _USUAL_CLASSES if config is None else config.num_classes
    shape = ref.input_shape or _shape_told(told, own_shape)
    options = dict(told)
    if ref.num_classes is not None:
        options[_CLASSES] = ref.num_classes
    if shape != own_shape:
        options[_CHANNELS] = shape[0]
    build = functools.partial(_build, name, options)
    if config is not None and config.fixed_input_size:
        sides = options.pop(_SIDES, None if shape == own_shape else shape[1:])
        build = functools.partial(_build_fixed, name, options, sides=sides)
    return image_workload(
        build, name=ref.name, input_shape=shape, num_classes=options.get(_CLASSES, num_classes)
    )


def _require_trainable(told: Mapping[str, Any]) -> None:
    """Raises `InapplicableError` for arguments that ask for weights, or for features, not logits."""
    for name in (name for name, value in told.items() if value is not False):
        if name in _OF_WEIGHTS:
            raise InapplicableError(
                f"{name} makes timm load weights; here they are random and take the same memory: leave it out"
            )
        if name in _OF_FEATURES:
            raise InapplicableError(
                f"{name} makes timm's model return features, and it is trained on logits here: leave it out, "
                "or write a workload file that says the loss"
            )


def _shape_told(told: Mapping[str, Any], own: tuple[int, ...]) -> tuple[int, ...]:
    """Shape C×H×W of the images that a model's arguments ask for.

    Args:
        told: the user's arguments of the model.
        own: the model's default shape, used for what the arguments do not say.

    Raises:
        InapplicableError: a size in the arguments is not a positive whole number.
    """
    sides = told.get(_SIDES, own[1:])
    sides = tuple(sides) if isinstance(sides, tuple | list) else (sides, sides)
    shape = (told.get(_CHANNELS, own[0]), *sides)
    if len(shape) != len(own) or not all(type(each) is int and each > 0 for each in shape):
        raise InapplicableError(
            f"{_SIDES} and {_CHANNELS} are whole numbers, such as {_SIDES}=384 or {_SIDES}=(384,512)"
        )
    return shape


def _build(name: str, options: dict[str, Any]) -> nn.Module:
    import timm

    try:
        model: nn.Module = timm.create_model(name, **options)
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError, RuntimeError) as error:
        if not options:
            raise
        raise _refusal(name, options, error) from error
    return model


def _build_fixed(
    name: str, options: dict[str, Any], *, sides: int | tuple[int, ...] | None, size: int | None = None
) -> nn.Module:
    """Network for images of one size: `size` if given, else `sides`, else the model's own."""
    sides = sides if size is None else (size, size)
    return _build(name, options if sides is None else {**options, _SIDES: sides})


def _refusal(name: str, options: Mapping[str, Any], error: Exception) -> Exception:
    """Error for the user when timm refuses to make a model with the given arguments.

    Args:
        name: name of the model.
        options: the arguments.
        error: exception that timm raised.
    """
    found = _UNEXPECTED.search(str(error))
    if found is None or found[1] not in options:
        told = ", ".join(f"{key}={value!r}" for key, value in options.items())
        return InapplicableError(f"timm does not make {name} with {told}: {text_of(error)}")
    known = _names_of(name)
    instead = (
        "its images may be of any size, which --input says, such as 3x256x256"
        if found[1] == _SIDES
        else hint(found[1], known, otherwise=f"it takes {', '.join(known)}")
    )
    return UnknownNameError(f"timm's {name} takes no {found[1]}: {instead}")


def _names_of(name: str) -> list[str]:
    """Names of the arguments that a timm model's constructors take."""
    import timm

    with torch.device("meta"):
        model = timm.create_model(name)
    takes = (inspect.signature(each).parameters for each in type(model).__mro__[:-2])
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return sorted({each.name for them in takes for each in them.values() if each.kind in kinds})
