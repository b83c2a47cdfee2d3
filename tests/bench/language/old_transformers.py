"""What releases of transformers before 4.39 kept on the device that today's does not, for its Llama.

    up to 4.37    each layer keeps the cosines and sines of all positions, in buffers, and makes its own
                  copies of those of the batch's positions
    4.38.0        each layer computes them itself, and keeps those of the last batch. A mask of all pairs of
                  positions is a buffer, of 8 bytes a pair; in the type of the model it goes to attention, of
                  which each layer makes its own copy, of the batch's positions, and lays out queries, keys
                  and values anew

Source: `models/llama/modeling_llama.py` of 4.36.2, 4.37.2 and 4.38.0. In all of them logits are float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from autofit_workers.workload.libraries.importing import imported

_ATTENTION = "sdpa_of_4_38"


class Until437:
    """Releases up to 4.37."""

    def build(self, config: Any) -> Any:
        """A model on the CPU, with the buffers of that release."""
        model = _llama(config)
        for layer in model.model.layers:
            layer.self_attn.register_forward_pre_hook(self._own_positions, with_kwargs=True)
            for name in ("cos_cached", "sin_cached"):
                layer.self_attn.register_buffer(name, _positions(config, config.max_position_embeddings))
        return model

    def renew(self, llama: Any) -> None:
        """Lets go of what only a forward pass has put in the place of a new model's buffers."""
        for layer in llama.model.layers:
            for name in ("cos_cached", "sin_cached"):
                if len(getattr(layer.self_attn, name)) > llama.config.max_position_embeddings:
                    shorter = _positions(llama.config, llama.config.max_position_embeddings, like=llama)
                    setattr(layer.self_attn, name, shorter)

    def forward(self, model: Any, llama: Any, tokens: torch.Tensor) -> Any:
        """The outputs of a batch."""
        length = tokens.shape[1]
        for layer in llama.model.layers:
            for name in ("cos_cached", "sin_cached"):
                if length > len(getattr(layer.self_attn, name)):
                    setattr(layer.self_attn, name, _positions(llama.config, length, like=llama))
        return model(tokens)

    def _own_positions(self, _module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cos, sin = kwargs["position_embeddings"]
        return args, kwargs | {"position_embeddings": (cos.clone(), sin.clone())}


class Of438:
    """Release 4.38.0."""

    def build(self, config: Any) -> Any:
        """A model on the CPU, with the buffers of that release."""
        transformers: Any = imported("transformers", _ATTENTION)
        transformers.AttentionInterface.register(_ATTENTION, _attend)
        model = _llama(config)
        model.set_attn_implementation(_ATTENTION)
        self._make_mask(model)
        for layer in model.model.layers:
            layer.self_attn.register_forward_pre_hook(self._own_positions, with_kwargs=True)
        return model

    def renew(self, llama: Any) -> None:
        """Lets go of what only a forward pass has put in the place of a new model's buffers."""
        for layer in llama.model.layers:
            layer.self_attn.last_positions = None
        if llama.causal_mask is None:
            self._make_mask(llama)

    def forward(self, model: Any, llama: Any, tokens: torch.Tensor) -> Any:
        """The outputs of a batch. A mask that is too small is made anew on the CPU, of twice that size."""
        length, num_positions = tokens.shape[1], llama.config.max_position_embeddings
        if length > num_positions:
            llama.causal_mask = None
            num_positions *= 2
        mask = torch.zeros((1, 1, num_positions, num_positions), dtype=llama.dtype, device=tokens.device)
        return model(tokens, attention_mask=mask)

    @staticmethod
    def _make_mask(llama: Any) -> None:
        size = (llama.config.max_position_embeddings,) * 2
        llama.register_buffer("causal_mask", torch.ones(size, dtype=torch.int64, device=llama.device))

    def _own_positions(self, module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cos, sin = kwargs["position_embeddings"]
        module.last_positions = cos.clone(), sin.clone()
        return args, kwargs | {"position_embeddings": module.last_positions}


def _attend(
    _module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    positions = torch.arange(query.shape[2], device=query.device)
    mask = attention_mask[:, :, positions, : key.shape[2]]
    # In the cache keys and values are not laid out so, of that release: beside it they are copies.
    query, key, value = (each.clone(memory_format=torch.contiguous_format) for each in (query, key, value))
    attended = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attended.transpose(1, 2).contiguous(), None


def _llama(config: Any) -> Any:
    transformers: Any = imported("transformers", _ATTENTION)
    return transformers.LlamaForCausalLM(config)


def _positions(config: Any, length: int, *, like: Any = None) -> torch.Tensor:
    shape = (length, config.hidden_size // config.num_attention_heads)
    if like is None:
        return torch.zeros(shape)
    return torch.zeros(shape, dtype=like.dtype, device=like.device)
