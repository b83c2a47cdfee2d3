"""Each bench in its smallest form: one that names what is no longer there ends here, not after minutes.

Those that run trials are in `test_smoke_trials.py`, so that both files may run side by side.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from autofit_workers.replay.plans.plan import Plan
from tests.bench import test_smoke_trials
from tests.bench.convolution_shapes import all_shapes
from tests.bench.plan_table import DATA, calls
from tests.bench.plan_table_rows import Answer, write_answers
from tests.bench.smoke import (
    Run,
    all_programs,
    assert_says_what_it_exceeds,
    needs,
    needs_tables,
    number_in,
    of,
    row_of,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

# What the columns of `accuracy.py --rows` are that others read.
ROW = {
    "table": "xmem",
    "groups": "",
    "optimizer": "adam",
    "step": "",
    "precision": "fp32",
    "gpu": "rtx-3060",
    "architecture": "sm_86",
    "torch_release": "2.6",
    "limit_bytes": "",
    "constant_bytes": 0,
    "low_bytes": 4 * 10**9,
    "likely_bytes": 4 * 10**9,
    "high_bytes": 4 * 10**9,
    "workspace_likely_bytes": 0,
    "model_class": "convolutional-dense",
    "failure": "",
}


def test_each_program_has_a_test() -> None:
    tests = (*globals().values(), *vars(test_smoke_trials).values())
    tested = {program for test in tests for program in getattr(test, "programs", ())}
    assert tested == all_programs()
    assert len(tested) > 30


# ── accuracy ─────────────────────────────────────────────────────────────────


def rows_file(folder: Path) -> Path:
    """Rows as `accuracy.py` writes them: 40 of two families, that lie up to 1.9 % above the prediction."""
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        names = ("model", "family", "batch_size", "measured_bytes", "real_bytes", "error", "xMem")
        writer = csv.DictWriter(file, [*ROW, *names])
        writer.writeheader()
        for number in range(40):
            error = number % 20 / 1000
            measured_bytes = round(ROW["likely_bytes"] * (1 + error))  # type: ignore[operator]
            named = (f"net{number}", f"family{number // 20}", 8, measured_bytes, measured_bytes)
            writer.writerow(ROW | dict(zip(names, (*named, -error, ROW["likely_bytes"]), strict=True)))
    return path


@needs_tables
@of("tests/bench/accuracy.py")
def test_accuracy(run: Run, tmp_path: Path) -> None:
    rows, summaries = tmp_path / "rows.csv", tmp_path / "summaries.json"
    done = run(
        *("--table", "synthetic", "--limit", 1, "--jobs", 1, "--cache", tmp_path / "traces"),
        *("--rows", rows, "--json", summaries),
    )
    name, num_rows, num_failed, median, *_ = row_of(done.out, "**synthetic**")
    assert (name, num_rows, num_failed) == ("**synthetic**", "1", "0")
    assert number_in(median) < 10  # in per cent
    with rows.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert int(row["likely_bytes"]) == pytest.approx(int(row["real_bytes"]), rel=0.1)
    assert ROW.keys() <= row.keys(), "calibrate.py, coverage.py and accuracy_plot.py read these"
    (document,) = json.loads(summaries.read_text(encoding="utf-8"))
    assert document


@of("tests/bench/calibrate.py")
def test_calibrate(run: Run, tmp_path: Path) -> None:
    done = run(rows_file(tmp_path), "--class", "convolutional-dense")
    assert "40 rows compare, 0 are left out" in done.out
    assert "convolutional-dense on ampere-ada: 40 rows, 2 families" in done.out
    assert "100.0 % of rows covered" in done.out


@of("tests/bench/coverage.py")
def test_coverage(run: Run, tmp_path: Path) -> None:
    done = run(rows_file(tmp_path))
    assert row_of(done.out, "card")[:4] == ["card", "rtx-3060", "40", "100.0 %"]
    assert row_of(done.out, "PyTorch")[1:3] == ["2.6", "40"]


@needs("matplotlib")
@of("tests/bench/accuracy_plot.py")
def test_accuracy_plot(run: Run, tmp_path: Path) -> None:
    figure = tmp_path / "figure.svg"
    run(rows_file(tmp_path), "--out", figure)
    drawn = figure.read_text(encoding="utf-8")
    assert "<!-- xMem's runs, 40 peaks -->" in drawn
    assert {"<!-- autofit -->", "<!-- xMem -->"} <= {line.strip() for line in drawn.splitlines()}


@needs_tables
@needs("transformers")
@of("tests/bench/language_models.py")
def test_language_models(run: Run) -> None:
    done = run("--table", "fsdp_qlora_stages", "--limit", 1, "--jobs", 1, "--rows")
    for stage in ("the model", "forward"):
        *_, num_runs, median, _, _ = row_of(done.out, f"fsdp_qlora_stages | allocated after {stage}")
        assert num_runs == "1"
        assert float(median.rstrip("%")) < 2
        assert re.search(
            rf"^fsdp_qlora_stages 00-profile.*: allocated after {stage} ", done.err, re.MULTILINE
        )


@needs_tables
@of("tests/bench/streams.py")
def test_streams(run: Run) -> None:
    done = run("silmont2000-mem_snapshot")
    _, requests, start, made, *_ = row_of(done.out, "silmont2000-mem_snapshot")
    assert (requests, start, made) == ("36", "0 (0.0)", "9, 0")
    assert done.out.endswith("all are the same\n")


@of("tests/bench/snapshot_runs.py")
def test_snapshot_runs(run: Run) -> None:
    assert run().out == "skipped: name a checkout by --repository\n"
    assert "there are Wedsonlin-medium_128_training" in run("other", code=2).err


@needs("transformers")
@of("tests/bench/models.py")
def test_models(run: Run) -> None:
    done = run("--only", "^(t5-small|vit-base)$")
    assert done.out.endswith("2 of 2 as transformers has them; 2 as published\n")


@of("tests/bench/conv_plans.py")
def test_conv_plans(run: Run) -> None:
    done = run("--models", "davenet", "--batch-size", 2)
    _, mixed, largest, *_ = row_of(done.out, "0 |")
    assert float(mixed) >= 1
    assert float(largest) == 0
    assert row_of(done.out, "2048 |")[1] == "1.000"


@needs("timm")
@of("tests/bench/convolution_shapes.py", as_module=True)
def test_convolution_shapes(run: Run, tmp_path: Path) -> None:
    written = tmp_path / "shapes.json.gz"
    done = run("--family", "unet", "--out", written)
    assert "unet: 18 of 18" in done.out
    rows = json.loads(gzip.decompress(written.read_bytes()))
    assert {row[0] for row in rows} == {"unet"}
    assert len(rows) == 18


@of("tests/bench/plan_table.py", as_module=True)
def test_plan_table(run: Run, tmp_path: Path) -> None:
    answers, tables = tmp_path / "answers", tmp_path / "tables"
    plans = (Plan(-1, 1024, False, True), Plan(-1, 0, False, True))
    some = calls(all_shapes(), 400, "float32", 80)
    asked = [Answer(family=family, call=call, plans=plans) for family, call in some]
    write_answers(answers, "sm_80-9.20.0-float32", asked)
    done = run("build", "--answers", answers, "--out", tables)
    (table,) = tables.iterdir()
    assert (DATA / table.name).exists()
    assert f"{table.name}: {len(asked)} calls, {table.stat().st_size} bytes" in done.out
    done = run("check", "--answers", answers, "--families", asked[0].family)
    assert re.search(r"sm_80 cuDNN 9.20.0 float32 contiguous: .*all 100 % / \d+ % \(\d+\)", done.out)


@pytest.mark.bench
@of("tests/bench/advice.py")
def test_advice(run: Run) -> None:
    done = run("lstm")
    _, missing, advised, fits, *_ = row_of(done.out, "lstm, batch 256")
    assert (missing, fits) == ("5%", "yes")
    assert advised.startswith("`--")
    assert done.out.endswith("every printed command fits, and nothing is better than what was advised\n")


@of("tests/bench/knob_search.py")
def test_knob_search(run: Run) -> None:
    done = run("lstm", "--vary", "precision", "--vary", "set_to_none")
    _, num_settings, num_on_front, full, found, front, _ = row_of(done.out, "lstm")
    assert (num_settings, front) == ("4", "the same")
    assert 0 < int(num_on_front) <= 4
    assert 0 < int(found.split()[0]) < int(full)


# ── speed ────────────────────────────────────────────────────────────────────


@of("tests/bench/allocator_speed.py")
def test_allocator_speed(run: Run) -> None:
    lines = run("--rounds", 1).out.splitlines()
    assert re.search(r"\d+ events, [1-9]\d* MiB reserved", lines[1])
    assert len(lines[3:]) == 7
    assert all(float(line.split()[-1]) > 0 for line in lines[3:])


@of("tests/bench/mutants.py")
def test_mutants(run: Run) -> None:
    done = run("workers/autofit_workers/replay/time/kernels.py", "--number", 2, "--seed", 1)
    *fates, of_file, of_all = done.out.splitlines()
    assert [fate.partition(": ")[0] in ("killed", "LIVED") for fate in fates] == [True, True]
    assert re.fullmatch(r".*kernels\.py, seed 1: [0-2] of 2 killed", of_file)
    assert re.fullmatch(r"[0-2] of 2 killed: \d+%", of_all)


@pytest.mark.bench
@of("tests/bench/estimate_speed.py")
def test_estimate_speed(run: Run) -> None:
    done = run("lstm", "--questions", 1, "--runs", 1, code=None)
    for what in ("`lstm`", "`tune --model davenet"):
        _, seconds, ratio, *_ = row_of(done.out, what)
        assert min(float(seconds), float(ratio)) > 0
    _, _, seconds, ratio, _ = row_of(done.out, "after `tune --model davenet")
    assert min(float(seconds), float(ratio)) > 0
    assert re.search(r"^One further batch size of resnet50: \d+ ms", done.out, re.MULTILINE)
    assert_says_what_it_exceeds(done)


@of("tests/bench/second_questions.py")
def test_second_questions(run: Run) -> None:
    done = run("--questions", 3)
    assert re.fullmatch(
        r"3 of 3 answers are equal; \d+ s from nothing, \d+ s from what is known;"
        r" \d of \d checks and estimates ran no trial\n",
        done.out,
    )


@of("tests/bench/scale.py")
def test_scale(run: Run) -> None:
    done = run(
        "--jobs",
        "10,20",
        "--trials",
        "50",
        "--studies-of",
        "50",
        "--workers",
        "2,4",
        "--trial-seconds",
        "0.1",
        "sqlite",
    )
    numbers = [int(line.split("|")[2]) for line in done.out.splitlines() if line.startswith("| sqlite")]
    assert numbers == [10, 20, 50, 2, 4]
    assert_says_what_it_exceeds(done)


@of("tests/bench/profile_speed.py")
def test_profile_speed(run: Run) -> None:
    done = run("--runs", 1, "--events", 1000, "--view", "timeline", code=None)
    for what in ("profile of resnet50 at 128", "timeline of 1,000 events"):
        assert number_in(row_of(done.out, what)[1]) > 0
    assert_says_what_it_exceeds(done)


@of("tests/bench/study_load.py")
def test_study_load(run: Run) -> None:
    done = run("--trials", 20, "--block", 10, "--storage", "journal", "--most", 1000)
    assert min(map(float, row_of(done.out, "journal")[1:-1])) > 0


@pytest.mark.bench
@of("tests/bench/serve_load.py")
def test_serve_load(run: Run) -> None:
    small = ("--trials", 30, "--jobs", 2, "--studies", 2, "--scrapes", 5, "--crowd", 1, "--share", 0.02)
    done = run("sqlite", *small, code=None)
    failed, logged = row_of(done.out, "sqlite")[-2:]
    assert re.fullmatch(r"0 of [1-9]\d*", failed)
    assert re.fullmatch(r"\d+ in \d+ s", logged)
    outside = re.search(r"outside of the limits: (none|sqlite)$", done.err)
    assert outside is not None
    assert done.code == (outside[1] != "none")


@of("tests/bench/webhook_load.py")
def test_webhook_load(run: Run) -> None:
    done = run("--reviews", 300, "--clients", 3, code=None)
    assert "wrong answers: 0" in done.out
    for measured in (r"one client: median (\S+) ms", r"3 clients: median \S+ ms, 99th percentile (\S+) ms"):
        found = re.search(measured, done.out)
        assert found is not None
        assert float(found[1]) > 0


@pytest.mark.bench
@of("tests/bench/queue_speed.py")
def test_queue_speed(run: Run) -> None:
    done = run("--jobs", 20, "--others", 10, "--batch", 3, "--repeat", 1, code=None)
    for command in ("submit |", "jobs |", "jobs --newest 20", "submit --batch of 3"):
        assert number_in(row_of(done.out, command)[1]) > 0
    assert_says_what_it_exceeds(done)


# ── times that others measured ───────────────────────────────────────────────


@pytest.mark.bench
@needs_tables
@of("tests/bench/step_times.py")
def test_step_times(run: Run) -> None:
    assert re.search(r"^best product +all +5 ", run("--table", "mamf").out, re.MULTILINE)
    traced = run("--table", "timm_inference", "--limit", 1, "--rows").out.splitlines()
    ratio, seconds, *_ = traced[0].split()
    assert 0.5 < float(ratio) < 2
    assert 0 < float(seconds) < 1
    assert {tuple(line.split()[:3]) for line in traced[2:4]} == {
        ("all", "all", "1"),
        ("all", "rtx-3090", "1"),
    }


@pytest.mark.bench
@needs_tables
@of("tests/bench/matmul_heuristics.py")
def test_matmul_heuristics(run: Run) -> None:
    is_missing = importlib.util.find_spec("nvMatmulHeuristics") is None
    done = run("--table", "vidur", "--rows", 5, code=int(is_missing))
    assert re.findall(r"^vidur (\w+): \d products", done.out, re.MULTILINE) == ["a100", "h100", "a40"]
    assert len(re.findall(r"^  ours +as it is +[\d.]+%", done.out, re.MULTILINE)) == 3
    assert ("pip install nvidia-matmul-heuristics" in done.err) == is_missing


def wheel_of(folder: Path, *systems: str) -> Path:
    """A wheel of NVIDIA's with a few rows, which it writes with pyarrow."""
    import pyarrow as pa
    from pyarrow import parquet

    product = {"gemm_dtype": ["bfloat16", "fp8", "int8_wo"], "m": [64] * 3, "n": [4096] * 3, "k": [4096] * 3}
    heads: dict[str, list[object]] = {
        "batch_size": [4],
        "num_heads": [32],
        "num_key_value_heads": [8],
        "head_dim": [128],
    }
    types = {"attn_dtype": ["bfloat16"], "kv_cache_dtype": ["bfloat16"], "latency": [0.2]}
    heads |= {"kernel_source": ["vllm_flash_attn_fa3"]}
    tables = {
        "gemm/vllm/1/gemm_perf": {**product, "latency": [0.015] * 3},
        "attention/vllm/1/context_attention_perf": {**heads, **types, "isl": [2048], "step": [0]},
        "attention/vllm/1/generation_attention_perf": {**heads, **types, "isl": [1], "step": [4095]},
        "comm/nccl/1/nccl_perf": {
            "op_name": ["all_gather", "alltoall", "all_reduce"],
            "nccl_dtype": ["half"] * 3,
            "num_gpus": [8] * 3,
            "message_size": [2**24] * 3,
            "latency": [0.12] * 3,
        },
    }
    for system in systems:
        for name, columns in tables.items():
            path = folder / system / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pa.table(columns), path)
    return folder


