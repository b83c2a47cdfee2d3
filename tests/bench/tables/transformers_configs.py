"""Language models of xMem's experiments as values, because nothing may be downloaded to make them.

Values: each model's `config.json` on the Hugging Face hub, `model_type` included. What is not listed
has the default of its configuration class.
"""

from __future__ import annotations

from typing import Any

import torch

SEQUENCE_LENGTH = 128  # wikitext-2 truncated at 128 tokens, padded to the longest of the batch

_CONFIGS: dict[str, dict[str, Any]] = {
    "EleutherAI/gpt-neo-125M": {
        "model_type": "gpt_neo",
        "attention_types": [[["global", "local"], 6]],
        "attention_dropout": 0.0,
        "embed_dropout": 0.0,
        "resid_dropout": 0.0,
        "hidden_size": 768,
        "num_heads": 12,
        "num_layers": 12,
        "max_position_embeddings": 2048,
        "vocab_size": 50257,
        "window_size": 256,
    },
    "T5-small": {
        "model_type": "t5",
        "d_ff": 2048,
        "d_kv": 64,
        "d_model": 512,
        "dropout_rate": 0.1,
        "num_heads": 8,
        "num_layers": 6,
        "vocab_size": 32128,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "distilbert/distilgpt2": {
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 6,
        "n_positions": 1024,
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "vocab_size": 50257,
    },
    "t5-base": {
        "model_type": "t5",
        "d_ff": 3072,
        "d_kv": 64,
        "d_model": 768,
        "dropout_rate": 0.1,
        "num_heads": 12,
        "num_layers": 12,
        "vocab_size": 32128,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "openai-community/gpt2": {
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "vocab_size": 50257,
    },
    "facebook/opt-350m": {
        "model_type": "opt",
        "attention_dropout": 0.0,
        "do_layer_norm_before": False,
        "dropout": 0.1,
        "ffn_dim": 4096,
        "hidden_size": 1024,
        "max_position_embeddings": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 50272,
        "word_embed_proj_dim": 512,
    },
    "facebook/opt-125m": {
        "model_type": "opt",
        "attention_dropout": 0.0,
        "dropout": 0.1,
        "ffn_dim": 3072,
        "hidden_size": 768,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "vocab_size": 50272,
        "word_embed_proj_dim": 768,
    },
}


def build(name: str) -> torch.nn.Module:
    """The model with random weights, in training mode, as `from_config` makes it."""
    import transformers

    if int(transformers.__version__.partition(".")[0]) < 5:
        _take_padding_for_granted()
    values = dict(_CONFIGS[name])
    kind = values.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **values)
    auto = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM
    model: torch.nn.Module = auto.from_config(config)
    return model


def _take_padding_for_granted() -> None:
    """Transformers 4 looks whether a mask is all ones, and drops it then; that of padded texts is not."""
    from transformers.modeling_attn_mask_utils import AttentionMaskConverter

    AttentionMaskConverter._ignore_causal_mask_sdpa = staticmethod(lambda *_args, **_kwargs: False)
