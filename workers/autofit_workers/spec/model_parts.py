"""Parameters of a language model, and the sizes that its configuration gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Parameter of a model, listed once even if several modules share it.

    Attributes:
        name: its path in the model, `model.layers.0.self_attn.q_proj.weight`.
        owner: class name of the module that holds it, such as `Linear`.
    """

    name: str
    owner: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """Model that transformers builds from a configuration: class, parameters and sizes.

    Attributes:
        model_type: transformers' name of the architecture, `llama`.
        model_class: the class of the model with its head, `LlamaForCausalLM`.
        dtype: type of the checkpoint's weights as its configuration states it; None if it states none.
        config: values of the text model's configuration, under names that all architectures share.
        is_multimodal: whether the model also reads images or sound, besides text.
    """

    model_type: str
    model_class: str
    dtype: str | None
    parameters: tuple[Parameter, ...]
    config: dict[str, Any] = field(default_factory=dict)
    is_multimodal: bool = False
