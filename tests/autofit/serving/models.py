"""Architectures, made up and well known, as lists of parameters like those of transformers."""

from __future__ import annotations

from typing import Any

from autofit.serving.architecture import Architecture
from autofit_workers.spec.model_parts import ModelParts, Parameter

Shapes = dict[str, tuple[str, tuple[int, ...]]]


def parts(shapes: Shapes, **config: Any) -> ModelParts:
    """Parts of a model of these parameters, each with the class of its module and its shape."""
    return ModelParts(
        model_type="made",
        model_class="MadeForCausalLM",
        dtype="bfloat16",
        parameters=tuple(
            Parameter(name=name, owner=owner, shape=shape) for name, (owner, shape) in shapes.items()
        ),
        config=config,
    )


def llama_parts(  # noqa: PLR0917 - in the order of a table of models
    hidden: int,
    inner: int,
    num_layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    positions: int,
    **more: Any,
) -> ModelParts:
    """Parts of a model of Llama's architecture."""
    kv = hidden // heads * kv_heads
    shapes: Shapes = {
        "model.embed_tokens.weight": ("Embedding", (vocab, hidden)),
        "model.norm.weight": ("LlamaRMSNorm", (hidden,)),
        "lm_head.weight": ("Linear", (vocab, hidden)),
    }
    for number in range(num_layers):
        at = f"model.layers.{number}."
        shapes |= {
            f"{at}self_attn.q_proj.weight": ("Linear", (hidden, hidden)),
            f"{at}self_attn.k_proj.weight": ("Linear", (kv, hidden)),
            f"{at}self_attn.v_proj.weight": ("Linear", (kv, hidden)),
            f"{at}self_attn.o_proj.weight": ("Linear", (hidden, hidden)),
            f"{at}mlp.gate_proj.weight": ("Linear", (inner, hidden)),
            f"{at}mlp.up_proj.weight": ("Linear", (inner, hidden)),
            f"{at}mlp.down_proj.weight": ("Linear", (hidden, inner)),
            f"{at}input_layernorm.weight": ("LlamaRMSNorm", (hidden,)),
            f"{at}post_attention_layernorm.weight": ("LlamaRMSNorm", (hidden,)),
        }
    config = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "rope_parameters": {"rope_theta": 10000.0},
        **more,
    }
    return parts(shapes, **config)


LLAMA_3_8B_PARTS = llama_parts(4096, 14336, 32, 32, 8, 128256, 8192)
LLAMA_3_8B = Architecture.of(LLAMA_3_8B_PARTS)
