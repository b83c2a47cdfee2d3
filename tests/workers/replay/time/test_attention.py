"""Seconds of fused attention: tiles of queries, blocks of keys, windows and heads that share keys."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.attention import DecodeConstants, PromptConstants, attention_bytes
from autofit_workers.replay.time.kernels import Attention, kernels_of
from autofit_workers.spec.work import Operand, Work

PROMPT = PromptConstants(efficiency=0.8, softmax=5.0, start=1e-6, tail=0.0, overlapped=1.0, older=2.0)
DECODE = DecodeConstants(block=1e-6, softmax=1e-7, start=3e-6, split=1e-6, overlapped=1.0)
CAUSAL = Attention(
    batch=4, queries=4096, keys=4096, heads=32, kv_heads=8, width=128, is_causal=True, is_older=False
)
TOKEN = dataclasses.replace(CAUSAL, queries=1, is_causal=False)


def prompt(attention, constants=PROMPT):
    return constants.seconds(attention, flops=1e15, num_units=132, clock=2e9)


def test_a_long_prompt_takes_its_products_and_its_exponentials() -> None:
    every = dataclasses.replace(CAUSAL, is_causal=False)
    pairs = 4 * 32 * 4096 * 4096
    expected = 4 * 128 * pairs / (0.8 * 1e15) + 0.05 * pairs / (2e9 * 132) + 4 * 32 * 32 * 1e-6 / 132
    assert prompt(every) == pytest.approx(expected)
    assert prompt(CAUSAL) == pytest.approx(expected / 2, rel=0.05), "of blocks on the diagonal all counts"


def test_more_exponentials_in_a_cycle_leave_the_products_alone() -> None:
    every = dataclasses.replace(CAUSAL, is_causal=False)
    of_card = {"flops": 1e15, "num_units": 132, "clock": 2e9}
    once, twice = (PROMPT.seconds(every, **of_card, exponentials=each) for each in (1.0, 2.0))
    assert once - twice == pytest.approx(0.05 * 4 * 32 * 4096**2 / (2e9 * 132) / 2)


def test_a_window_makes_long_prompts_cheaper_and_grow_by_their_length_alone() -> None:
    short, long = (dataclasses.replace(CAUSAL, queries=n, keys=n, window=512) for n in (4096, 8192))
    assert prompt(short) < 0.35 * prompt(CAUSAL)
    assert prompt(long) == pytest.approx(2 * prompt(short), rel=0.05)


def test_earlier_tokens_are_seen_by_all_queries_of_a_causal_prompt() -> None:
    later = dataclasses.replace(CAUSAL, keys=8192)
    assert prompt(later) == pytest.approx(3 * prompt(CAUSAL), rel=0.05)


def test_the_older_kernel_takes_longer_and_few_queries_a_smaller_tile() -> None:
    assert prompt(dataclasses.replace(CAUSAL, is_older=True)) == pytest.approx(2 * prompt(CAUSAL))
    few, more = (dataclasses.replace(CAUSAL, queries=n, keys=128, is_causal=False) for n in (64, 65))
    no_start = dataclasses.replace(PROMPT, start=0.0)
    assert prompt(more, no_start) == pytest.approx(2 * prompt(few, no_start))


def test_keys_of_one_token_are_split_until_the_multiprocessors_have_work() -> None:
    alone = dataclasses.replace(TOKEN, batch=1, kv_heads=1, heads=8, keys=128 * 64)
    assert DECODE.seconds(alone, num_units=132) == pytest.approx(1.1e-6 + 3e-6 + 1e-6), "a block for each"
    many = dataclasses.replace(TOKEN, batch=2048)
    assert DECODE.seconds(many, num_units=132) > 50 * DECODE.seconds(alone, num_units=132)


def test_the_older_kernel_reads_shared_keys_for_each_head_where_a_window_limits_them() -> None:
    newer, older = (
        dataclasses.replace(TOKEN, batch=512, window=256, is_older=each) for each in (False, True)
    )
    seconds = [DECODE.seconds(each, num_units=132) for each in (newer, older)]
    assert seconds[1] == pytest.approx(4 * seconds[0], rel=0.1)


def test_bytes_are_of_the_keys_that_are_seen() -> None:
    assert attention_bytes(TOKEN, 2) == 4 * 4 * 128 * (32 + 4096 * 8)
    assert attention_bytes(dataclasses.replace(TOKEN, window=128), 2) == 4 * 4 * 128 * (32 + 128 * 8)
    assert attention_bytes(dataclasses.replace(CAUSAL, window=128), 2) == 4 * 4 * 128 * 4096 * 40


def test_attention_of_an_operator_has_its_heads_window_and_mask() -> None:
    query, key = Operand((4, 32, 4096, 128), "bfloat16"), Operand((4, 8, 4096, 128), "bfloat16")
    name, flags = "aten._scaled_dot_product_cudnn_attention", ("causal", "window=512")
    (kernel,) = kernels_of(Work(name, (query, key, key), (query,), flags=flags))
    assert kernel.attention == dataclasses.replace(CAUSAL, window=512)
    token = Operand((4, 32, 1, 128), "bfloat16")
    flash = "aten._scaled_dot_product_flash_attention"
    (kernel,) = kernels_of(Work(flash, (token, key, key), (token,)))
    assert kernel.attention == dataclasses.replace(TOKEN, is_older=True)
    assert kernel.variant == "decode"


def test_a_scaled_product_is_of_its_first_two_inputs() -> None:
    left, right, scale = (Operand(shape, "float8_e4m3fn") for shape in ((64, 128), (128, 32), ()))
    (kernel,) = kernels_of(
        Work("aten._scaled_mm", (left, right, scale, scale), (Operand((64, 32), "bfloat16"),))
    )
    assert (kernel.product.m, kernel.product.n, kernel.product.k) == (64, 32, 128)
    assert kernel.dtype == "float8_e4m3fn"
