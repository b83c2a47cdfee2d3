"""Differences between releases of transformers, 4.44 to the newest, in one place.

Each function looks at what the installed release offers, and calls that. Its first name is the one of
transformers 5.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from autofit_workers.spec.errors import MissingLibraryError, UnsupportedError
from autofit_workers.workload.libraries.finders import when_imported

MODELS = "transformers.modeling_utils"
_DECIDING = "_check_and_adjust_attn_implementation"  # called when a model's attention is set
_DECIDING_BEFORE = "_autoset_attn_implementation"  # called with a configuration before a model is built of it
_FLASH, _LOADED = "transformers.modeling_flash_attention_utils", "_loaded_implementation"
_MAPS = "transformers.integrations.accelerate"
_MAPPING = "_get_device_map"  # makes a device map of a word such as "auto"
_ENCODERS, _DECODERS = ("text_encoder",), ("decoder", "generator", "text_config")  # parts with text
_WORDS = ("auto", "balanced", "balanced_low_0", "sequential")


def configuration_class(transformers: Any) -> Any:
    """Base class of configurations, which was spelled `PretrainedConfig` before transformers 5."""
    return getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig


def text_config_of(config: Any, *, decoder: bool = False) -> Any:
    """Configuration of the part of a model that reads text; `config` itself for most models.

    Args:
        config: configuration of the whole model.
        decoder: whether only parts that write text are looked for.
    """
    if hasattr(config, "get_text_config"):
        return config.get_text_config(**({"decoder": True} if decoder else {}))
    names = _DECODERS if decoder else (*_ENCODERS, *_DECODERS)  # as in transformers 4.48
    return next((part for name in names if (part := getattr(config, name, None)) is not None), config)


def is_model(model: nn.Module) -> bool:
    """Whether a module is a model of transformers, by its class; the library is not imported for it."""
    return any(each.__module__ == MODELS for each in type(model).__mro__)


def require_newer(model: nn.Module, offers: str, wanted: str) -> None:
    """Raises `MissingLibraryError` for a model of a transformers that has no such method or function yet.

    Args:
        model: the model; nothing is raised unless it is of transformers.
        offers: name of a method that models have since this is supported.
        wanted: what the user wants, for the message.
    """
    if is_model(model) and not hasattr(model, offers):
        raise _without(wanted, since="5.23")


def _without(wanted: str, *, since: str) -> MissingLibraryError:
    """Error of an installed transformers that has not yet what is wanted, with a release that has it."""
    return MissingLibraryError(
        f"{wanted} is by transformers' own code, which {_installed()} does not have: pip install --upgrade "
        f"transformers ({since} has it)"
    )


def _installed() -> str:
    return f"transformers {importlib.import_module('transformers').__version__}"


def when_attention_is_decided(choose: Callable[[Any], Any]) -> None:
    """Overrides the attention of transformers models with `choose`, until this process ends.

    Args:
        choose: gets transformers' name of the attention that a model was asked for, None for none, and
            returns the name of the attention to use.
    """
    when_imported(MODELS, functools.partial(_listen, choose))


def when_attention_is_built_in(choose: Callable[[Any], Any]) -> None:
    """Does as `when_attention_is_decided` where models keep the attention that they were built with.

    Newer models are told later, by `set_attn_implementation`; with them nothing is overridden.
    """

    def listen(module: Any) -> None:
        if not hasattr(module.PreTrainedModel, "set_attn_implementation"):
            _listen(choose, module)

    when_imported(MODELS, listen)


def _listen(choose: Callable[[Any], Any], module: Any) -> None:
    model_class = module.PreTrainedModel
    decide = getattr(model_class, _DECIDING, None)
    if decide is None:
        _listen_before(choose, model_class)
        return

    @functools.wraps(decide)
    def decided(self: Any, asked_for: Any, *args: Any, **kwargs: Any) -> Any:
        return decide(self, choose(asked_for), *args, **kwargs)

    setattr(model_class, _DECIDING, decided)


def _listen_before(choose: Callable[[Any], Any], model_class: Any) -> None:
    """Lets `choose` decide where a configuration gets its attention, as in transformers 4.48."""
    decide = vars(model_class)[_DECIDING_BEFORE].__func__

    @functools.wraps(decide)
    def decided(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        asked_for = getattr(config, "_attn_implementation_internal", None)
        # A dict holds names for parts, each of which is decided with a configuration of its own.
        if not isinstance(asked_for, dict) and (chosen := choose(asked_for)) != asked_for:
            config._attn_implementation = chosen  # noqa: SLF001 - as `from_config` sets it
        return decide(cls, config, *args, **kwargs)

    setattr(model_class, _DECIDING_BEFORE, classmethod(decided))


def look_for_flash_attention_again() -> None:
    """Lets transformers see that FlashAttention can be imported since it looked.

    Raises:
        UnsupportedError: the release looks only when it is imported.
    """
    module = sys.modules.get(_FLASH)
    if module is None:
        return
    if not hasattr(module, _LOADED) and not hasattr(module, "_flash_supports_window_size"):  # as in 4.48
        raise UnsupportedError(
            f"FlashAttention is not predicted with {_installed()}: pip install --upgrade transformers (4.56 "
            "or newer), or choose another --attention"
        )
    vars(module)[_LOADED] = None


def attention_of(model: nn.Module) -> Any:
    """Transformers' name of the attention that a model has; None where it names none."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def when_device_map_is_made(note: Callable[[str], None]) -> None:
    """Calls `note` with each `device_map` that is a word, such as "auto", until this process ends."""

    def listen(module: Any) -> None:
        if hasattr(module, _MAPPING):
            _note_where_made(module, note)
        elif module.__name__ == MODELS and not hasattr(sys.modules.get(_MAPS), _MAPPING):
            _note_where_loaded(module.PreTrainedModel, note)

    when_imported(MODELS, listen)
    when_imported(_MAPS, listen)


def device_maps_module(wanted: str) -> Any:
    """Module of transformers whose functions deal layers out over GPUs, quantized ones included.

    Args:
        wanted: what the user wants, for the error's message.

    Raises:
        MissingLibraryError: the installed release has no such functions of its own.
    """
    found = importlib.import_module(_MAPS) if importlib.util.find_spec(_MAPS) else None
    if not hasattr(found, "get_balanced_memory"):
        raise _without(f"{wanted} of a model of transformers", since="5")
    return found


def _note_where_made(module: Any, note: Callable[[str], None]) -> None:
    make = getattr(module, _MAPPING)

    def made(model: Any, device_map: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(device_map, str):
            note(device_map)
        return make(model, device_map, *args, **kwargs)

    setattr(module, _MAPPING, made)


def _note_where_loaded(model_class: Any, note: Callable[[str], None]) -> None:
    load = vars(model_class)["from_pretrained"].__func__

    @functools.wraps(load)
    def loaded(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device_map") in _WORDS:
            note(kwargs["device_map"])
        return load(cls, *args, **kwargs)

    model_class.from_pretrained = classmethod(loaded)


def layers_kept_from_quantization(model: nn.Module) -> list[str]:
    """Paths of layers that transformers leaves unquantized: output layer, and layers sharing its weights."""
    if not is_model(model):
        return []
    for name in ("transformers.quantizers.base", "transformers.integrations.bitsandbytes"):
        find = getattr(importlib.import_module(name), "get_keys_to_not_convert", None)
        if find is not None:
            return list(find(model))
    raise MissingLibraryError(
        f"{_installed()} does not say which layers it leaves unquantized: pip install --upgrade transformers"
    )
