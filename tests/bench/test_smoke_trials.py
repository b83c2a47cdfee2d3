"""Each bench that runs trials, in its smallest form: see `test_smoke.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.bench.smoke import Run, assert_says_what_it_exceeds, needs, number_in, of, row_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

WIDE = ("--model", "tests/bench/wide_workload.py:wide", "--gpu-mem", "930M", "--dispatch", "inline")


@pytest.mark.bench
@of("tests/bench/host_accuracy.py")
def test_host_accuracy(run: Run) -> None:
    *_, last = run("mlp", "--sizes", 1).out.splitlines()
    row = re.match(r"mlp +32 \| +([\d.]+) +([\d.]+) .*%.* \| +[\d.]+–?.* (holds|MISSED)$", last)
    assert row is not None, last
    assert float(row[1]) == pytest.approx(float(row[2]), rel=0.25)


@of("tests/bench/conv_memory.py")
def test_conv_memory(run: Run) -> None:
    done = run("--algorithms", "native", "--layers", 2)
    for what in ("forward |", "forward and backward |"):
        assert row_of(done.out, f"native | {what}")[2] == "2"


@pytest.mark.bench
@of("tests/bench/dispatch_speed.py")
def test_dispatch_speed(run: Run) -> None:
    done = run("lstm", "--trials", 1, "--evaluations", 10, code=None)
    assert len(row_of(done.out, "**both: what Ray costs**")) == 3
    _, milliseconds, _ = row_of(done.out, "the trial's own process")
    assert float(milliseconds) > 100  # it imports torch
    assert number_in(row_of(done.out, "lstm,")[1]) > 0
    assert_says_what_it_exceeds(done)


@pytest.mark.bench
@of("tests/bench/service_load.py")
def test_service_load(run: Run) -> None:
    done = run("journal", "--jobs", 1, "--drivers", 1, "--run", "journal", code=None)
    assert len(row_of(done.out, "journal")) == 7
    assert "1 jobs in journal, 1 drivers at once" in done.out
    assert "lost: 0; wrong: 0; more than one driver: 0" in done.out


@pytest.mark.bench
@of("tests/bench/sweep.py")
def test_sweep(run: Run) -> None:
    done = run(*WIDE, "--reach", 0, "--times", 1)
    answer = re.search(r"^answer: (\d+), after", done.out, re.MULTILINE)
    assert answer is not None
    assert f"\n| {answer[1]} | FITS |" in done.out
    assert f"\n| {int(answer[1]) + 1} | OOM |" in done.out
    assert done.out.endswith("the sweep and the search agree\n")


@pytest.mark.bench
@needs("accelerate")
@of("tests/bench/peers.py", "tests/bench/trainers/finders.py")
def test_peers(run: Run) -> None:
    done = run("--training", "rows", "--trainer", "accelerate", "--limit", "900M", code=None)
    for finder in ("own", "autofit"):
        _, _, answer, fits, num_tries, seconds, processor_seconds, sizes = row_of(
            done.out, f"rows | accelerate, {finder}"
        )
        assert int(answer) >= 1
        assert fits == "yes"
        assert sizes.split(", ")[-1] == answer
        assert int(num_tries) == len(sizes.split(", "))
        assert min(float(seconds), float(processor_seconds)) > 0
    assert done.code == ("the criterion holds" not in done.out)


@pytest.mark.bench
@of("tests/bench/time/cpu_steps.py")
def test_cpu_steps(run: Run) -> None:
    done = run("mlp", "--precision", "fp32", "--sizes", 1)
    row = re.compile(r"^mlp +fp32 +\d+  measured +[\d.]+ ms  predicted +[\d.]+ ms", re.MULTILINE)
    assert len(row.findall(done.out)) == 1
    assert "knee: " in done.out.splitlines()[-1]


@pytest.mark.bench
@needs("scipy")
@of("tests/bench/time/fit_cpu.py", "tests/bench/time/cpu_runs.py")
def test_fit_cpu(run: Run, tmp_path: Path) -> None:
    runs, names = tmp_path / "runs.jsonl", ("small_mlp", "deep_filters")
    done = run(
        runs, *(word for name in names for word in ("--name", name)), "--precision", "fp32", "--sizes", 1
    )
    measured = [json.loads(line) for line in runs.read_text(encoding="utf-8").splitlines()]
    assert tuple(each["name"] for each in measured) == names
    assert all(each["seconds"] > 0 and len(each["operators"]) > 10 for each in measured)
    *_, first, second, apart = done.out.splitlines()
    assert (first.split()[0], second.split()[0]) == names
    assert re.match(r"each left out: median [\d.]+%", apart)