@needs("pyarrow")
@of("tests/bench/kernel_rows.py")
def test_kernel_rows(run: Run, tmp_path: Path) -> None:
    done = run(
        "--wheel", wheel_of(tmp_path, "h100_sxm", "h200_sxm"), "--card", "h100_sxm", "--card", "h200_sxm"
    )
    for name in ("products bfloat16", "products fp8", "attention", "collectives from 1 MB"):
        assert row_of(done.out, f"{name} | h100_sxm")[2] == "fitted"
        assert row_of(done.out, f"{name} | h200_sxm")[2] == "never fitted"
    assert row_of(done.out, "collectives from 1 MB | h100_sxm")[3] == "3"
    assert float(row_of(done.out, "products bfloat16 | h100_sxm")[4].rstrip("%")) < 20


@needs("pyarrow")
@of("tests/bench/time/fit_kernels.py")
def test_fit_kernels(run: Run, tmp_path: Path) -> None:
    done = run("products", "--wheel", wheel_of(tmp_path, "h100_sxm", "h200_sxm"), "--steps", 1)
    assert re.search(r'^"matmul hopper tensor" = \{ is_rated = true, bandwidth = ', done.out, re.MULTILINE)
    assert "#   h200_sxm, never fitted: 1 rows" in done.out


LOAD = {
    "silicon_data_source": "model=Llama; silicon_concurrency=8; measured=today",
    "backend": "vllm",
    "model_path": "made/llama",
    "precision": "fp8",
    "mode": "agg",
    "isl": 1024,
    "osl": 1024,
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "fp8",
    "batch_size": 8,
    "tp_size": 1,
    "attention_dp_size": 1,
    "moe_tp_size": 1,
    "moe_ep_size": 1,
    "silicon_ttft_ms": 50.0,
    "silicon_tpot_ms": 5.0,
}
SERVED = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "quantization_config": {"quant_method": "fp8"},
}


