"""Layers of a language model, read from its parameters, and the KV cache bytes that they take per token.

A layer is recognised by its modules, not by the name of its architecture: projections of keys and values with
a row for each head's element (`k_proj`, or merged as `qkv_proj`), a compressed projection
(`kv_a_proj_with_mqa`: latent attention), attention to another sequence (`cross_attn`, `encoder_attn`), or a
state that does not grow (`A_log`). Windows come from the configuration (`layer_types`, `sliding_window`), as
parameters do not show them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autofit_workers.spec.model_parts import ModelParts, Parameter
from autofit_workers.spec.pythons import Self, StrEnum

_IN_A_LAYER = re.compile(r"(?P<prefix>.*?)\b(?:layers|h|blocks|block)\.(?P<number>\d+)\.(?P<rest>.+)")
_OF_ANOTHER_PART = re.compile(r"vision|visual|image|audio|(?<!de)(?<!\w)encoder\b")
KEYS = ("k_proj", "k", "key", "wk")
MERGED = ("qkv_proj", "c_attn", "query_key_value", "Wqkv", "qkv")
_CROSS = ("cross_attn", "encoder_attn", "EncDecAttention")
_SELF = ("self_attn", "self_attention", "SelfAttention")
_LATENT, _STATE = "kv_a_proj_with_mqa", "A_log"
# Fields of transformers' configurations for the last dimension of a state, by architecture.
_STATE_HEAD = ("mamba_d_head", "linear_value_head_dim", "mamba_head_dim", "head_dim")
_STATE_SIZE = ("mamba_d_state", "linear_key_head_dim", "ssm_state_size", "state_size")


class LayerKind(StrEnum):
    """Kind of a layer by what it caches: all tokens, recent tokens, another sequence, or a state."""

    FULL = "full attention"
    SLIDING = "sliding window"
    LATENT = "latent attention"
    CROSS = "cross attention"
    STATE = "state space"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Size of the cache that one layer of a model keeps for later tokens: keys and values, or a state.

    Attributes:
        num_kv_heads: number of heads of keys and values; 1 for latent attention (MLA), whose cache each rank
            keeps whole.
        width: number of elements cached per token and head, key and value together.
        window: tokens of a sliding window; 0 without one.
        conv_rows, conv_columns: for a state space layer, the channels of its convolution, and the steps that
            are kept of each channel.
        state_numbers: number of elements of the state itself.
    """

    kind: LayerKind
    num_kv_heads: int = 0
    width: int = 0
    window: int = 0
    conv_rows: int = 0
    conv_columns: int = 0
    state_numbers: int = 0

    def heads_of(self, num_ranks: int) -> int:
        """Number of KV heads on each of `num_ranks` ranks; at least 1, as too few heads are replicated."""
        return self.num_kv_heads if self.kind is LayerKind.LATENT else max(1, self.num_kv_heads // num_ranks)

    def token_bytes(self, num_ranks: int, element_bytes: int) -> int:
        """Bytes of keys and values that a rank caches per token; 0 for a state space layer."""
        if self.kind is LayerKind.STATE:
            return 0
        return self.heads_of(num_ranks) * self.width * element_bytes

    def state_bytes(self, num_ranks: int, element_bytes: int) -> int:
        """Bytes of the state that a rank keeps for a sequence of any length; 0 for an attention layer."""
        numbers = self.conv_rows * self.conv_columns + self.state_numbers
        return -(-numbers // num_ranks) * element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Structure of a language model, as far as the memory of a server depends on it.

    Attributes:
        max_positions: longest sequence that the model was made for; None if there is no limit.
        layers: layers of the text model, in order.
        parameters_of: parameters of each layer, by their names within the layer.
    """

    parts: ModelParts
    hidden_size: int
    vocab_size: int
    num_heads: int
    head_size: int
    max_positions: int | None
    layers: tuple[Layer, ...]
    parameters_of: tuple[Mapping[str, Parameter], ...]

    @classmethod
    def of(cls, parts: ModelParts) -> Self:
        """Reads a model's structure, with its layers, from its config and parameters."""
        config = parts.config
        hidden_size, num_heads = config["hidden_size"], config.get("num_attention_heads", 0)
        head_size = (
            config.get("head_dim") or config.get("d_kv") or (hidden_size // num_heads if num_heads else 0)
        )
        by_layer = _by_layer(parts.parameters)
        return cls(
            parts=parts,
            hidden_size=hidden_size,
            vocab_size=config["vocab_size"],
            num_heads=num_heads,
            head_size=head_size,
            max_positions=config.get("max_position_embeddings"),
            layers=tuple(
                _layer(number, parameters, config, num_heads, head_size)
                for number, parameters in enumerate(by_layer)
            ),
            parameters_of=tuple(by_layer),
        )

    @property
    def kept(self) -> tuple[Layer, ...]:
        """Layers to count for the KV cache; a layer with both self and cross attention is there twice."""
        both = (
            replace(layer, kind=LayerKind.CROSS)
            for layer, parameters in zip(self.layers, self.parameters_of, strict=True)
            if layer.kind is not LayerKind.CROSS and _looks_at(parameters, _CROSS)
        )
        return (*self.layers, *both)

    @property
    def num_kv_heads(self) -> int:
        """Largest number of key and value heads in any layer; 1 for latent attention."""
        return max((layer.num_kv_heads for layer in self.layers), default=0)

    @property
    def window(self) -> int:
        """Largest sliding window of any layer, in tokens; 0 if no layer has one."""
        return max((layer.window for layer in self.layers), default=0)

    def token_bytes(self, num_ranks: int, element_bytes: int) -> int:
        """Bytes that a rank keeps per token in all layers, as if no layer had a sliding window."""
        return sum(layer.token_bytes(num_ranks, element_bytes) for layer in self.kept)


def _by_layer(parameters: Iterable[Parameter]) -> list[dict[str, Parameter]]:
    """Parameters of each layer of the text model, by their names within the layer.

    The text model is the longest list of layers that is not part of a vision or audio model.
    """
    found: dict[str, dict[int, dict[str, Parameter]]] = defaultdict(lambda: defaultdict(dict))
    for parameter in parameters:
        match = _IN_A_LAYER.fullmatch(parameter.name)
        if match and not _OF_ANOTHER_PART.search(match["prefix"]):
            found[match["prefix"]][int(match["number"])][match["rest"]] = parameter
    layers = max(found.values(), key=len, default={})
    return [layers[number] for number in sorted(layers)]


def _looks_at(parameters: Iterable[str], modules: Iterable[str]) -> bool:
    return any(f"{module}." in name for name in parameters for module in modules)


def module_of(name: str) -> str:
    """Last part of the name of the module that a parameter belongs to, as `q_proj`; empty if it has none."""
    return name.split(".")[-2] if name.count(".") else ""


def rows_of(parameter: Parameter) -> int:
    """Number of output features of a linear layer; handles transformers' `Conv1D`, which is transposed."""
    return parameter.shape[-1] if parameter.owner == "Conv1D" else parameter.shape[0]


def _layer(
    number: int,
    parameters: Mapping[str, Parameter],
    config: Mapping[str, Any],
    num_heads: int,
    head_size: int,
) -> Layer:
    """Layer of a model, with its kind of cache, recognized by the names and shapes of its parameters."""
    for name, parameter in parameters.items():
        if name.endswith(_STATE):
            return _with_state(parameter, parameters, config)
    by_module = {
        module_of(name): parameter for name, parameter in parameters.items() if name.endswith(".weight")
    }
    if _LATENT in by_module:
        # Compressed keys and values, and the part of the keys with positions: one vector for all heads.
        return Layer(kind=LayerKind.LATENT, num_kv_heads=1, width=by_module[_LATENT].shape[0])
    keys = next((by_module[name] for name in KEYS if name in by_module), None)
    merged = next((by_module[name] for name in MERGED if name in by_module), None)
    if keys is not None:
        num_kv_heads = rows_of(keys) // head_size
    elif merged is not None:
        num_kv_heads = (rows_of(merged) // head_size - num_heads) // 2
    else:
        num_kv_heads = config.get("num_key_value_heads") or num_heads
    is_cross = _looks_at(parameters, _CROSS) and not _looks_at(parameters, _SELF)
    types = config.get("layer_types") or ()
    kind_by_config = types[number] if number < len(types) else ""
    window = 0
    if kind_by_config == "sliding_attention" or (not types and config.get("sliding_window")):
        window = config.get("sliding_window") or 0
    elif kind_by_config == "chunked_attention":
        window = config.get("attention_chunk_size") or 0
    kind = LayerKind.CROSS if is_cross else LayerKind.SLIDING if window else LayerKind.FULL
    return Layer(kind=kind, num_kv_heads=num_kv_heads, width=2 * head_size, window=window)


def _with_state(decay: Parameter, parameters: Mapping[str, Parameter], config: Mapping[str, Any]) -> Layer:
    """State space layer, whose size follows from the shape of its decay parameter.

    That shape is (channels, state size), or (heads,); then the config says the sizes of a head and its state.

    Args:
        decay: the decay parameter, such as Mamba's `A_log`.
        parameters: all parameters of the layer, by their names within it.
    """
    state = math.prod(decay.shape)
    if len(decay.shape) == 1:
        state *= _first(config, _STATE_HEAD) * _first(config, _STATE_SIZE)
    convolution = next((each for name, each in parameters.items() if name.endswith("conv1d.weight")), None)
    rows, columns = (convolution.shape[0], convolution.shape[-1] - 1) if convolution else (0, 0)
    return Layer(kind=LayerKind.STATE, conv_rows=rows, conv_columns=columns, state_numbers=state)


def _first(config: Mapping[str, Any], names: Iterable[str]) -> int:
    return next((config[name] for name in names if isinstance(config.get(name), int)), 1)
