"""`autofit kv`, with an answer of a model that is listed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.shell_completion import ShellComplete

from autofit.cli.app import autofit as group
from autofit.events import EventSink
from autofit.questions.kv import KvCache, KvQuestion, kv_cache
from autofit_workers.spec.protocol import WorkloadRef
from tests.autofit.serving.models import LLAMA_3_8B_PARTS
from tests.commands import Finished

Autofit = Callable[..., Finished]


def door(workload: WorkloadRef, question: KvQuestion, _emit: EventSink) -> KvCache:
    return kv_cache(workload, question, parts=lambda _: LLAMA_3_8B_PARTS)


def ask(autofit: Autofit, *options: str, gpu: str = "h100-80g") -> Finished:
    return autofit("kv", "--model", "hf:llama", "--gpu", gpu, *options, kv=door)


def test_it_prints_the_parts_the_cache_and_the_command(autofit: Autofit) -> None:
    done = ask(autofit, "--engine-release", "0.6", "--length", "2048")
    assert done.code == 0
    for words in ("weights", "activations", "CUDA context", "= KV cache", "131,072", "of 2,048 tokens"):
        assert words in done.out
    assert "vllm serve llama --gpu-memory-utilization 0.9 --max-num-batched-tokens 8192" in done.out


def test_it_prints_how_fast_the_server_is(autofit: Autofit) -> None:
    done = ask(autofit, "--length", "2048")
    for words in ("Speed", "first, ms", "token, ms", "tokens/s", "usually within"):
        assert words in done.out
    done = ask(autofit, gpu="rtx-4090")
    assert "Speed" not in done.out
    assert "no seconds are stated" in done.out


def test_it_prints_one_document(autofit: Autofit) -> None:
    done = ask(autofit, "--json", "--engine", "sglang")
    document: dict[str, Any] = json.loads(done.out)
    assert (done.code, document["engine"], document["fits"]) == (0, "sglang", True)


def test_nothing_left_is_an_answer_with_a_code_of_its_own(autofit: Autofit) -> None:
    done = ask(autofit, gpu="t4")
    assert done.code == 3
    assert "are missing on each card" in done.out
    assert "--tensor-parallel 2" in done.out


def test_bad_input_is_one_sentence(autofit: Autofit) -> None:
    for options, words in (
        (["--engine", "ollama"], "'ollama' is not one of vllm, sglang, tgi"),
        (["--tensor-parallel", "5"], "does not divide the model's 32 attention heads"),
        (["--gpu-memory-utilization", "90"], "is not a share of the card"),
    ):
        done = ask(autofit, *options)
        assert done.code == 2
        assert words in done.err
        assert done.err.count("\n") <= 2  # and the stage of the progress


def test_the_shell_completes_engines_and_cards() -> None:
    shell = ShellComplete(group, {}, "autofit", "_AUTOFIT_COMPLETE")
    engines = shell.get_completions(["kv", "--engine"], "s")
    assert [each.value for each in engines] == ["sglang"]
    assert "h100-80g" in [each.value for each in shell.get_completions(["kv", "--gpu"], "h100")]