def served_wheel(folder: Path) -> Path:
    """A wheel of NVIDIA's with a model and loads of its servers: two of each system, and some left out."""
    package = folder / "aiconfigurator_core"
    (package / "systems" / "data").mkdir(parents=True)
    (package / "model_configs").mkdir()
    (package / "model_configs" / "made--llama_config.json").write_text(json.dumps(SERVED), encoding="utf-8")
    rows = [
        {
            **LOAD,
            "id": f"{system} {ranks}",
            "system": system,
            "tp_size": ranks,
            "moe_tp_size": ranks,
            "silicon_tpot_ms": 5.0 + ranks,
        }
        for system in ("h100_sxm", "h200_sxm", "b200_sxm")
        for ranks in (1, 2)
    ]
    rows += [{**rows[0], "mode": "disagg"}, {**rows[0], "tp_size": 36, "moe_tp_size": 36}]
    with (package / "systems" / "silicon_sample.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@needs("transformers")
@of("tests/bench/serving_rows.py")
def test_serving_rows(run: Run, tmp_path: Path) -> None:
    done = run("--wheel", served_wheel(tmp_path))
    assert row_of(done.out, "h100_sxm, fitted")[1] == "2"
    assert row_of(done.out, "h200_sxm, never fitted")[1] == "2"
    assert row_of(done.out, "systems never fitted, vllm")[1] == "2"
    assert re.search(r"^order of time of a token, all: [\d.]+% of 9 pairs", done.out, re.MULTILINE)
    assert "token_sigma = " in done.out
    assert done.out.splitlines()[-1] == "left out: disaggregated 1, beyond a node 1"


@pytest.mark.bench
@needs("transformers")
@needs("scipy")
@of("tests/bench/serving/fit.py")
def test_fit_serving(run: Run, tmp_path: Path) -> None:
    done = run("--wheel", served_wheel(tmp_path))
    assert re.search(r"^\[engines\.vllm\]\nstep = ", done.out, re.MULTILINE)
    assert "time of a token, never fitted: 2 rows" in done.out


@of("tests/bench/time/collectives.py")
def test_collectives(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "a100_dgx" / "all_reduce.csv"
    table.parent.mkdir()
    rows = ("2,2,8000000,0.08", "4,4,8000000,0.11", "8,8,500000,0.05", "16,8,8000000,0.9")
    table.write_text("\n".join(["num_workers,devices_per_node,size,time_stats.all_reduce.median", *rows]))
    done = run("--tables", tmp_path, "--between")
    assert row_of(done.out, "all | all_reduce | | from 0")[4] == "3"
    assert "a100_dgx: all_reduce of 16 ranks, 8 a node: " in done.out
    if importlib.util.find_spec("scipy") is not None:
        assert re.search(r"nvlink: tree = [\d.]+; off by [\d.]+", run("--tables", tmp_path, "--fit").out)


@pytest.mark.bench
@needs_tables
@needs("scipy")
@of("tests/bench/time/fit.py")
def test_fit(run: Run) -> None:
    done = run("index", "--evaluations", 20)
    loss = re.match(r"  loss ([\d.]+), before ([\d.]+)\n", done.out)
    assert loss is not None
    assert float(loss[1]) <= float(loss[2])
    assert len(re.findall(r"^  emb +(?:a100|a40|h100) +[\d.]+%", done.out, re.MULTILINE)) == 3


@pytest.mark.bench
@needs_tables
@needs("scipy")
@of("tests/bench/time/fit_steps.py")
def test_fit_steps(run: Run, state: Path) -> None:
    # No other release can be had without a network: its folder is empty, so what is here is traced.
    (state / "bench-libraries" / "timm==0.6.7").mkdir(parents=True)
    done = run("--model", "levit_128s", "--model", "resnet18", "--folds", 2)
    constants = dict(line.rsplit(maxsplit=1) for line in done.out.splitlines() if "|" in line)
    assert float(constants["convolution|half_intensity"]) > 0
    assert re.search(r"^all +median [\d.]+%, p90 [\d.]+%, 4 rows$", done.out, re.MULTILINE)


@pytest.mark.bench
@needs_tables
@needs("scipy")
@of("tests/bench/time/fit_newer.py")
def test_fit_newer(run: Run) -> None:
    done = run("--model", "repvit_m1", "--model", "resnet18", "--folds", 2)
    constants = dict(line.rsplit(maxsplit=1) for line in done.out.splitlines() if "|" in line)
    assert float(constants["depthwise_convolution contiguous|vector"]) > 0
    assert float(constants["convolution|factor"]) > 0
    assert len(re.findall(r"^all +median [\d.]+%, p90 [\d.]+%", done.out, re.MULTILINE)) == 2


# ── scripts and stacks ───────────────────────────────────────────────────────

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(64, 32), torch.randint(10, (64,)))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for samples, labels in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(samples.to(device)), labels.to(device)).backward()
        optimizer.step()
