"""Weights that one rank of a server loads: its part of every parameter, in the served dtype.

Engines split matrices by columns or rows over the ranks and the embedding by its rows, and repeat on each
rank small parameters and those needed whole (vllm/model_executor/layers/linear.py and
vocab_parallel_embedding.py of vLLM 0.20.2; SGLang's and TGI's are of the same descent).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from autofit.serving.architecture import KEYS, MERGED, Architecture, module_of, rows_of
from autofit_workers.spec.model_parts import Parameter

_VALUES = ("v_proj", "v", "value", "wv")
# Routers and the first halves of low-rank projections are whole on each rank (`ReplicatedLinear`).
ROUTERS = ("gate", "router", "shared_expert_gate")
_REPEATED = ("q_a_proj", "kv_a_proj_with_mqa", *ROUTERS)
# The bias of a matrix that is split by rows is added once, after the sum, and whole on each rank.
BY_ROWS = ("o_proj", "out_proj", "dense", "dense_4h_to_h", "down_proj", "c_proj", "fc2", "o", "wo")
# vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE
_VOCABULARY_MULTIPLE = 64


def weights_bytes(architecture: Architecture, num_ranks: int, element_bytes: int) -> int:
    """Bytes of one rank's weights, with the tables of rotary embeddings.

    Args:
        element_bytes: bytes of an element of a weight that is not quantized.
    """
    stored = stored_bits(architecture)
    whole = 0.0
    for parameter in architecture.parts.parameters:
        num_elements = elements_of_rank(parameter, architecture, num_ranks)
        bits = stored(parameter)
        whole += num_elements * (element_bytes if bits is None else bits / 8)
    return math.ceil(whole) + rotations_bytes(architecture, element_bytes)


def elements_of_rank(parameter: Parameter, architecture: Architecture, num_ranks: int) -> int:
    """Number of a parameter's elements on one of `num_ranks` ranks of tensor parallelism."""
    whole, module = math.prod(parameter.shape), module_of(parameter.name)
    if len(parameter.shape) == 2 and parameter.shape[0] >= architecture.vocab_size:
        padded = -(-parameter.shape[0] // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        return padded // num_ranks * parameter.shape[1]
    if "Norm" in parameter.owner or "Embedding" in parameter.owner or module in _REPEATED:
        return whole
    if len(parameter.shape) == 1 and module in BY_ROWS:
        return whole
    if module in KEYS + _VALUES:
        return whole // min(num_ranks, max(1, architecture.num_kv_heads))
    if module in MERGED:
        heads = rows_of(parameter) // max(1, architecture.head_size)
        of_keys_and_values = max(0, heads - architecture.num_heads)
        of_rank = architecture.num_heads // num_ranks + 2 * max(1, of_keys_and_values // 2 // num_ranks)
        return whole * of_rank // heads if heads else whole
    return -(-whole // num_ranks)


def rotations_bytes(architecture: Architecture, element_bytes: int) -> int:
    """Bytes of the cos and sin tables of rotary embeddings, one table for each kind of rotation.

    Source: vllm/model_executor/layers/rotary_embedding/base.py, `_compute_cos_sin_cache`, in the dtype of the
    model.
    """
    rotations: Mapping[str, Any] = architecture.parts.config.get("rope_parameters") or {}
    if not rotations or architecture.max_positions is None:
        return 0
    nested = [each for each in rotations.values() if isinstance(each, Mapping)]
    size = architecture.parts.config.get("qk_rope_head_dim") or architecture.head_size
    return sum(
        architecture.max_positions * int(size * each.get("partial_rotary_factor", 1)) * element_bytes
        for each in nested or [rotations]
    )


def adapters_bytes(
    architecture: Architecture, num_ranks: int, element_bytes: int, *, max_loras: int, max_lora_rank: int
) -> int:
    """Bytes of the buffers for LoRA adapters on one rank, at every linear layer that can have one.

    Source: vllm/lora/layers/: `lora_a_stacked` of (max_loras, 1, rank, inputs) and `lora_b_stacked` of
    (max_loras, 1, outputs, rank); inputs and outputs are those of the rank's part of the matrix.

    Args:
        max_loras: number of adapters on the card at once.
        max_lora_rank: largest rank of an adapter's matrices.
    """
    numbers = 0
    for parameters in architecture.parameters_of:
        for name, parameter in parameters.items():
            if len(parameter.shape) != 2 or not name.endswith(".weight") or module_of(name) in _REPEATED:
                continue
            rows, columns = parameter.shape
            share = elements_of_rank(parameter, architecture, num_ranks) / (rows * columns)
            split_columns = module_of(name) in BY_ROWS
            numbers += math.ceil(rows * (1 if split_columns else share)) + math.ceil(
                columns * (share if split_columns else 1)
            )
    return numbers * max_loras * max_lora_rank * element_bytes


# Bits of a weight with its scales, by the checkpoint's name of the method (`quant_method`).
_SCALE_BITS, _FP8_BLOCK = 32, 128 * 128


def stored_bits(architecture: Architecture) -> Callable[[Parameter], float | None]:
    """Makes the function that returns how many bits an element of a parameter takes in a quantized model.

    That function returns None for a parameter that is not quantized, as for all of a model that is not.
    """
    config: Mapping[str, Any] = architecture.parts.config.get("quantization_config") or {}
    method = str(config.get("quant_method", ""))
    if not method:
        return lambda _: None
    group = int(config.get("group_size") or 128)
    bits = {
        "fp8": 8 + _SCALE_BITS / _FP8_BLOCK,
        "fbgemm_fp8": 8.0,
        "awq": 4 + (16 + 4) / group,
        "gptq": int(config.get("bits") or 4) * (1 + 1 / group) + 16 / group,
        "mxfp4": 4 + 8 / 32,
        "compressed-tensors": float(_compressed_bits(config)),
        "bitsandbytes": 4 + 32 / 64 if config.get("load_in_4bit") else 8.0,
    }.get(method)
    kept = tuple(config.get("modules_to_not_convert") or config.get("ignore") or ("lm_head",))

    def of(parameter: Parameter) -> float | None:
        is_matrix = len(parameter.shape) > 1 and ".layers." in f".{parameter.name}"
        if bits is None or not is_matrix or any(each in parameter.name for each in kept):
            return None
        if "Embedding" in parameter.owner or (method == "mxfp4" and "experts" not in parameter.name):
            return None
        return bits

    return of


def _compressed_bits(config: Mapping[str, Any]) -> float:
    for group in (config.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        bits, size = int(weights.get("num_bits") or 16), weights.get("group_size")
        return bits + (16 / int(size) if size and int(size) > 0 else 0)
    return 16
