"""KV cache size in vLLM: it runs a pass over the largest batch, and the memory left is the KV cache.

0.2     vllm/worker/worker.py of 0.2.5, `profile_num_available_blocks`: all memory of the card that is
        not free, including the allocator's cache and the context. NCCL's stream keeps the memory of reduced
        tensors from being reused (`TORCH_NCCL_AVOID_RECORD_STREAMS` came with 0.2.7).
0.6     vllm/worker/worker.py of 0.6.4, `determine_num_available_blocks`: the peak of tensors, and all
        memory of the card outside PyTorch's allocator, context included.
0.7     vllm/utils.py of 0.7.0, `memory_profiling`: as 0.6, less the memory taken before the engine's first
        measurement of the card, after the context and before NCCL (vllm/worker/worker.py, `init_device`).
0.8     vllm/v1/worker/gpu_worker.py of 0.8.5, `determine_available_memory`: as 0.6, in chunks.
0.11    the same file of 0.11.0: as 0.7, but the first measurement comes after NCCL. Layers with windows
        have blocks of their own.
0.20    the same file of 0.20.2: CUDA graphs are estimated and counted, and logits no longer sorted.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from autofit.serving.architecture import Architecture, LayerKind
from autofit.serving.engine import Engine, Options, Sizing, Spans, outside
from autofit.serving.pool import Pool, grouped, uniform
from autofit.serving.profile_run import (
    Pass,
    Sampler,
    masking_sampler,
    platform,
    replay,
    sorted_sampler,
    sorted_sampler_in_half,
)
from autofit.serving.weights import adapters_bytes, weights_bytes

_MIB, _GIB = 1024**2, 1024**3
_BLOCK_SIZE = 16
_LEAST_BATCHED = 2048
_LONG, _CHUNK = 32768, 512  # arg_utils.py of 0.6.4: longer ones are processed in chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules by which one release of vLLM sizes its KV cache.

    Attributes:
        torch_release: release of PyTorch that this release of vLLM requires.
        utilization: default of `gpu_memory_utilization`.
        sampler: allocates what the sampling of next tokens needs.
        counts_context, counts_nccl, counts_cache, counts_graphs: whether it subtracts the memory of the CUDA
            context, of NCCL, of the allocator's unused cached blocks, and of CUDA graphs.
        keeps_gate, keeps_reduced, most_expert_tokens: see `profile_run.Pass`.
        chunks: whether all prompts are processed in chunks.
        chunks_long: whether the prompts of models with long sequences are.
        spares_a100: whether an A100 gets the smaller default batches of small cards.
        groups: whether each kind of layer, such as sliding window, has blocks of its own (the hybrid KV cache
            manager).
    """

    torch_release: tuple[int, int]
    utilization: float
    sampler: Sampler
    counts_context: bool = False
    counts_nccl: bool = True
    counts_cache: bool = False
    counts_graphs: bool = False
    keeps_gate: bool = False
    keeps_reduced: bool = False
    chunks: bool = False
    chunks_long: bool = False
    spares_a100: bool = False
    groups: bool = False
    most_expert_tokens: int = 32768  # vllm/envs.py of 0.6.4, VLLM_FUSED_MOE_CHUNK_SIZE


_RULES = {
    "0.20": Rules(
        torch_release=(2, 11),
        utilization=0.92,  # vllm/config/cache.py
        sampler=masking_sampler,
        counts_nccl=False,
        counts_graphs=True,
        chunks=True,
        spares_a100=True,
        groups=True,
        most_expert_tokens=1 << 40,
    ),
    "0.11": Rules(
        torch_release=(2, 8),
        utilization=0.9,
        sampler=sorted_sampler,
        counts_nccl=False,
        chunks=True,
        spares_a100=True,
        groups=True,
    ),
    "0.8": Rules(
        torch_release=(2, 6), utilization=0.9, sampler=sorted_sampler, counts_context=True, chunks=True
    ),
    "0.7": Rules(torch_release=(2, 5), utilization=0.9, sampler=sorted_sampler, chunks_long=True),
    "0.6": Rules(
        torch_release=(2, 5), utilization=0.9, sampler=sorted_sampler, counts_context=True, chunks_long=True
    ),
    "0.2": Rules(
        torch_release=(2, 1),
        utilization=0.9,
        sampler=sorted_sampler_in_half,
        counts_context=True,
        counts_cache=True,
        keeps_gate=True,
        keeps_reduced=True,
    ),
}


