"""Seconds of servers, and which are not stated."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autofit.hardware.gpus import find_gpu
from autofit.serving.architecture import Architecture
from autofit.serving.speed import MOST_REQUESTS, Server, ServerSpeed, server_speed
from tests.autofit.serving.models import LLAMA_3_8B, LLAMA_3_8B_PARTS


def ask(
    gpu: str = "h100-80g", *, room: int = 100_000, model: Architecture = LLAMA_3_8B, **given: Any
) -> ServerSpeed:
    options = {
        "engine": "vllm",
        "release": "0.20",
        "num_ranks": 1,
        "dtype": "bf16",
        "kv_element_bytes": 2,
        **given,
    }
    return server_speed(model, Server(gpu=find_gpu(gpu), **options), lambda length: room // length)


def test_seconds_are_stated_by_requests_and_tokens() -> None:
    found = ask(length=4096)
    assert [(each.num_requests, each.context) for each in found.loads] == [
        (1, 1024), (4, 1024), (16, 1024), (64, 1024), (97, 1024),
        (1, 4096), (4, 4096), (16, 4096), (24, 4096),
        (1, 8192), (4, 8192), (12, 8192),
    ]  # fmt: skip
    for load in found.loads:
        assert load.first_token_seconds is not None
        assert (
            load.first_token_seconds.low < load.first_token_seconds.low_80 < load.first_token_seconds.likely
        )
        assert load.tokens_per_second == pytest.approx(load.num_requests / load.token_seconds.likely)
    assert "usually within 19% of a measured one, the first one within 25%" in found.note


def test_a_vllm_server_of_llama_3_8b_is_as_fast_as_its_memory() -> None:
    one = ask().loads[0].token_seconds
    # 16 GB of weights at 3.35 TB/s are 4.8 ms; such servers make 120 to 160 tokens a second.
    assert 1 / 160 < one.likely < 1 / 120
    assert one.low < 16.06e9 / 3.35e12 < one.likely


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpu": "rtx-4090"}, "no measured servers on cards like rtx-4090"),
        ({"gpu": "a100-80g"}, "no measured servers on cards like a100-80g"),
        ({"engine": "tgi", "release": "3.3"}, "no measured times of tgi"),
        ({"release": "0.8"}, "no measured times of vllm 0.8"),
        ({"max_loras": 1}, "adapters are not timed"),
        ({"dtype": "fp32"}, "servers in fp32"),
        ({"num_ranks": 16}, "a node has 8 cards"),
        ({"room": 512}, "no request of 1,024 tokens fits"),
    ],
)
def test_seconds_that_nothing_measured_stands_behind_are_not_stated(
    options: dict[str, Any], words: str
) -> None:
    found = ask(**options)
    assert found.loads == ()
    assert found.note.startswith("no seconds are stated, as ")
    assert words in found.note


def test_the_first_token_of_an_engine_that_varies_is_left_out() -> None:
    found = ask(engine="sglang", release="0.5")
    assert {each.first_token_seconds for each in found.loads} == {None}
    assert "varies too much to state it" in found.note


def test_no_load_is_beyond_those_measured() -> None:
    found = ask(room=10**9, length=20_000)
    assert {each.context for each in found.loads} == {1024, 8192}
    assert max(each.num_requests for each in found.loads) == MOST_REQUESTS
    assert "of more than 16,384 tokens no request was measured" in found.note
    assert max(each.num_requests for each in ask(max_num_seqs=8).loads) == 8


def test_weights_in_types_that_no_measured_server_had_are_refused() -> None:
    def quantized(method: str) -> Architecture:
        config = {**LLAMA_3_8B_PARTS.config, "quantization_config": {"quant_method": method}}
        return Architecture.of(dataclasses.replace(LLAMA_3_8B_PARTS, config=config))

    assert "no measured times of weights in gptq" in ask(model=quantized("gptq")).note
    narrow = ask(model=quantized("fp8")).loads[0].token_seconds.likely
    assert narrow < 0.75 * ask().loads[0].token_seconds.likely
