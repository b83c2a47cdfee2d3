"""How engines divide a card, on a model whose sizes can be followed by hand."""

from __future__ import annotations

import pytest

from autofit.hardware.gpus import find_gpu
from autofit.serving.architecture import Architecture, Layer, LayerKind
from autofit.serving.engine import Options, Sizing
from autofit.serving.engines import ENGINES
from autofit.serving.pool import grouped
from tests.autofit.serving.models import LLAMA_3_8B, llama_parts

_MIB, _GIB = 1024**2, 1024**3
SMALL = Architecture.of(llama_parts(1024, 4096, 2, 8, 8, 1024, 2048, rope_parameters={}))


def size(engine: str, release: str, *, architecture: Architecture = LLAMA_3_8B, **options: object) -> Sizing:
    gpu = find_gpu(str(options.pop("gpu", "h100-80g")))
    return ENGINES[engine].releases[release](architecture, Options(gpu=gpu, **options))  # type: ignore[arg-type]


def test_the_pass_of_vllm_0_6_peaks_where_the_sampler_sorts() -> None:
    sizing = size("vllm", "0.6")
    logits, hidden = 256 * 128256, 8192 * 4096 * 2
    # In bf16 and float32, sorted with where they came from, and the scratch memory of the sort.
    sampler = logits * (2 + 4 + 4 + 8 + 8 + 8 + 4)
    assert sizing.activation_bytes == pytest.approx(hidden + sampler + 32 * _MIB, rel=1e-4)


def test_a_pass_without_a_large_vocabulary_peaks_in_the_mlp() -> None:
    sizing = size("vllm", "0.20", architecture=SMALL, max_num_batched_tokens=8192, max_num_seqs=1)
    tokens = 8192
    residual_and_input = 2 * tokens * 1024 * 2
    gate_up_and_product = 3 * tokens * 4096 * 2
    ids = 3 * tokens * 8
    assert sizing.activation_bytes == pytest.approx(
        residual_and_input + gate_up_and_product + ids + 32 * _MIB, rel=1e-3
    )


def test_what_the_card_has_is_divided_without_remainder() -> None:
    sizing = size("vllm", "0.7", utilization=0.5)
    assert sizing.usable_bytes == find_gpu("h100-80g").total_bytes // 2
    parts = sizing.weights_bytes + sizing.activation_bytes + sizing.outside.likely_bytes
    assert sizing.left_bytes == sizing.usable_bytes - parts
    assert sizing.pool.num_blocks == sizing.left_bytes // (16 * 131_072)
    assert sizing.pool.num_tokens == 16 * sizing.pool.num_blocks


def test_older_releases_count_the_context_and_newer_ones_cuda_graphs() -> None:
    assert "CUDA context" in size("vllm", "0.6").outside.parts
    assert "CUDA context" not in size("vllm", "0.7").outside.parts
    assert "NCCL" in size("vllm", "0.7", num_ranks=2).outside.parts
    assert "NCCL" not in size("vllm", "0.20", num_ranks=2).outside.parts
    assert size("vllm", "0.7").graphs.likely_bytes == 0 < size("vllm", "0.20").graphs.likely_bytes


def test_before_0_2_7_what_ranks_reduce_is_not_used_again() -> None:
    alone, shared = size("vllm", "0.2"), size("vllm", "0.2", num_ranks=2)
    outputs = 2 * 32 * 8192 * 4096 * 2
    assert shared.activation_bytes - alone.activation_bytes > 0.9 * outputs


@pytest.mark.parametrize(("length", "tokens"), [(8192, 8192), (1024, 2048)])
def test_vllm_0_6_works_on_whole_sequences(length: int, tokens: int) -> None:
    assert size("vllm", "0.6", max_model_len=length).options.max_num_batched_tokens == tokens


def test_an_a100_gets_smaller_batches_than_an_h100() -> None:
    options = size("vllm", "0.20", gpu="a100-80g").options
    assert (options.max_num_batched_tokens, options.max_num_seqs) == (2048, 256)
    options = size("vllm", "0.8", gpu="a100-80g").options
    assert (options.max_num_batched_tokens, options.max_num_seqs) == (8192, 1024)
    options = size("vllm", "0.20").options
    assert (options.max_num_batched_tokens, options.max_num_seqs) == (8192, 1024)


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    plain, halved = size("vllm", "0.20"), size("vllm", "0.20", kv_element_bytes=1)
    assert halved.pool.num_blocks in {2 * plain.pool.num_blocks, 2 * plain.pool.num_blocks + 1}


def test_sglang_keeps_10_gib_of_a_large_card_free() -> None:
    sizing = size("sglang", "0.5")
    total_mib = find_gpu("h100-80g").total_bytes / _MIB
    kept = 512 + 8192 * 1.5 + 256 * 2 + 128
    assert sizing.options.utilization == round((total_mib - max(kept, 10240)) / total_mib, 3)
    assert sizing.pool.block_size == 1


def test_tgi_keeps_a_tenth_free() -> None:
    assert size("tgi", "3.3").usable_bytes == int(find_gpu("h100-80g").total_bytes * 0.9)


def test_layers_with_windows_have_blocks_of_their_own() -> None:
    full = Layer(kind=LayerKind.FULL, num_kv_heads=1, width=128)
    sliding = Layer(kind=LayerKind.SLIDING, num_kv_heads=1, width=128, window=1024)
    pool = grouped(
        [full] * 2 + [sliding] * 10,
        _GIB,
        block_size=16,
        num_ranks=1,
        element_bytes=2,
        state_bytes=2,
        num_batched_tokens=1024,
        num_encoder_tokens=0,
    )
    assert len(pool.groups) == 6  # one of full attention, five of two layers each with a window
    assert pool.block_bytes == 16 * 256 * 2
    window = -(-(1024 - 1 + 1024) // 16) + 1
    assert pool.blocks_of(32768) == 32768 // 16 + 5 * window
    assert pool.num_tokens == pool.num_blocks // 6 * 16


def test_blocks_of_keys_grow_to_the_size_of_a_state() -> None:
    full = Layer(kind=LayerKind.FULL, num_kv_heads=8, width=256)
    state = Layer(kind=LayerKind.STATE, conv_rows=8192, conv_columns=3, state_numbers=8192 * 16)
    pool = grouped(
        [state] * 28 + [full] * 4,
        _GIB,
        block_size=16,
        num_ranks=1,
        element_bytes=2,
        state_bytes=2,
        num_batched_tokens=2048,
        num_encoder_tokens=0,
    )
    of_state = (8192 * 3 + 8192 * 16) * 2
    assert pool.block_size == 16 * -(-of_state // (16 * 8 * 256 * 2))
    assert pool.blocks_of(pool.block_size * 3) == 3 + 7  # and one of each seven groups of states


def test_the_longest_sequence_takes_every_block_or_ends_with_the_model() -> None:
    pool = size("vllm", "0.20", gpu="l4", utilization=0.95).pool
    assert pool.longest(None) == pool.num_tokens
    assert pool.longest(100) == 100
    assert pool.num_requests(pool.num_tokens) == 1
    assert pool.with_bytes(0).longest(8192) == 0
