"""What `autofit kv` answers, of a model that is listed by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from autofit.errors import ExitCode, UsageError
from autofit.hardware.gpus import find_gpu
from autofit.questions.kv import KvCache, KvQuestion, kv_cache
from autofit_workers.spec.protocol import WorkloadRef
from tests.autofit.serving.models import LLAMA_3_8B_PARTS, parts

MODEL = WorkloadRef(kind="library", target="hf:meta-llama/Meta-Llama-3-8B")


def ask(gpu: str = "h100-80g", **options: Any) -> KvCache:
    return kv_cache(MODEL, KvQuestion(gpu=find_gpu(gpu), **options), parts=lambda _: LLAMA_3_8B_PARTS)


def test_the_document_adds_up() -> None:
    document = json.loads(ask(length=4096, kv_dtype="fp8", dtype="bf16").to_json())
    memory, cache = document["memory"], document["kv_cache"]
    assert document["schema"] == "autofit.kv/1"
    assert cache["token_bytes"] == 131_072 // 2
    assert memory["kv_cache_bytes"] == memory["usable_bytes"] - sum(
        memory[name] for name in ("weights_bytes", "activation_bytes")
    ) - sum(memory[name]["likely_bytes"] for name in ("non_torch", "cuda_graphs"))
    assert cache["num_blocks"] == memory["kv_cache_bytes"] // cache["block_bytes"]
    assert cache["num_requests"] == cache["num_blocks"] // (4096 // 16)
    assert cache["num_tokens"]["low"] < cache["num_tokens"]["likely"] < cache["num_tokens"]["high"]
    assert cache["layers"] == {"full attention": 32}


def test_the_document_says_how_fast_the_server_is() -> None:
    document = json.loads(ask(length=4096).to_json())
    room = document["kv_cache"]["num_requests"]
    assert max(each["num_requests"] for each in document["loads"] if each["context"] == 4096) == room
    load = document["loads"][0]
    assert load["token_seconds"]["low"] < load["token_seconds"]["likely"] < load["token_seconds"]["high"]
    assert load["first_token_seconds"]["likely"] > load["token_seconds"]["likely"]
    assert document["speed_note"].startswith("seconds: a token of vllm")


@pytest.mark.parametrize("gpu", ["t4", "rtx-4090"])
def test_no_seconds_are_an_empty_list_and_a_reason(gpu: str) -> None:
    document = json.loads(ask(gpu).to_json())
    assert document["loads"] == []
    assert document["speed_note"].startswith("no seconds are stated, as ")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "vllm",
            "vllm serve meta-llama/Meta-Llama-3-8B --tensor-parallel-size 2 --gpu-memory-utilization 0.8",
        ),
        ("sglang", "--tp-size 2 --mem-fraction-static 0.8"),
        ("tgi", "--num-shard 2 --cuda-memory-fraction 0.8"),
    ],
)
def test_the_command_is_the_engine_s_own(engine: str, words: str) -> None:
    answer = ask(engine=engine, tensor_parallel=2, gpu_memory_utilization=0.8, kv_dtype="fp8")
    assert words in answer.command
    assert "--kv-cache-dtype fp8" in answer.command


def test_a_card_that_is_too_small_says_what_is_missing_and_what_helps() -> None:
    answer = ask("t4")
    assert not answer.fits
    assert answer.exit_code is ExitCode.NOTHING_FITS
    assert answer.missing_bytes == 16 * 131_072 - answer.sizing.left_bytes
    assert any(each.startswith("--tensor-parallel 2") for each in answer.advice)
    assert any("4 bits" in each for each in answer.advice)
    assert ask("t4", tensor_parallel=2).fits


def test_a_length_that_does_not_fit_alone_shortens_the_command() -> None:
    answer = ask("rtx-3090", gpu_memory_utilization=0.72)
    assert 0 < answer.max_model_len < 8192
    assert f"--max-model-len {answer.max_model_len}" in answer.command


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "vlm"}, "'vlm' is not one of vllm, sglang, tgi. Did you mean vllm?"),
        ({"tensor_parallel": 3}, "does not divide the model's 32 attention heads: expected one of 1, 2, 4"),
        ({"gpu_memory_utilization": 0.0}, "is not a share of the card"),
        ({"gpu_memory_utilization": 1.5}, "expected more than 0, and at most 1"),
        ({"max_model_len": 9000}, "beyond the 8192 positions of the model"),
        ({"length": 9000}, "--length 9000 is beyond the 8192 positions"),
        ({"length": 4096, "max_model_len": 2048}, "longer than --max-model-len 2048 allows"),
        ({"release": "0.1"}, "no rules are known of vllm 0.1"),
        ({"release": "new"}, "no rules are known of vllm new"),
        ({"kv_dtype": "int8"}, "'int8' is not one of auto, fp8"),
        ({"dtype": "fp32", "engine": "tgi"}, "tgi serves bf16, fp16, not fp32"),
        ({"max_loras": 2, "engine": "tgi"}, "keeps no buffers for adapters"),
        ({"gpu": "mi300x"}, "a card of AMD"),
    ],
)
def test_what_a_server_would_refuse_is_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask(**options)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_heads_of_keys_and_ranks_must_divide_each_other() -> None:
    odd = dataclasses.replace(
        LLAMA_3_8B_PARTS,
        parameters=tuple(
            dataclasses.replace(each, shape=(3 * 128, 4096)) if "k_proj" in each.name else each
            for each in LLAMA_3_8B_PARTS.parameters
        ),
    )
    question = KvQuestion(gpu=find_gpu("h100-80g"), tensor_parallel=2)
    with pytest.raises(UsageError, match="3 heads of keys and values do not divide each other"):
        kv_cache(MODEL, question, parts=lambda _: odd)


def test_a_model_of_states_alone_has_no_cache_that_grows() -> None:
    states = parts(
        {
            "model.embed_tokens.weight": ("Embedding", (1000, 64)),
            "model.layers.0.mixer.A_log": ("Mixer", (128, 16)),
            "model.layers.0.mixer.conv1d.weight": ("Conv1d", (128, 1, 4)),
        },
        hidden_size=64,
        vocab_size=1000,
    )
    gpu = find_gpu("h100-80g")
    with pytest.raises(UsageError, match=r"sglang 0\.5 has no KV cache for it"):
        kv_cache(MODEL, KvQuestion(gpu=gpu, engine="sglang"), parts=lambda _: states)
    answer = kv_cache(MODEL, KvQuestion(gpu=gpu), parts=lambda _: states)
    assert answer.sizing.pool.block_bytes == 2 * (128 * 3 + 128 * 16)
    assert answer.num_requests == answer.sizing.pool.num_blocks


def test_a_release_between_two_has_the_rules_of_the_older() -> None:
    assert ask(release="0.6.4").release == ask(release="v0.6").release == "0.6"
    assert ask(release="0.10.2").release == "0.8"


def test_only_models_of_transformers_are_served() -> None:
    question = KvQuestion(gpu=find_gpu("h100-80g"))
    with pytest.raises(UsageError, match="is no model of transformers"):
        kv_cache(WorkloadRef(kind="builtin", target="davenet"), question)
