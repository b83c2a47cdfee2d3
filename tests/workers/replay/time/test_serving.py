"""Seconds of a server's passes, of models made by hand."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.collectives import network_of
from autofit_workers.replay.time.constants import constants
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.serving import (
    FLOAT4,
    Block,
    Decoder,
    Heads,
    Load,
    Matrix,
    ServingCosts,
    engine_constants,
    served,
    serving_spread,
)
from autofit_workers.replay.time.speeds import Speeds

H100 = Speeds(
    name="NVIDIA H100 80GB HBM3",
    architecture="sm_90",
    num_units=132,
    flops={"float32": 60e12, "float16": 800e12, "bfloat16": 800e12, "float8_e4m3fn": 1600e12},
    vector_flops=60e12,
    bandwidth=3.3e12,
    cache_bytes=50_000_000,
    clock=1.7e9,
)
B200 = dataclasses.replace(H100, name="NVIDIA B200", architecture="sm_100", bandwidth=7.5e12)


def decoder(
    *, num_layers: int = 32, bits: float = 16.0, dtype: str = "bfloat16", num_ranks: int = 1
) -> Decoder:
    """A rank's part of a model of Llama-3-8B's sizes."""
    matrices = (
        Matrix(rows=6144 // num_ranks, columns=4096, bits=bits, dtype=dtype),
        Matrix(rows=4096, columns=4096 // num_ranks, bits=bits, dtype=dtype),
        Matrix(rows=28672 // num_ranks, columns=4096, bits=bits, dtype=dtype),
        Matrix(rows=4096, columns=14336 // num_ranks, bits=bits, dtype=dtype),
    )
    heads = Heads(heads=32 // num_ranks, kv_heads=8 // num_ranks, width=128)
    return Decoder(
        blocks=(Block(times=num_layers, matrices=matrices, heads=heads),),
        head=Matrix(rows=128_256 // num_ranks, columns=4096),
        hidden_size=4096,
        num_ranks=num_ranks,
    )


def costs(model: Decoder, *, card: Speeds = H100, engine: str = "vllm") -> ServingCosts:
    known = engine_constants(engine, card.generation)
    assert known is not None
    network = network_of(card.name, card.architecture)
    return ServingCosts(Costs(card, constants(), network=network), model, known)


def test_a_single_sequence_reads_all_weights_for_each_token() -> None:
    model = decoder()
    seconds = costs(model).token_seconds(1, 512)
    least = model.weights_bytes / H100.bandwidth
    assert least < seconds < 2 * least


def test_more_sequences_share_the_weights() -> None:
    server = costs(decoder())
    one, many = server.token_seconds(1, 512), server.token_seconds(32, 512)
    assert one < many < 2 * one
    assert server.token_seconds(256, 512) > many


def test_a_longer_context_is_read_with_every_token() -> None:
    server = costs(decoder())
    short, long = server.token_parts(64, 1024), server.token_parts(64, 8192)
    assert long.attention > 4 * short.attention
    assert (long.products, long.beside) == (short.products, short.beside)


def test_a_window_bounds_what_attention_reads() -> None:
    model = decoder()
    heads = model.blocks[0].heads
    assert heads is not None
    narrow = dataclasses.replace(
        model, blocks=(dataclasses.replace(model.blocks[0], heads=dataclasses.replace(heads, window=128)),)
    )
    assert narrow.cache_bytes(8192) == model.cache_bytes(128)
    assert costs(narrow).token_seconds(64, 8192) < costs(model).token_seconds(64, 1024)


def test_a_prompt_takes_at_least_its_arithmetic() -> None:
    flops = 2 * 8192 * sum(each.rows * each.columns for each in decoder().blocks[0].matrices) * 32
    seconds = costs(decoder()).prompt_parts(8192).seconds
    assert flops / 1000e12 < seconds < 3 * flops / 800e12


def test_ranks_share_a_pass_but_exchange_what_they_have() -> None:
    alone, four = costs(decoder()).token_parts(64, 1024), costs(decoder(num_ranks=4)).token_parts(64, 1024)
    assert (alone.exchange, four.exchange > 0) == (0.0, True)
    assert four.products < 0.5 * alone.products
    assert 0.25 * alone.seconds < four.seconds < alone.seconds


def test_narrow_weights_are_read_faster() -> None:
    wide, half = decoder(), decoder(bits=8.0, dtype="float8_e4m3fn")
    quarter = decoder(bits=4.5, dtype=FLOAT4)
    token = [costs(each, card=B200).token_parts(1, 512).products for each in (wide, half, quarter)]
    assert token[0] > 1.2 * token[1] > token[2]
    assert token[1] > 1.1 * token[2]


def test_a_card_without_fp4_multiplies_such_weights_in_bfloat16() -> None:
    packed, plain = decoder(bits=4.5, dtype=FLOAT4), decoder(bits=4.5)
    assert costs(packed).prompt_parts(4096).products == costs(plain).prompt_parts(4096).products


def test_tokens_need_few_experts_first_and_all_of_them_later() -> None:
    experts = Matrix(rows=2048, columns=4096, experts=64, taken=4, spread=2)
    one, _ = experts.used(1)
    assert one == pytest.approx(4 / 2)
    every, tokens = experts.used(10_000)
    assert every == pytest.approx(64)
    assert tokens == pytest.approx(10_000 * 4 / 2 / 64)
    assert Matrix(rows=8, columns=8).used(7) == (1.0, 7.0)


def test_a_load_that_arrives_at_once_waits_longer_for_its_first_token() -> None:
    server = costs(decoder())
    spread, together = (
        served(server, Load(requests=64, prompt=1024, answer=256, together=share)) for share in (0.0, 1.0)
    )
    assert together.first_seconds > 2 * spread.first_seconds
    assert together.token_seconds == spread.token_seconds


def test_prompts_of_others_hold_up_the_tokens_of_a_request() -> None:
    server = costs(decoder())
    load = Load(requests=32, prompt=4096, answer=128)
    assert served(server, load).token_seconds > 2 * server.token_seconds(32, 4096 + 64)
    alone = served(server, dataclasses.replace(load, requests=1))
    assert alone.token_seconds == server.token_seconds(1, 4096 + 64)
    assert alone.first_seconds == server.first_seconds(4096)


def test_requests_without_room_wait_for_others_to_end() -> None:
    server = costs(decoder())
    load = Load(requests=64, prompt=1024, answer=256)
    crowded = served(server, dataclasses.replace(load, room=16))
    assert crowded.first_seconds > 10 * served(server, load).first_seconds
    assert crowded.token_seconds < served(server, load).token_seconds


def test_engines_and_cards_without_measured_loads_have_no_constants() -> None:
    assert engine_constants("tgi", "hopper") is None
    assert engine_constants("vllm", "ampere") is None
    assert engine_constants("vllm", None) is None
    assert serving_spread("tgi") is None


def test_intervals_widen_with_their_level() -> None:
    spread = serving_spread("vllm")
    assert spread is not None
    assert spread.num_rows
    assert 1 < spread.factor(spread.token_sigma, 0.8) < spread.factor(spread.token_sigma, 0.95)
    assert spread.factor(spread.token_sigma, 0.8) < spread.factor(spread.first_sigma, 0.8)