"""
LIST = """
[[script]]
name = "mine/train"
repository = "somebody/mine"
script = "train.py"
"""


@pytest.fixture
def listed(tmp_path: Path) -> tuple[Path, str]:
    """A list of one script, and the folder of its repository as an option."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text(SCRIPT)
    (tmp_path / "list.toml").write_text(LIST)
    return tmp_path / "list.toml", f"--root={tmp_path}"


@pytest.mark.bench
@of("tests/bench/scripts.py")
def test_scripts(run: Run, listed: tuple[Path, str]) -> None:
    done = run(*listed, "--allowed", 1000)
    _, outcome, _, _, changed, left, says = row_of(done.out, "mine/train")
    assert (outcome, changed, left) == ("answered", "", "")
    assert re.fullmatch(r"batch 8: 0\.0\d GiB", says)
    assert "1 of 1, 100 %" in done.out


@of("tests/bench/script_data.py")
def test_script_data(run: Run, tmp_path: Path) -> None:
    (tmp_path / "minGPT").mkdir()
    said = run("--root", tmp_path, "--only", "GPT").out.splitlines()
    assert said == ["karpathy/nanoGPT: not there", "karpathy/minGPT: ready"]
    text = (tmp_path / "minGPT" / "projects" / "chargpt" / "input.txt").read_text(encoding="utf-8")
    assert len(set(text)) == 65  # as many characters as Shakespeare's works have