def _size(rules: Rules, architecture: Architecture, given: Options) -> Sizing:
    """Divides a card's memory into weights, activations and KV cache by the rules of one release of vLLM."""
    options = _filled(rules, architecture, given)
    assert options.max_num_batched_tokens is not None
    assert options.max_num_seqs is not None
    assert options.utilization is not None
    ranks, size = options.num_ranks, options.element_bytes
    weights = weights_bytes(architecture, ranks, size)
    if options.max_loras:
        weights += adapters_bytes(
            architecture,
            ranks,
            size,
            max_loras=options.max_loras,
            max_lora_rank=options.max_lora_rank,
        )
    one = Pass(
        architecture=architecture,
        num_ranks=ranks,
        num_tokens=options.max_num_batched_tokens,
        num_seqs=min(options.max_num_seqs, options.max_num_batched_tokens),
        element_bytes=size,
        platform=platform(options.gpu.architecture, rules.torch_release),
        num_sms=options.gpu.num_sms,
        keeps_gate=rules.keeps_gate,
        keeps_reduced=rules.keeps_reduced,
        most_expert_tokens=rules.most_expert_tokens,
    )
    activations = replay(one, rules.sampler)
    sizing = Sizing(
        options=options,
        usable_bytes=math.ceil(options.gpu.total_bytes * options.utilization),
        weights_bytes=weights,
        activation_bytes=activations.reserved_bytes if rules.counts_cache else activations.allocated_bytes,
        outside=outside(
            options.gpu,
            ranks,
            context=rules.counts_context,
            nccl=rules.counts_nccl,
            kernels=not rules.counts_context,
        ),
        graphs=_graphs(one, options.max_num_seqs) if rules.counts_graphs else Spans(),
        pool=Pool(block_size=1, block_bytes=1, num_blocks=0, groups=()),
        notes=_notes(rules, architecture),
    )
    return replace(sizing, pool=_pool(rules, architecture, options, sizing.left_bytes))


def _filled(rules: Rules, architecture: Architecture, given: Options) -> Options:
    """Copy of a server's options, with vLLM's defaults for options that were not given.

    Source: arg_utils.py, `get_batch_defaults`; config.py, `SchedulerConfig`.
    """
    length = given.max_model_len or architecture.max_positions or _LONG
    is_spared = rules.spares_a100 and "a100" in given.gpu.name.lower()
    is_large = given.gpu.total_bytes >= 70 * _GIB and not is_spared
    if rules.chunks:
        tokens, seqs = (8192, 1024) if is_large else (_LEAST_BATCHED, 256)
        tokens = min(tokens, (given.max_num_seqs or seqs) * length)
        seqs = min(seqs, given.max_num_batched_tokens or tokens)
    else:
        is_chunked = rules.chunks_long and length > _LONG and not architecture.window
        is_chunked = is_chunked and not architecture.parts.is_multimodal and not given.max_loras
        tokens, seqs = _CHUNK if is_chunked else max(length, _LEAST_BATCHED), 256
    return replace(
        given,
        utilization=given.utilization or rules.utilization,
        max_model_len=length,
        max_num_batched_tokens=given.max_num_batched_tokens or tokens,
        max_num_seqs=given.max_num_seqs or seqs,
        block_size=given.block_size or _BLOCK_SIZE,
    )


