"""What generation kept on the device in releases of transformers that today's does not keep, for all models.

    up to 4.38    caches are tuples: those of the pass before live until a pass has ended, beside the new ones
    up to 4.44    logits are of the whole prompt, and float32 besides; those of a pass live until the next one
                  has its own
    up to 4.38    each layer keeps the cosines and sines of all positions, in buffers

Source: `generation/utils.py`, `models/llama/modeling_llama.py` and `models/qwen2/modeling_qwen2.py` of
4.34.1, 4.36.2 and 4.38.2.
"""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.workload.libraries.importing import imported


def build(config_class: str, config: dict[str, Any], *, generates: bool = True) -> torch.nn.Module:
    """A causal language model as those releases have it, on the CPU.

    Args:
        generates: whether passes follow each other in `generate`, which keeps the outputs of one for
            the next.
    """
    transformers: Any = imported("transformers", config_class)
    made = getattr(transformers, config_class)(**config)
    model: Any = transformers.AutoModelForCausalLM.from_config(made)
    size = (made.max_position_embeddings, made.hidden_size // made.num_attention_heads)
    for layer in model.model.layers:
        for name in ("cos_cached", "sin_cached"):
            layer.self_attn.register_buffer(name, torch.zeros(size))
    kept = _Kept(keeps_outputs=generates)
    model.register_forward_pre_hook(kept.before, with_kwargs=True)
    model.register_forward_hook(kept.after)
    built: torch.nn.Module = model
    return built


class _Kept:
    """What a pass keeps beyond its use."""

    def __init__(self, *, keeps_outputs: bool) -> None:
        self._keeps_outputs = keeps_outputs
        self._outputs: Any = None
        self._held: list[torch.Tensor] = []

    def before(self, _model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """All positions have logits, and the caches of the pass before stay."""
        cache = kwargs.get("past_key_values")
        self._held = [
            tensor
            for layer in getattr(cache, "layers", ())
            for tensor in (layer.keys, layer.values)
            if tensor is not None
        ]
        return args, {name: value for name, value in kwargs.items() if name != "logits_to_keep"}

    def after(self, _model: Any, _args: Any, outputs: Any) -> None:
        """Logits are float32, and those of the pass before go now."""
        outputs.logits = outputs.logits.float()
        self._outputs = outputs.logits if self._keeps_outputs else None
        self._held.clear()


def no_loss(_model: torch.nn.Module, _batch: Any) -> torch.Tensor:
    """Stands where generation takes the place of the loss."""
    raise NotImplementedError("a generation has none")
