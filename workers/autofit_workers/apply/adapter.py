"""Puts an adapter, such as LoRA, on a model with the library peft, by the value of the knob `adapter`.

peft itself knows the methods, their options and the layers they apply to; this module adds the task, which
transformers knows by the model's class, shorter names of options, and hints for wrong names.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import nn

from autofit_workers.spec.errors import InapplicableError, text_of
from autofit_workers.spec.knobs.adapter import OF_FILES, VARIANTS, Option, split_adapter
from autofit_workers.workload.libraries.hiding import hidden, holds, unusable
from autofit_workers.workload.libraries.importing import hint, imported

_TARGETS, _LISTS = "target_modules", ("target_modules", "modules_to_save", "exclude_modules")
_ALL_LINEAR = "all-linear"
_PEFT = "peft"
_FOLDER = re.compile(r" \([^()]*\)$")  # at the end of the message of a failed import
_notes: dict[str, None] = {}  # of the current program
_SHORT = {"rank": "r", "targets": _TARGETS}
# Task by the name of transformers' mapping of model classes, in the order of the look-up.
_TASKS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "CAUSAL_LM",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "SEQ_2_SEQ_LM",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "SEQ_CLS",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "TOKEN_CLS",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "QUESTION_ANS",
}


def library(adapter: str) -> ModuleType:
    """Imports the library peft and returns its module.

    Raises:
        MissingLibraryError: peft is not installed here.
    """
    return imported(_PEFT, f"adapter {adapter}", "a method")


def begin_program() -> None:
    """Forgets what was noted of an earlier workload's adapter in this process."""
    _notes.clear()


def notes() -> tuple[str, ...]:
    """Notes for the user about libraries that peft could not use, a sentence each."""
    return tuple(_notes)


def with_adapter(model: nn.Module, adapter: str, *, in_float32: bool = True) -> nn.Module:
    """Model with its base weights frozen and a trainable adapter added by peft.

    Args:
        model: the model, on the device where it is trained.
        adapter: a value of the knob, see `autofit_workers.spec.knobs.Knobs`.
        in_float32: whether the adapter's weights are float32 beside weights of half precision, as is
            peft's default; else they have the type of the weights beside them.

    Raises:
        InapplicableError: peft has no such method or option, the model no such layer, or peft refuses them.
        MissingLibraryError: peft is not installed here.
    """
    peft: Any = library(adapter)
    named, options = split_adapter(adapter)
    method, given = VARIANTS.get(named, (named, {}))
    config_class = _config_class(peft, method)
    told = given | _by_field(config_class, method, options)
    told = {name: _listed(name, option) for name, option in told.items()}
    if _TARGETS in told:
        told[_TARGETS] = _found(model, told[_TARGETS], method)
    try:
        config = config_class(task_type=task_of(model), **told)
        adapted = _made(model, lambda: peft.get_peft_model(model, config, autocast_adapter_dtype=in_float32))
    except (ValueError, TypeError, NotImplementedError, KeyError, AttributeError, ImportError) as error:
        raise InapplicableError(f"peft does not put {adapter} on this model: {text_of(error)}") from error
    return adapted


def _made(model: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    """Adapted model by `make`, without an optional library that peft cannot use and the model does not hold.

    Raises:
        ImportError: the model holds something of that library, or peft lacks something without it too.
    """
    try:
        return make()
    except ImportError as error:
        package = unusable(error, _PEFT)
        if package is None or holds(model, package):
            raise
        try:
            with hidden(package, _PEFT):
                adapted = make()
        except ImportError:
            raise error from None
        _notes[
            f"{_release(_PEFT)} cannot use {_release(package)}, of which this model has nothing: the adapter "
            f"was made as where {package} is not installed; where it trains, remove {package} or install "
            f"releases that go together ({_FOLDER.sub('', text_of(error))})"
        ] = None
        return adapted


def _release(package: str) -> str:
    """Name of a package, and its release where a distribution of that name is installed."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def _config_class(peft: Any, method: str) -> Any:
    # Keys are members of an enumeration, plain strings in peft 0.14.
    classes = {
        str(getattr(kind, "value", kind)).lower(): made
        for kind, made in peft.PEFT_TYPE_TO_CONFIG_MAPPING.items()
    }
    if method not in classes:
        methods = sorted({*classes, *VARIANTS})
        instead = hint(method, methods, otherwise=f"it has {', '.join(methods)}")
        raise InapplicableError(f"peft has no method {method}: {instead}")
    return classes[method]


def _by_field(config_class: type, method: str, options: Mapping[str, Option]) -> dict[str, Option]:
    """Adapter options by the field names of peft's configuration class.

    Users may shorten a name if it stays unique: `alpha` is `lora_alpha` if no other field ends in `_alpha`.

    Args:
        config_class: the class.
        method: name of the adapter method, for messages.
        options: the user's options, by full or short name.

    Raises:
        InapplicableError: the class has no field for an option.
    """
    own = {field.name for field in dataclasses.fields(config_class) if field.init} - {"peft_type", *OF_FILES}
    names = {field: field for field in own}
    for field in own:
        short = field.partition("_")[2]
        if short and sum(other.endswith(f"_{short}") for other in own) == 1:
            names.setdefault(short, field)
    for short, field in _SHORT.items():
        if field in own:
            names.setdefault(short, field)
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        instead = hint(unknown, names, otherwise=f"it takes {', '.join(sorted(own))}")
        raise InapplicableError(f"the adapter method {method} takes no {unknown}: {instead}")
    return {names[name]: option for name, option in options.items()}


def _listed(name: str, option: Option) -> Option:
    """Value of an adapter option; a lone layer name is put in a list, as peft reads a string as a pattern."""
    return [option] if name in _LISTS and isinstance(option, str) and option != _ALL_LINEAR else option


def _found(model: nn.Module, targets: Option, method: str) -> Option:
    """Target layers of an adapter by names that the model has: `q` is `q_proj` if no layer is named `q`.

    Args:
        model: the model.
        targets: the user's names in a list; anything else, such as a pattern, is returned unchanged.
        method: name of the adapter method, for messages.
    """
    if not isinstance(targets, list):
        return targets
    paths = [path for path, _ in model.named_modules() if path]
    return [_target(str(target), paths, method) for target in targets]


def _target(name: str, paths: list[str], method: str) -> str:
    for candidate in (name, f"{name}_proj"):
        if any(path == candidate or path.endswith(f".{candidate}") for path in paths):
            return candidate
    last = {path.rpartition(".")[2] for path in paths}
    instead = hint(name, last, otherwise=f"use {_ALL_LINEAR}, or the name of a layer")
    raise InapplicableError(f"the adapter {method} has no layer to go to that is named {name}: {instead}")


def task_of(model: nn.Module) -> str | None:
    """Task of a model by peft's name, such as `CAUSAL_LM`; None if unknown or not of transformers."""
    if not any(each.__module__.partition(".")[0] == "transformers" for each in type(model).__mro__):
        return None
    from transformers.models.auto import modeling_auto

    name = type(model).__name__
    return next((task for names, task in _TASKS.items() if _names(modeling_auto, names, name)), None)


def _names(module: ModuleType, mapping: str, class_name: str) -> bool:
    """Whether a mapping in a module of transformers contains a model class.

    Args:
        module: the module.
        mapping: name of the mapping in it, whose values are class names or lists of class names.
        class_name: name of the class.
    """
    return any(
        class_name in (names if isinstance(names, list | tuple) else (names,))
        for names in getattr(module, mapping).values()
    )
