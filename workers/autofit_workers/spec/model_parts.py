"""Parameters of a language model, and the sizes that its configuration gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the model; one that several modules share stands once.

    Attributes:
        name: in the model, `model.layers.0.self_attn.q_proj.weight`.
        owner: the class of the module that has it, `Linear`.
    """

    name: str
    owner: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What transformers makes of a configuration.

    Attributes:
        model_type: transformers' name of the architecture, `llama`.
        model_class: the class of the model with its head, `LlamaForCausalLM`.
        dtype: of the checkpoint, as its configuration says; None where it says nothing.
        config: what the configuration of the text model says by the names that architectures share.
        is_multimodal: whether something beside the text model reads images or sound.
    """

    model_type: str
    model_class: str
    dtype: str | None
    parameters: tuple[Parameter, ...]
    config: dict[str, Any] = field(default_factory=dict)
    is_multimodal: bool = False
