"""The GitHub Action, GitLab's template and the hook of pre-commit, run as those tools run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.github_api import GitHub, github
from tests.deploy.places import DEPLOY, ROOT, documents

pytestmark = pytest.mark.process

__all__ = ["github"]  # a fixture

ACTION = DEPLOY / "github" / "action.yml"
MODEL = """\
import torch
import autofit


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024)

    def forward(self, x):
        return self.layer(x).relu()


workload = autofit.Workload(
    build_model=Net,
    make_batch=lambda batch_size, device: torch.randn(batch_size, 1024, device=device),
    loss=lambda model, batch: model(batch).sum(),
    optimizer="sgd",
)
"""
GROWN = MODEL.replace("return self.layer(x).relu()", "return (self.layer(x).double() ** 2).relu()")
CONFIGURED = """\
[tool.autofit.lock.configurations.net]
model = "net.py:workload"
batch-size = 65536
gpu = "t4"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment with `autofit` and `python` on its path, as after the action's first step."""
    programs = tmp_path_factory.mktemp("bin")
    for name, arguments in (("autofit", " -m autofit.cli"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return {
        "PATH": f"{programs}{os.pathsep}{os.defpath}",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "workers"))),
        "HOME": str(programs),
        "AUTOFIT_STATE_DIR": str(tmp_path_factory.mktemp("state")),
    }


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A repository whose memory is locked, and has grown since."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_text(CONFIGURED)
    (folder / "net.py").write_text(MODEL)
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["autofit", "lock", "--quiet"], cwd=folder, env=environment, check=True, timeout=120)
    (folder / "net.py").write_text(GROWN)
    return folder


class Runner:
    """Runs the steps of a composite action, as far as this one uses them.

    Args:
        inputs: inputs that a workflow gives.
        folder: the checkout.
        environment: variables of the job.
    """

    def __init__(self, inputs: Mapping[str, str], folder: Path, environment: Mapping[str, str]) -> None:
        [self._action] = documents(ACTION)
        defaults = {name: each.get("default", "") for name, each in self._action["inputs"].items()}
        self._values = {f"inputs.{name}": value for name, value in (defaults | dict(inputs)).items()}
        self._values["github.token"] = "a token of the run"
        self._folder, self._environment = folder, dict(environment)
        self.used: list[dict[str, str]] = []

    def run(self) -> int:
        """Runs the steps until one fails; returns its exit code, or 0."""
        for step in self._action["runs"]["steps"]:
            if "if" in step and not self._holds(step["if"]):
                continue
            if "uses" in step:
                self.used.append({name: self._filled(value) for name, value in step["with"].items()})
            elif code := self._run(step):
                return code
        return 0

    def _run(self, step: dict[str, Any]) -> int:
        outputs = self._folder / ".git" / "outputs"
        outputs.write_text("")
        variables = {name: self._filled(value) for name, value in step.get("env", {}).items()}
        assert "${{" not in step["run"], "inputs reach scripts by the environment alone"
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self._folder / self._filled(step.get("working-directory", ".")),
            env={**self._environment, **variables, "GITHUB_OUTPUT": str(outputs)},
            check=False,
            timeout=120,
        )
        for line in outputs.read_text().splitlines():
            name, _, value = line.partition("=")
            self._values[f"steps.{step['id']}.outputs.{name}"] = value
        return ended.returncode

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: self.value(match[1]), text)

    def value(self, name: str) -> str:
        """Value of an input or output; an output that was not set is empty, as GitHub has it."""
        assert name in self._values or name.startswith("steps.")
        return self._filled(self._values.get(name, ""))

    def _holds(self, condition: str) -> bool:
        clauses = condition.removeprefix("${{ ").removesuffix(" }}").split(" && ")
        found = [re.fullmatch(r"([\w.-]+) (==|!=) '(.*)'", clause) for clause in clauses]
        return all(each and (self.value(each[1]) == each[3]) is (each[2] == "==") for each in found)


@pytest.fixture
def of_pull_request(github: GitHub, tmp_path: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Variables that GitHub sets for a job of a pull request."""
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))
    yield {
        **environment,
        "GITHUB_ACTION_PATH": str(ACTION.parent),
        "GITHUB_API_URL": github.url,
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_REPOSITORY": "team/project",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "RUNNER_TEMP": str(tmp_path),
    }


def test_growth_is_commented_shown_on_its_line_and_fails_the_job(
    github: GitHub, of_pull_request: dict[str, str], locked: Path, tmp_path: Path
) -> None:
    runner = Runner({"install": "", "upload-sarif": "true"}, locked, of_pull_request)
    assert runner.run() == 7
    [comment] = github.comments
    assert comment["body"].startswith("<!-- autofit: ./memory.lock.toml -->\n")
    assert "net.py:11" in comment["body"]
    assert comment["body"].endswith((tmp_path / "summary.md").read_text())
    [uploaded] = runner.used
    [run] = json.loads(Path(uploaded["sarif_file"]).read_text())["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert {"artifactLocation": {"uri": "net.py"}, "region": {"startLine": 11}} in places


def test_a_lock_that_is_missing_is_no_comment_and_the_exit_code_of_a_wrong_option(
    github: GitHub, of_pull_request: dict[str, str], locked: Path
) -> None:
    runner = Runner({"install": "", "lock-file": "none.toml"}, locked, of_pull_request)
    assert runner.run() == 2
    assert github.requests == []


def test_what_did_not_grow_is_commented_and_passes(
    github: GitHub, of_pull_request: dict[str, str], locked: Path
) -> None:
    (locked / "net.py").write_text(MODEL)
    runner = Runner({"install": "", "tolerance": "5%", "names": "net"}, locked, of_pull_request)
    code = runner.run()
    (locked / "net.py").write_text(GROWN)
    assert code == 0
    assert "no peak grew by more than 5%" in github.comments[0]["body"]


def test_gitlabs_job_writes_its_report_and_fails(locked: Path, environment: dict[str, str]) -> None:
    [template] = documents(DEPLOY / "gitlab" / "memory.yml")
    job = template["autofit:memory"]
    codes = [
        subprocess.run(
            ["bash", "-c", line],
            cwd=locked,
            env={**environment, **template["variables"]},
            check=False,
            timeout=120,
        ).returncode
        for line in job["script"]
    ]
    assert codes == [7]
    found = json.loads((locked / job["artifacts"]["reports"]["codequality"]).read_text())
    assert {"path": "net.py", "lines": {"begin": 11}} in [each["location"] for each in found]
    assert all((locked / path).is_file() for path in job["artifacts"]["paths"])


def test_the_hook_of_pre_commit_fails_where_memory_grew(locked: Path, environment: dict[str, str]) -> None:
    [hooks] = documents(ROOT / ".pre-commit-hooks.yaml")
    [hook] = hooks
    assert (hook["language"], hook["pass_filenames"]) == ("system", False)
    ended = subprocess.run(hook["entry"].split(), cwd=locked, env=environment, check=False, timeout=120)
    assert ended.returncode == 7
