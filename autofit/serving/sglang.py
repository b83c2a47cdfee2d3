"""KV cache size in SGLang: a share of the card holds weights and KV cache; no profiling pass is run.

sglang/srt/model_executor/model_runner_kv_cache_mixin.py of 0.5.9, `profile_max_num_token`: the memory free
after the weights, less the share of the memory free before them that has to stay free. server_args.py of that
release, `_handle_gpu_memory_settings`: that share follows from the chunk of a prefill and the CUDA graphs.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autofit.serving.architecture import Architecture, LayerKind
from autofit.serving.engine import Engine, Options, Sizing, Spans, outside
from autofit.serving.pool import Group, Pool
from autofit.serving.weights import adapters_bytes, weights_bytes

_MIB = 1024**2
# For cards below each size in MiB: tokens of a prefill's chunk, and the largest batch of a CUDA graph with
# fewer than four ranks and with four or more.
_BY_MEMORY = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (90 * 1024, 8192, 256, 512),
    (160 * 1024, 8192, 256, 512),
    (math.inf, 16384, 512, 512),
)
_MANY_RANKS = 4
_METADATA_MIB, _LEAST_CHUNK, _MIB_A_TOKEN, _MIB_A_SEQUENCE = 512, 2048, 1.5, 2
_LARGE_CARD_MIB, _LEAST_OF_LARGE_MIB = 60 * 1024, 10 * 1024
_MIB_A_RANK = 128
_WINDOW_SHARE = 0.8  # `swa_full_tokens_ratio`: tokens of layers with a window, as a share of the others'
_STATE_SHARE = 0.9  # `mamba_full_memory_ratio`: memory of states, as a share of that of keys and values


def size(architecture: Architecture, given: Options) -> Sizing:
    """Divides a card's memory into weights, activations and KV cache, as SGLang 0.5.9 does.

    Args:
        given: options of the server; None fields are filled in.
    """
    total_mib = given.gpu.total_bytes / _MIB
    chunk, graphs = _by_memory(total_mib, given.num_ranks)
    chunk = given.max_num_batched_tokens or chunk
    kept_mib = (
        _METADATA_MIB
        + max(chunk, _LEAST_CHUNK) * _MIB_A_TOKEN
        + graphs * _MIB_A_SEQUENCE
        + given.num_ranks * _MIB_A_RANK
    )
    if total_mib > _LARGE_CARD_MIB:
        kept_mib = max(kept_mib, _LEAST_OF_LARGE_MIB)
    share = given.utilization or round((total_mib - kept_mib) / total_mib, 3)
    options = replace(
        given,
        utilization=share,
        max_num_batched_tokens=chunk,
        max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len or architecture.max_positions,
        block_size=given.block_size or 1,
    )
    ranks, element = given.num_ranks, given.element_bytes
    weights = weights_bytes(architecture, ranks, element)
    if given.max_loras:
        weights += adapters_bytes(
            architecture, ranks, element, max_loras=given.max_loras, max_lora_rank=given.max_lora_rank
        )
    before = outside(given.gpu, ranks, context=True, nccl=True, kernels=False)
    # The share is of the memory that is free once context and NCCL exist.
    counted = Spans(
        low_bytes=round(before.low_bytes * share),
        likely_bytes=round(before.likely_bytes * share),
        high_bytes=round(before.high_bytes * share),
        parts={name: round(num_bytes * share) for name, num_bytes in before.parts.items()},
    )
    sizing = Sizing(
        options=options,
        usable_bytes=int(given.gpu.total_bytes * share),
        weights_bytes=weights,
        activation_bytes=0,
        outside=counted,
        graphs=Spans(),
        pool=Pool(block_size=1, block_bytes=1, num_blocks=0, groups=()),
        notes=_notes(architecture, given, share),
    )
    return replace(sizing, pool=_pool(architecture, options, sizing.left_bytes))


def _by_memory(total_mib: float, num_ranks: int) -> tuple[int, int]:
    for most, chunk, few, many in _BY_MEMORY:
        if total_mib < most:
            return chunk, few if num_ranks < _MANY_RANKS else many
    raise AssertionError("the last row has no end")


def _pool(architecture: Architecture, options: Options, left_bytes: int) -> Pool:
    """KV cache in the given bytes, as SGLang divides it between full and sliding-window layers."""
    assert options.block_size is not None
    layers, ranks, element = architecture.kept, options.num_ranks, options.kv_element_bytes
    windowed = [layer for layer in layers if layer.kind is LayerKind.SLIDING]
    kept = [layer for layer in layers if layer.kind is not LayerKind.STATE]
    share = _WINDOW_SHARE if 0 < len(windowed) < len(kept) else 1.0
    token_bytes = math.ceil(
        sum(
            layer.token_bytes(ranks, element) * (share if layer.kind is LayerKind.SLIDING else 1)
            for layer in kept
        )
    )
    block_size = options.block_size
    groups = (
        [Group(kind=LayerKind.FULL, num_layers=len(kept), blocks_of=lambda length: -(-length // block_size))]
        if kept
        else []
    )
    if kept and len(kept) < len(layers):
        left_bytes = int(left_bytes / (1 + _STATE_SHARE))
    return Pool.of(left_bytes, block_size, token_bytes * block_size, groups)


def _notes(architecture: Architecture, given: Options, share: float) -> tuple[str, ...]:
    notes = [
        "activations and CUDA graphs take what lies beyond the share: the engine runs no pass to find out"
    ]
    if given.utilization is None:
        notes.append(f"--mem-fraction-static {share:g} is the engine's own choice for this card")
    if architecture.parts.is_multimodal and given.utilization is None:
        notes.append("for models that read images the engine lowers its share further, which is not counted")
    if any(layer.kind is LayerKind.STATE for layer in architecture.layers):
        notes.append(f"states take {_STATE_SHARE:g} times the memory of keys and values")
    return tuple(notes)


ENGINE = Engine(
    name="sglang",
    releases={"0.5": size},
    start="python -m sglang.launch_server --model-path",
    flags={
        "num_ranks": "--tp-size",
        "utilization": "--mem-fraction-static",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "max_num_seqs": "--max-running-requests",
        "max_model_len": "--context-length",
        "block_size": "--page-size",
        "kv_dtype": "--kv-cache-dtype",
        "dtype": "--dtype",
        "max_loras": "--enable-lora --max-loras-per-batch",
        "max_lora_rank": "--max-lora-rank",
    },
    kv_dtypes={"auto": "auto", "fp8": "fp8_e4m3"},
    dtypes={"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"},
)
