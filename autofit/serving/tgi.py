"""KV cache size in TGI: it runs its largest prefill, and the memory still free is the KV cache.

server/text_generation_server/models/flash_causal_lm.py of 3.3.6, `warmup`, with `TGI_WIGGLE_ROOM` 0.9 of
models/globals.py and `CUDA_MEMORY_FRACTION` 1 of utils/dist.py; the launcher's launcher/src/main.rs passes
`--cuda-memory-fraction` on. Memory cached by PyTorch's allocator counts as taken.
"""

from __future__ import annotations

from dataclasses import replace

from autofit.serving.architecture import Architecture, LayerKind
from autofit.serving.engine import Engine, Options, Sizing, Spans, outside
from autofit.serving.pool import Pool, uniform
from autofit.serving.profile_run import Pass, platform, replay
from autofit.serving.weights import weights_bytes

_ROOM = 0.9
_PREFILL_TOKENS = 4096  # launcher/src/main.rs, if the card's speed is unknown
_BLOCK_SIZE = 1  # models/globals.py: of flashinfer, the default; flashdecoding has 256
_TORCH_RELEASE = (2, 7)


def size(architecture: Architecture, given: Options) -> Sizing:
    """Divides a card's memory into weights, activations and KV cache, as TGI 3.3.6 does.

    Args:
        given: options of the server; None fields are filled in.
    """
    length = given.max_model_len or architecture.max_positions
    tokens = given.max_num_batched_tokens or min(_PREFILL_TOKENS, length or _PREFILL_TOKENS)
    options = replace(
        given,
        utilization=given.utilization or 1.0,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        block_size=given.block_size or _BLOCK_SIZE,
    )
    assert options.utilization is not None
    one = Pass(
        architecture=architecture,
        num_ranks=given.num_ranks,
        num_tokens=tokens,
        num_seqs=1,
        element_bytes=given.element_bytes,
        platform=platform(given.gpu.architecture, _TORCH_RELEASE),
        num_sms=given.gpu.num_sms,
        keeps_gate=True,
    )
    sizing = Sizing(
        options=options,
        usable_bytes=int(given.gpu.total_bytes * options.utilization * _ROOM),
        weights_bytes=weights_bytes(architecture, given.num_ranks, given.element_bytes),
        activation_bytes=replay(one, None).reserved_bytes,
        outside=outside(given.gpu, given.num_ranks, context=True, nccl=True, kernels=False),
        graphs=Spans(),
        pool=Pool(block_size=1, block_bytes=1, num_blocks=0, groups=()),
        notes=_notes(architecture, given),
    )
    assert options.block_size is not None
    kept = [layer for layer in architecture.kept if layer.kind is not LayerKind.STATE]
    pool = uniform(
        kept,
        sizing.left_bytes,
        block_size=options.block_size,
        num_ranks=given.num_ranks,
        element_bytes=given.kv_element_bytes,
    )
    return replace(sizing, pool=pool)


def _notes(architecture: Architecture, given: Options) -> tuple[str, ...]:
    notes = ["CUDA graphs take of the tenth that the engine keeps free"]
    if given.max_num_batched_tokens is None:
        notes.append(
            f"a prefill of {_PREFILL_TOKENS} tokens is assumed: the launcher chooses by the card's speed; "
            "give --max-num-batched-tokens to fix it"
        )
    if architecture.parts.is_multimodal:
        notes.append("the encoder's activations are not included: only those of the text model")
    return tuple(notes)


ENGINE = Engine(
    name="tgi",
    releases={"3.3": size},
    start="text-generation-launcher --model-id",
    flags={
        "num_ranks": "--num-shard",
        "utilization": "--cuda-memory-fraction",
        "max_num_batched_tokens": "--max-batch-prefill-tokens",
        "max_num_seqs": "--max-batch-size",
        "max_model_len": "--max-total-tokens",
        "kv_dtype": "--kv-cache-dtype",
        "dtype": "--dtype",
    },
    kv_dtypes={"auto": "", "fp8": "fp8_e4m3fn"},
    dtypes={"bf16": "bfloat16", "fp16": "float16"},
)
