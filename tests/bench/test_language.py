"""The bench of language models: its readers, on lines in the tables' form, and its sums."""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from autofit_workers.spec.knobs import Knobs
from tests.bench import language_models
from tests.bench.language import litgpt, peft, runs, vllm_logs
from tests.bench.language.answers import Answer, KeptAnswers, answered

HEADER = "model,method,checkpointing,torch_version,other\n"
OTHER = (
    "experiment={}; blob=abc; trainable=1000; total=5000; autocast_adapter_dtype={}; "
    "reserved_p99=20000000000; allocated_after_step_avg=6000000000.5"
)


def table(folder: Path, *lines: str) -> Path:
    file = folder / peft.FILE
    file.parent.mkdir()
    file.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return folder


def test_a_row_of_peft_is_two_runs_of_its_experiment(tmp_path: Path):
    lora = OTHER.format("lora/llama-3.2-3B-rank32", "True")
    other_release = f"{peft._MODEL},lora,False,2.9.0+cu128,{lora}"
    row = f"{peft._MODEL},lora,False,2.13.0+cu130,{lora}"
    long, mean = peft.read(table(tmp_path, other_release, row))
    assert long.measured == {"reserved after long steps": 20_000_000_000 + 2 * 2**20}
    assert mean.measured == {"allocated after a step": 6_000_000_000}
    assert long.knobs == mean.knobs == Knobs(adapter="lora:lora_alpha=64,r=32", base="bf16")
    tokens, hidden, num_layers = 4 * peft.LONG, 3072, 28
    assert long.others == {
        "accelerate estimate-memory": 4 * 2 * 5000,
        "16 bytes a parameter, 34 an activation": 2 * 4000 + 16 * 1000 + 34 * tokens * hidden * num_layers,
    }
    make_batch = long.make().make_batch
    lengths = [make_batch(4, torch.device("cpu"))["input_ids"].shape for _ in range(2)]
    assert lengths == [(4, peft.MEAN), (4, peft.LONG)]


def test_options_that_are_tables_reach_the_method_and_what_is_not_cast_stays_in_bfloat16(tmp_path: Path):
    other = OTHER.format("osf/llama-3.2-3B-rank128", "False")
    run, _ = peft.read(table(tmp_path, f"{peft._MODEL},osf,False,2.13.0+cu130,{other}"))
    assert run.knobs.precision == "bf16"
    assert '"rank_pattern": {"down_proj": 2944' in run.knobs.adapter


LITGPT = (
    "litgpt resource-tables.md,phi-1.5 1.3 B,lora+bnb.nf4,{},A100-SXM4-40GB,4,max 1044,seed=1,{},{}\n",
    "litgpt config_hub/finetune,microsoft/phi-2,qlora,{},A10G,4,max 512,config=phi-2/qlora.yaml; a=b,{},{}\n",
)


def test_rows_of_litgpt_are_its_scripts_on_the_card_that_ran_them(tmp_path: Path):
    file = tmp_path / litgpt.FILE
    file.parent.mkdir()
    header = "source,model,method,parallel,gpu,batch_size,seq_len,other,peak_bytes,fit\n"
    of_tutorial, of_hub = LITGPT
    not_traced = (of_hub.format("fsdp1:4", 1000, "yes"), of_tutorial.format("none", "", "error"))
    traced = (of_tutorial.format("none", "", "oom"), of_hub.format("none", 1000, "yes"))
    file.write_text(header + "".join((*not_traced, *traced)))
    out_of_memory, ran = litgpt.read(tmp_path)
    assert (out_of_memory.fits, out_of_memory.measured, out_of_memory.architecture) == (False, {}, "sm_80")
    assert (ran.fits, ran.measured, ran.architecture) == (True, {"allocated peak": 1000}, "sm_86")
    assert (out_of_memory.group, ran.group, ran.batch_size) == ("lora+bnb.nf4", "qlora", 4)
    assert out_of_memory.usable_bytes > ran.usable_bytes
    assert litgpt.TABLE.of_scripts