@pytest.mark.bench
@of("tests/bench/script_events.py")
def test_script_events(run: Run, listed: tuple[Path, str]) -> None:
    _, num_events, num_bytes, said = row_of(run(*listed, "--only", "mine/train").out, "mine/train")
    assert said == "equal"
    assert int(num_events) > 50
    assert int(num_bytes.replace(",", "")) > 64 * 32 * 4


@pytest.mark.bench
@needs("accelerate")
@of("tests/stacks/run.py")
def test_stacks(run: Run) -> None:
    done = run("trainer", "--environment", sys.prefix, "--script", "trainer_evaluates.py")
    _, _, batch, peak, twice, peak_phase, _ = row_of(done.out, "trainer | `trainer_evaluates.py`")
    assert (batch, peak_phase) == ("4", "evaluation")
    assert 0 < float(peak.replace(",", "")) < float(twice.replace(",", ""))


@pytest.mark.bench
@needs("transformers")
@of("tests/stacks/materials.py")
def test_materials(run: Run, tmp_path: Path) -> None:
    run("llama", tmp_path)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "llama"
    assert len(json.loads((tmp_path / "texts.json").read_text())) > 1


@of("tests/bench/placing.py")
def test_placing_reads_kept_jobs_and_prints_a_row_for_each_way(run: Run, tmp_path: Path) -> None:
    jobs = [
        {"name": str(gib), "table": "made up", "real_bytes": gib * 10**9, "safe_bytes": gib * 105 * 10**7}
        for gib in (1, 3, 9, 20, 50)
    ]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps(jobs), encoding="utf-8")
    done = run("--jobs", path)
    for way in ("a card to each job", "a queue", "shared cards"):
        assert row_of(done.out, way)[1:3] == ["5", "0 (0.0%)"]
