"""What layers keep of a token, by hand."""

from __future__ import annotations

import pytest

from autofit.serving.architecture import Architecture, LayerKind
from autofit.serving.weights import adapters_bytes, weights_bytes
from tests.autofit.serving.models import LLAMA_3_8B, llama_parts, parts


def test_llama_3_8b_keeps_131072_bytes_of_a_token() -> None:
    assert LLAMA_3_8B.token_bytes(1, 2) == 2 * 32 * 8 * 128 * 2 == 131_072
    assert LLAMA_3_8B.token_bytes(8, 2) == 131_072 // 8
    assert LLAMA_3_8B.token_bytes(16, 2) == 131_072 // 8  # a head is on two ranks


def test_weights_are_every_parameter_once_and_a_table_of_rotations() -> None:
    assert weights_bytes(LLAMA_3_8B, 1, 2) == 2 * 8_030_261_248 + 8192 * 128 * 2


def test_ranks_split_matrices_and_repeat_norms_and_rotations() -> None:
    norms, rotations = 65 * 4096 * 2, 8192 * 128 * 2
    assert weights_bytes(LLAMA_3_8B, 2, 2) == (2 * 8_030_261_248 - norms) // 2 + norms + rotations


def test_a_vocabulary_is_padded_to_a_multiple_of_64() -> None:
    small = Architecture.of(llama_parts(64, 128, 1, 4, 4, 100, 16, rope_parameters={}))
    per_layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert weights_bytes(small, 1, 2) == 2 * (2 * 128 * 64 + 64 + per_layer)


def test_heads_fewer_than_ranks_are_repeated_on_them() -> None:
    wide = Architecture.of(llama_parts(64, 128, 1, 8, 2, 128, 16, rope_parameters={}))
    of_keys = 2 * 8 * 64
    whole, of_rank = weights_bytes(wide, 1, 2), weights_bytes(wide, 4, 2)
    norms = 3 * 64
    assert of_rank == 2 * ((whole // 2 - norms - 2 * of_keys) // 4 + norms + 2 * of_keys // 2)


def test_latent_attention_keeps_one_vector_on_every_rank() -> None:
    one = Architecture.of(
        parts(
            {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight": ("Linear", (576, 7168))},
            hidden_size=7168,
            num_attention_heads=128,
            vocab_size=129280,
        )
    )
    assert one.layers[0].kind is LayerKind.LATENT
    assert one.token_bytes(1, 2) == one.token_bytes(8, 2) == 576 * 2


def test_merged_projections_tell_the_heads_of_keys() -> None:
    falcon = Architecture.of(
        parts(
            {
                "transformer.h.0.self_attention.query_key_value.weight": ("Linear", (4672, 4544)),
                "transformer.h.1.attn.c_attn.weight": ("Conv1D", (4544, 3 * 4544)),
            },
            hidden_size=4544,
            num_attention_heads=71,
            vocab_size=65024,
        )
    )
    assert [layer.num_kv_heads for layer in falcon.layers] == [1, 71]
    assert {layer.kind for layer in falcon.layers} == {LayerKind.FULL}


@pytest.mark.parametrize(
    ("name", "shape", "numbers"),
    [("mamba.A_log", (8192, 16), 8192 * 16), ("mixer.A_log", (128,), 128 * 64 * 256)],
)
def test_a_state_does_not_grow_with_the_sequence(name: str, shape: tuple[int, ...], numbers: int) -> None:
    hybrid = Architecture.of(
        parts(
            {
                f"model.layers.0.{name}": ("Mixer", shape),
                f"model.layers.0.{name.partition('.')[0]}.conv1d.weight": ("Conv1d", (8704, 1, 4)),
            },
            hidden_size=4096,
            num_attention_heads=32,
            vocab_size=128000,
            mamba_d_head=64,
            mamba_d_state=256,
        )
    )
    assert hybrid.layers[0].kind is LayerKind.STATE
    assert hybrid.token_bytes(1, 2) == 0
    assert hybrid.layers[0].state_bytes(1, 2) == 2 * (8704 * 3 + numbers)


def test_windows_come_from_the_configuration_and_cross_attention_from_the_modules() -> None:
    mixed = Architecture.of(
        parts(
            {
                "model.layers.0.self_attn.k_proj.weight": ("Linear", (256, 512)),
                "model.layers.1.self_attn.k_proj.weight": ("Linear", (256, 512)),
                "model.layers.2.cross_attn.k_proj.weight": ("Linear", (256, 512)),
                "model.vision_model.layers.0.self_attn.k_proj.weight": ("Linear", (99, 99)),
            },
            hidden_size=512,
            num_attention_heads=8,
            vocab_size=1000,
            sliding_window=128,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
        )
    )
    kinds = [layer.kind for layer in mixed.layers]
    assert kinds == [LayerKind.SLIDING, LayerKind.FULL, LayerKind.CROSS]
    assert mixed.window == 128


def test_a_layer_that_looks_at_its_own_and_another_sequence_counts_twice() -> None:
    decoder = Architecture.of(
        parts(
            {
                "model.encoder.layers.0.self_attn.k_proj.weight": ("Linear", (64, 64)),
                "model.decoder.layers.0.self_attn.k_proj.weight": ("Linear", (64, 64)),
                "model.decoder.layers.0.encoder_attn.k_proj.weight": ("Linear", (64, 64)),
            },
            hidden_size=64,
            num_attention_heads=4,
            vocab_size=100,
        )
    )
    assert [layer.kind for layer in decoder.kept] == [LayerKind.FULL, LayerKind.CROSS]
    assert decoder.token_bytes(1, 2) == 2 * (2 * 64 * 2)


def test_adapters_take_two_matrices_for_each_linear_layer() -> None:
    per_layer = 4 * 0 + (4096 + 4096) * 2 + (1024 + 4096) * 2 + (14336 + 4096) * 3
    assert adapters_bytes(LLAMA_3_8B, 1, 2, max_loras=2, max_lora_rank=8) == 32 * per_layer * 2 * 8 * 2


def test_a_quantized_checkpoint_keeps_its_head() -> None:
    four_bits = Architecture.of(
        llama_parts(
            256, 512, 2, 4, 4, 128, 16, rope_parameters={}, quantization_config={"quant_method": "mxfp4"}
        )
    )
    plain = Architecture.of(llama_parts(256, 512, 2, 4, 4, 128, 16, rope_parameters={}))
    assert weights_bytes(four_bits, 1, 2) == weights_bytes(
        plain, 1, 2
    )  # of experts alone, and there are none
    eight_bits = Architecture.of(
        llama_parts(
            256, 512, 2, 4, 4, 128, 16, rope_parameters={}, quantization_config={"quant_method": "fbgemm_fp8"}
        )
    )
    matrices = 2 * (4 * 256 * 256 + 3 * 256 * 512)
    assert weights_bytes(plain, 1, 2) - weights_bytes(eight_bits, 1, 2) == matrices
