"""Readers of tables of several GPUs, on lines in the tables' form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from autofit_workers.spec.setup import Parallel
from tests.bench.language import llm_foundry, megatron

_MEGATRON = "gpu,batch_size,peak_bytes,other\n"
_FITS = "model,gpu,parallel,batch_size,seq_len,checkpointing,precision,other\n"


def _written(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def test_of_a_case_of_megatron_the_newest_golden_is_read(tmp_path):
    local = {"--transformer-impl": "local", "--bf16": True, "--lr": 0.1, "--save": "there", "--fp16": False}
    config = {"MODEL_ARGS": local, "ENV_VARS": {"NCCL_ALGO": "Ring"}}
    other = {"MODEL_ARGS": {"--bf16": True}, "ENV_VARS": {}}
    t5 = {"MODEL_ARGS": {**local, "--encoder-num-layers": 12}, "ENV_VARS": {}}
    cases = {"x/own": config, "x/of_te": other, "x/t5": t5}
    _written(tmp_path, "llm/megatron_model_configs.json", json.dumps(cases))
    rows = [
        ("A100-80GB", "lts_dgx_a100", "own", 1), ("H100-80GB", "dev_dgx_h100", "own", 2),
        ("A100-80GB", "dev_dgx_a100", "own", 3), ("A100-80GB", "dev_dgx_a100", "of_te", 4),
        ("A100-80GB", "dev_dgx_a100", "t5", 5),
    ]  # fmt: skip
    lines = [
        f"{gpu},4,{peak},test_case={case}; golden=golden_values_{golden}.json"
        for gpu, golden, case, peak in rows
    ]
    _written(tmp_path, "llm/megatron.csv", _MEGATRON + "\n".join(lines))
    (run,) = megatron.read(tmp_path)
    assert (run.architecture, run.measured) == ("sm_90", {"allocated peak": 2})
    assert megatron.words_of(local)[-4:] == ["local", "--bf16", "--lr", "0.1"]


def test_of_runs_that_fit_the_one_with_the_most_tokens_is_read(tmp_path):
    of_7b = "MPT 7b,a100_80gb,fsdp1-SHARD_GRAD_OP:8,{},{},True,{} DEFAULT,{}grad_accum=2; params=1"
    lines = [
        of_7b.format(2, 1024, "amp_bf16", ""),
        of_7b.format(1, 4096, "amp_bf16", ""),
        of_7b.format(9, 4096, "amp_fp8", ""),
        of_7b.format(9, 4096, "amp_bf16", "act_cpu_offload=True; "),
    ]
    _written(tmp_path, "llm/llm_foundry_fits.csv", _FITS + "\n".join(lines))
    (run,) = llm_foundry.read(tmp_path)
    assert (run.batch_size, run.fits, run.measured) == (1, True, {})
    assert run.parallel == Parallel.parse("fsdp1:8+grad-op")
    assert (run.knobs.checkpointing, run.knobs.grad_accumulation) == ("blocks", 2)


@pytest.mark.parametrize(
    ("name", "length", "num_parameters"), [("MPT 125m", 2048, 125_311_488), ("MPT 30b", 512, 29_964_204_032)]
)
def test_the_models_have_as_many_parameters_as_the_table_says(name, length, num_parameters):
    with torch.device("meta"):
        model = llm_foundry.Mpt(llm_foundry.MODELS[name], length)
    assert sum(each.numel() for each in model.parameters()) == num_parameters
