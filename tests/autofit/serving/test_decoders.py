"""Models as one rank's products and attention."""

from __future__ import annotations

import pytest

from autofit.serving.architecture import Architecture
from autofit.serving.decoders import Ranks, UntimedModelError, decoder_of
from autofit.serving.weights import weights_bytes
from autofit_workers.replay.time.serving import Decoder
from autofit_workers.spec.model_parts import Parameter
from tests.autofit.serving.models import LLAMA_3_8B, Shapes, parts

SIZES = {"hidden_size": 64, "vocab_size": 1000, "num_attention_heads": 8, "head_dim": 8}
EMBEDDING: Shapes = {
    "model.embed_tokens.weight": ("Embedding", (1000, 64)),
    "lm_head.weight": ("Linear", (1000, 64)),
}
ATTENTION: Shapes = {
    "model.layers.0.self_attn.q_proj.weight": ("Linear", (64, 64)),
    "model.layers.0.self_attn.k_proj.weight": ("Linear", (16, 64)),
    "model.layers.0.self_attn.v_proj.weight": ("Linear", (16, 64)),
    "model.layers.0.self_attn.o_proj.weight": ("Linear", (64, 64)),
}
EXPERTS: Shapes = {
    "model.layers.0.mlp.gate.weight": ("Router", (16, 64)),
    "model.layers.0.mlp.experts.gate_up_proj": ("Experts", (16, 96, 64)),
    "model.layers.0.mlp.experts.down_proj": ("Experts", (16, 64, 48)),
}


def stored(_parameter: Parameter) -> tuple[float, str]:
    return 16.0, "bfloat16"


def made(shapes: Shapes, ranks: Ranks | None = None, **config: object) -> Decoder:
    architecture = Architecture.of(parts({**EMBEDDING, **shapes}, **SIZES, **config))
    return decoder_of(architecture, ranks or Ranks(), stored)


def test_all_weights_of_a_model_are_products() -> None:
    decoder = decoder_of(LLAMA_3_8B, Ranks(), stored)
    assert decoder.weights_bytes == pytest.approx(weights_bytes(LLAMA_3_8B, 1, 2), rel=0.001)
    (block,) = decoder.blocks
    assert block.times == 32
    assert [(each.rows, each.columns) for each in block.matrices] == [
        (4096 + 2 * 1024, 4096), (4096, 4096), (2 * 14336, 4096), (4096, 14336),
    ]  # fmt: skip
    assert decoder.cache_bytes(100) == 100 * LLAMA_3_8B.token_bytes(1, 2)


def test_ranks_share_rows_or_columns() -> None:
    alone, four = (decoder_of(LLAMA_3_8B, Ranks(num_ranks=number), stored) for number in (1, 4))
    assert 4 * four.weights_bytes == pytest.approx(alone.weights_bytes)
    assert [(each.rows, each.columns) for each in four.blocks[0].matrices] == [
        (1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584),
    ]  # fmt: skip
    assert four.blocks[0].heads is not None
    assert (four.blocks[0].heads.heads, four.blocks[0].heads.kv_heads) == (8, 2)


@pytest.mark.parametrize(
    ("ranks", "gate_up", "down", "number"),
    [
        (Ranks(), (96, 64), (64, 48), 16),
        (Ranks(num_ranks=4), (24, 64), (64, 12), 16),
        (Ranks(num_ranks=4, spread_experts=4), (96, 64), (64, 48), 4),
        (Ranks(num_ranks=4, spread_experts=2), (48, 64), (64, 24), 8),
    ],
)
def test_experts_are_split_or_spread(
    ranks: Ranks, gate_up: tuple[int, int], down: tuple[int, int], number: int
) -> None:
    decoder = made({**ATTENTION, **EXPERTS}, ranks, num_experts_per_tok=2)
    router, *experts = (each for each in decoder.blocks[0].matrices if each.rows == 16 or each.experts > 1)
    assert (router.rows, router.experts) == (16, 1)
    assert [(each.rows, each.columns, each.experts) for each in experts] == [
        (*gate_up, number),
        (*down, number),
    ]
    assert {(each.taken, each.spread) for each in experts} == {(2, ranks.spread_experts)}


def test_ranks_with_requests_of_their_own_have_all_heads() -> None:
    ranks = Ranks(num_ranks=4, spread_experts=4, has_own_requests=True)
    decoder = made({**ATTENTION, **EXPERTS}, ranks, num_experts_per_tok=2)
    assert decoder.num_groups == 4
    assert decoder.blocks[0].heads is not None
    assert decoder.blocks[0].heads.heads == 8


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    decoder = made(
        {
            "model.layers.0.self_attn.q_proj.weight": ("Linear", (8 * 24, 64)),
            "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": ("Linear", (40, 64)),
            "model.layers.0.self_attn.kv_b_proj.weight": ("Linear", (8 * 32, 32)),
            "model.layers.0.self_attn.o_proj.weight": ("Linear", (64, 128)),
        },
        Ranks(num_ranks=2),
        qk_head_dim=24,
        v_head_dim=16,
    )
    heads = decoder.blocks[0].heads
    assert heads is not None
    assert (heads.heads, heads.kv_heads, heads.width, heads.kept_heads) == (4, 4, 20, 1)
    assert decoder.cache_bytes(10) == 10 * 40 * 2


@pytest.mark.parametrize(
    ("shapes", "config", "words"),
    [
        ({**ATTENTION, **EXPERTS}, {}, "how many experts a token takes"),
        (ATTENTION, {"index_topk": 2048}, "chosen token by token"),
        (
            {**ATTENTION, "model.layers.0.cross_attn.q_proj.weight": ("Linear", (64, 64))},
            {},
            "attention to another sequence",
        ),
        ({"model.layers.0.norm.weight": ("Norm", (64,))}, {}, "has no products"),
        ({}, {}, "layers are not known"),
        (
            {**ATTENTION, "model.layers.0.moe.input_linear.weight": ("ParallelExperts", (8, 128, 64))},
            {},
            "weights are of kinds that are not timed",
        ),
    ],
)
def test_a_model_whose_parts_are_not_timed_says_so(
    shapes: Shapes, config: dict[str, int], words: str
) -> None:
    with pytest.raises(UntimedModelError, match=words):
        made(shapes, **config)
