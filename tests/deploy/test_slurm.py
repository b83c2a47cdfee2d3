"""The Slurm examples, with Slurm's variables and without Slurm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.deploy.places import DEPLOY, ROOT

pytestmark = pytest.mark.process

PROLOG, BATCH = DEPLOY / "slurm" / "task_prolog.sh", DEPLOY / "slurm" / "tune.sbatch"

MODEL = """
import torch
import autofit

workload = autofit.Workload(
    build_model=lambda: torch.nn.Linear(1024, 1024),
    make_batch=lambda batch_size, device: torch.randn(batch_size, 1024, device=device),
    loss=lambda model, batch: model(batch).sum(),
    optimizer="sgd",
)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "setup.py"
    path.write_text(MODEL, encoding="utf-8")
    return f"{path}:workload"


@pytest.fixture
def slurm(tmp_path: Path, state_dir: Path) -> dict[str, str]:
    """What Slurm sets for a job; the environment has `autofit` on its path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    autofit = programs / "autofit"
    autofit.write_text(f'#!/bin/sh\nexec {sys.executable} -m autofit.cli "$@"\n', encoding="utf-8")
    autofit.chmod(0o755)
    submitted_in = tmp_path / "submitted"
    submitted_in.mkdir()
    return {
        "PATH": f"{programs}{os.pathsep}/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "AUTOFIT_STATE_DIR": str(state_dir),
        "SLURM_JOB_ID": "4711",
        "SLURM_LOCALID": "0",
        "SLURM_SUBMIT_DIR": str(submitted_in),
    }


def run(script: Path, *arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", script, *arguments], env=dict(environment), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("batch_size", "code", "said"),
    [(64, 0, ["fits"]), (10**7, 1, ["does not fit", "job 4711 is stopped"])],
    ids=["fits", "does not fit"],
)
def test_the_prolog_stops_what_does_not_fit(
    slurm: dict[str, str], model: str, batch_size: int, code: int, said: list[str]
) -> None:
    check = f"--model {model} --batch-size {batch_size} --gpu t4"
    done = run(PROLOG, environment={**slurm, "CHECK": check})
    lines = done.stdout.splitlines()
    assert done.returncode == code, done.stderr
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert line.startswith("print autofit: ")  # what Slurm shows to the task
        assert words in line


@pytest.mark.parametrize(
    "variables",
    [{}, {"CHECK": ""}, {"CHECK": "--model davenet --batch-size 1", "SLURM_LOCALID": "1"}],
    ids=["no CHECK", "an empty CHECK", "not the node's first task"],
)
def test_the_prolog_leaves_other_tasks_alone(slurm: dict[str, str], variables: dict[str, str]) -> None:
    done = run(PROLOG, environment={**slurm, **variables})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_prolog_stops_nobody_for_a_check_that_fails(slurm: dict[str, str]) -> None:
    done = run(PROLOG, environment={**slurm, "CHECK": "--model nothing-of-the-kind --batch-size 1 --gpu t4"})
    assert done.returncode == 0
    assert "print autofit: not checked (exit code 2)" in done.stdout


def test_the_batch_job_leaves_its_answer_and_its_journal_where_it_was_submitted(
    slurm: dict[str, str], model: str
) -> None:
    options = ["--model", model, "--gpu", "t4", "--conv-algo", "cudnn", "--max-batch", "64"]
    done = run(BATCH, *options, environment=slurm)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    submitted_in = Path(slurm["SLURM_SUBMIT_DIR"])
    answer = json.loads((submitted_in / "autofit-4711.json").read_text(encoding="utf-8"))
    assert (answer["schema"], answer["best"]["batch_size"]) == ("autofit.tune/1", 64)
    assert "slurm-4711" in (submitted_in / "autofit-4711.journal").read_text(encoding="utf-8")


def test_the_batch_job_asks_slurm_for_a_card_and_for_notice() -> None:
    asked = re.findall(r"^#SBATCH (--\S+)", BATCH.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {"--gres=gpu:1", "--signal=B:INT@120", "--requeue"} <= set(asked)