def test_a_log_of_a_server_is_one_run_with_all_that_it_says(tmp_path: Path):
    file = tmp_path / vllm_logs.FILE
    file.parent.mkdir()
    said = "H100 80GB,gpu_memory_utilization=0.8; vllm serve -tp 2 --max-num-seqs 128,bf16"
    file.write_text(
        "source,model,parallel,url,peak_bytes,peak_kind,gpu,other,precision\n"
        f"vLLM start-up log,a/Meta-Llama-3-8B,tp:2,a/pull/12126,100,vllm: model weights,{said}\n"
        f"vLLM start-up log,a/Meta-Llama-3-8B,tp:2,a/pull/12126,300,vllm: available KV cache,{said}\n"
        f"vLLM start-up log,a/Meta-Llama-3-8B,tp:2,a/pull/12126,7,vllm: non-torch memory,{said}\n"
        f"torchtitan,a/Meta-Llama-3-8B,none,a/pull/1,100,max_reserved,{said}\n"
    )
    (run,) = vllm_logs.read(tmp_path)
    assert run.measured == {"weights": 100, "KV cache": 300}
    assert isinstance(run.predict, functools.partial)
    assert run.predict.args[2] == {
        "gpu_memory_utilization": 0.8,
        "max_num_seqs": 128,
        "tensor_parallel": 2,
        "release": "0.7",
        "dtype": "bf16",
    }


def test_what_is_not_traced_is_predicted_by_the_run_itself():
    run = runs.UntracedRun(
        table="t",
        name="n",
        group="g",
        predict=lambda: {"weights": 99, "KV cache": 1},
        batch_size=1,
        architecture="",
        measured={"weights": 100},
    )
    assert language_models.predict(run).predicted == {"weights": 99}


def test_a_run_that_was_not_traced_is_infinitely_wrong():
    run = runs.Run(
        table="t",
        name="n",
        group="g",
        make=pytest.fail,
        batch_size=1,
        architecture="sm_80",
        measured={"peak": 100},
    )
    answers = [Answer(predicted={"peak": 98}), Answer(failure="no")]
    errors = language_models.errors_of([run, run], answers, "peak")
    assert errors == [pytest.approx(-0.02), math.inf]
    assert language_models.at_share(errors, 0.5) == pytest.approx(0.02)
    assert language_models.at_share(errors, 0.9) == math.inf


def _run(name: str) -> runs.UntracedRun:
    return runs.UntracedRun(table="t", name=name, group="g", predict=dict, batch_size=1, architecture="")


def test_runs_that_were_answered_are_not_run_again(tmp_path: Path):
    file = tmp_path / "answers.json"
    every = [_run("first"), _run("second"), _run("third")]
    asked: list[str] = []

    def predict(run: runs.Measured) -> Answer:
        asked.append(run.name)
        if run.name == "second" and len(asked) < 3:
            return Answer(failure="no memory")
        return Answer(predicted={"peak": len(run.name)}, safe={"peak": 9}, seconds=1.5)

    with ThreadPoolExecutor(1) as pool:
        found, answers = answered(every, predict, pool, KeptAnswers(file), most_new=2)
        assert [run.name for run in found] == asked == ["first", "second"]
        assert [answer.failure for answer in answers] == ["", "no memory"]
        found, answers = answered(every, predict, pool, KeptAnswers(file), most_new=0)
        assert [run.name for run in found] == asked == ["first", "second"]
        found, answers = answered(every, predict, pool, KeptAnswers(file))
    assert asked[2:] == ["second", "third"]
    assert found == every
    assert [answer.predicted["peak"] for answer in answers] == [5, 6, 5]
    assert answers[0] == Answer(predicted={"peak": 5}, safe={"peak": 9}, seconds=1.5)
    assert [each.name for each in tmp_path.iterdir()] == ["answers.json"]
