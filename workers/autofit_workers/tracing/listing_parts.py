"""Process that lists a language model's parameters; see `autofit_workers.trials.model_parts`."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from autofit_workers.process.messages import received, told
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.model_parts import ModelParts, Parameter
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.libraries.of_transformers import configuration_of
from autofit_workers.workload.libraries.transformers_releases import text_config_of

# Names that all configurations of text models understand, next to their own (`attribute_map`).
_NAMES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
    "vocab_size",
)


def main(requests_fd: int, answers_fd: int) -> None:
    """Answers requests for a model's parameters, each with a line of JSON, until an empty line comes.

    Args:
        requests_fd, answers_fd: file descriptors to read requests from and write answers to.
    """
    requests = received(requests_fd, answers_fd)
    with os.fdopen(answers_fd, "w", encoding="utf-8") as answers:
        while request := requests.get():
            answers.write(json.dumps(_answer(json.loads(request))) + "\n")
            answers.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parts = parts_of(WorkloadRef.from_dict(request["workload"]))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the process boundary
        return {"error": dataclasses.asdict(told(error))}
    return {"parts": dataclasses.asdict(parts)}


def parts_of(ref: WorkloadRef) -> ModelParts:
    """Builds a model on the meta device, where it takes no memory, and lists its parameters.

    Raises:
        UnknownNameError: the model's configuration is not found on this machine.
        UnsupportedError: the configuration is not that of a model that generates text.
    """
    transformers: Any = imported("transformers", ref.target)
    config = configuration_of(ref)
    model = _built(transformers, copy.deepcopy(config), ref.target)
    owners = {name: type(module).__name__ for name, module in model.named_modules()}
    text = text_config_of(config, decoder=True)
    return ModelParts(
        model_type=config.model_type,
        model_class=type(model).__name__,
        dtype=None if config.dtype is None else str(config.dtype).removeprefix("torch."),
        parameters=tuple(
            Parameter(name=name, owner=owners[name.rpartition(".")[0]], shape=tuple(parameter.shape))
            for name, parameter in model.named_parameters()
        ),
        config=_plain(config, text),
        is_multimodal=hasattr(config, "vision_config") or hasattr(config, "audio_config"),
    )


def _built(transformers: Any, config: Any, wanted: str) -> torch.nn.Module:
    """Model on the device `meta`, of the most general class that generates text for its configuration."""
    for name in ("AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM"):
        mapping = getattr(transformers, name)
        if type(config) in mapping._model_mapping:
            if getattr(config, "is_encoder_decoder", False) and name == "AutoModelForCausalLM":
                continue
            with torch.device("meta"):
                model: torch.nn.Module = mapping.from_config(config)
            return model
    raise UnsupportedError(
        f"{wanted} does not generate text, so a server keeps no KV cache for it: name a model that does"
    )


def _plain(config: Any, text: Any) -> dict[str, Any]:
    """Entries of a model's configuration that are integers, strings or lists of them.

    The nested entries `quantization_config` and `rope_parameters` are included.
    """
    said = {name: value for name, value in text.to_dict().items() if _is_plain(value)}
    named = {name: getattr(text, name) for name in _NAMES if isinstance(getattr(text, name, None), int)}
    whole = config.to_dict()
    nested = {
        name: json.loads(json.dumps(value, default=str))
        for name in ("quantization_config", "rope_parameters")
        if (value := whole.get(name) or text.to_dict().get(name))
    }
    return {**said, **named, **nested}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, int | str)