def _pool(rules: Rules, architecture: Architecture, options: Options, left_bytes: int) -> Pool:
    """KV cache in the given bytes, with one group of blocks or one for each kind of layer."""
    assert options.block_size is not None
    assert options.max_num_batched_tokens is not None
    kinds = {layer.kind for layer in architecture.kept}
    if not rules.groups or kinds <= {LayerKind.FULL, LayerKind.LATENT}:
        return uniform(
            architecture.kept,
            left_bytes,
            block_size=options.block_size,
            num_ranks=options.num_ranks,
            element_bytes=options.kv_element_bytes,
        )
    return grouped(
        architecture.kept,
        left_bytes,
        block_size=options.block_size,
        num_ranks=options.num_ranks,
        element_bytes=options.kv_element_bytes,
        state_bytes=options.element_bytes,
        num_batched_tokens=options.max_num_batched_tokens,
        num_encoder_tokens=architecture.max_positions or options.max_num_batched_tokens,
    )


# gpu_model_runner.py of 0.20.2, `profile_cudagraph_memory`: the first graph and, of each further one, what
# the second took, at least 1 MiB. 86 graphs were estimated at 0.73 GiB (vllm-project/vllm, pull request
# 39559), and one took 24 to 28 MiB at the most (22897).
_LOW_GRAPH_BYTES, _LIKELY_GRAPH_BYTES, _HIGH_GRAPH_BYTES = 1 * _MIB, 8 * _MIB, 26 * _MIB
_MOST_CAPTURED = 512


def _graphs(one: Pass, max_num_seqs: int) -> Spans:
    """Memory of CUDA graphs: piecewise ones for all captured batch sizes, and full ones for decoding.

    Source of the capture sizes: vllm/config/compilation.py.
    """
    largest = min(2 * max_num_seqs, _MOST_CAPTURED)
    pieces, whole = _num_captured(largest), _num_captured(min(max_num_seqs, largest))
    first = replay(replace(one, num_tokens=largest, num_seqs=1), None).allocated_bytes
    more = pieces + whole - 2
    low, likely, high = (
        first + more * each for each in (_LOW_GRAPH_BYTES, _LIKELY_GRAPH_BYTES, _HIGH_GRAPH_BYTES)
    )
    return Spans(low_bytes=low, likely_bytes=likely, high_bytes=high, parts={"CUDA graphs": likely})


def _num_captured(largest: int) -> int:
    """Number of batch sizes up to `largest` for which vLLM captures CUDA graphs.

    The sizes are 1, 2, 4, then multiples of 8 below 256, and multiples of 16 from 256 on.
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, _MOST_CAPTURED + 1, 16)]
    return sum(size <= largest for size in sizes)


def _notes(rules: Rules, architecture: Architecture) -> tuple[str, ...]:
    """Sentences on memory that a release of vLLM does not count, and on what was assumed."""
    notes = []
    if not rules.counts_graphs:
        notes.append(
            "CUDA graphs come on top: this release does not count them, and they take what is left beyond "
            "the utilization"
        )
    if not rules.counts_context:
        notes.append("the CUDA context is not counted by this release: it lies beyond the utilization")
    if architecture.parts.is_multimodal:
        notes.append("the encoder's activations are not included: only those of the text model")
    if any(layer.kind is LayerKind.CROSS for layer in architecture.kept):
        notes.append(
            "layers of cross attention have blocks like the others, for the length of their own input"
        )
    return tuple(notes)


_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ENGINE = Engine(
    name="vllm",
    releases={release: functools.partial(_size, rules) for release, rules in _RULES.items()},
    start="vllm serve",
    flags={
        "num_ranks": "--tensor-parallel-size",
        "utilization": "--gpu-memory-utilization",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "max_num_seqs": "--max-num-seqs",
        "max_model_len": "--max-model-len",
        "block_size": "--block-size",
        "kv_dtype": "--kv-cache-dtype",
        "dtype": "--dtype",
        "max_loras": "--enable-lora --max-loras",
        "max_lora_rank": "--max-lora-rank",
    },
    kv_dtypes={"auto": "auto", "fp8": "fp8"},
    dtypes=_DTYPES,
)
