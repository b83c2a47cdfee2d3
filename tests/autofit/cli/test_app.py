"""The console entry: what it imports, how usage errors end, completion."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys

import click
import pytest

from autofit.cli import app
from autofit.cli.commands import LISTED
from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobSpec
from tests.job_server import job_server


def python(code: str, *arguments: str, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


# One process: what the first of them does not import, the next may not have imported either.
LIGHT = """
import sys

def require_light(after):
    heavy = {"torch", "ray", "optuna"} & sys.modules.keys()
    assert not heavy, f"{after} imports {heavy}"

from autofit.cli import main
assert main(["--help"]) == 0
assert "rich" not in sys.modules
require_light("--help")
assert main(["gpus"]) == 0
require_light("gpus")
assert main(["completion", "bash"]) == 0
require_light("completion")
import autofit, autofit.tuning.tuner
require_light("the coordinator")
"""


def test_what_needs_neither_torch_nor_ray_nor_optuna_does_not_import_them():
    finished = python(LIGHT)
    assert finished.returncode == 0, finished.stderr


# Modules that a command may import, and those of autofit's own that `--help` needs.
MODULES = """
import sys
before = set(sys.modules)
from autofit.cli import main
code = main(sys.argv[1:])
print(*sorted(sys.modules.keys() - before), file=sys.stderr)
sys.exit(code)
"""


def test_help_imports_no_command_and_few_modules():
    finished = python(MODULES, "--help")
    names = finished.stderr.split()
    assert [name for name in names if name.startswith("autofit.cli.commands.")] == []
    assert [name for name in names if name.startswith(("autofit.settings", "autofit.predict"))] == []
    assert len(names) < 220


@pytest.mark.parametrize("command", ["gpus", "models"])
def test_a_list_needs_nothing_that_predicts_or_dispatches(command):
    finished = python(MODULES, command)
    assert finished.returncode == 0, finished.stderr
    names = finished.stderr.split()
    heavy = ("autofit.predict", "autofit.tuning", "autofit.dispatch.ray", "autofit_workers.trials", "numpy")
    assert [name for name in names if name.startswith(heavy)] == []


def test_jobs_of_a_database_are_listed_without_what_is_heavy(tmp_path):
    storage = f"sqlite:///{tmp_path}/jobs.db"
    with JobQueue.open(storage) as queue:
        queue.enqueue("mine", JobSpec(options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet"))
    finished = python(MODULES, "jobs", f"--storage={storage}")
    assert "mine" in finished.stdout
    names = finished.stderr.split()
    heavy = ("torch", "ray", "optuna", "sqlalchemy", "alembic", "numpy", "requests", "autofit.dispatch.ray")
    assert [name for name in names if name.startswith(heavy)] == []


def test_a_job_is_submitted_without_an_import_of_ray(tmp_path):
    with job_server() as address:
        options = ("--gpu-mem=16G", f"--storage=sqlite:///{tmp_path}/jobs.db", f"--address={address}")
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        finished = python(MODULES, "submit", "davenet", *options, env=environment)
    assert finished.returncode == 0, finished.stderr
    names = finished.stderr.split()
    assert [name for name in names if name in ("ray", "torch", "aiohttp")] == []


def test_the_listed_summaries_are_those_of_the_commands():
    for name, listed in LISTED.items():
        command = app.autofit.commands[name]
        assert command.get_short_help_str(limit=200) == listed.summary
        assert command.name == name


def test_the_version_is_that_of_the_installed_package(autofit):
    finished = autofit("--version")
    assert (finished.code, finished.out) == (0, f"autofit {importlib.metadata.version('autofit-gpu')}\n")


def test_help_lists_the_commands_with_what_is_wanted_most_first(autofit):
    finished = autofit("--help")
    commands = [line.split()[0] for line in finished.out.split("Commands:")[1].splitlines() if line.strip()]
    answers = ["tune", "estimate", "profile", "check", "lock", "diff", "cards", "request", "observe"]
    answers += ["explain", "explain-oom", "compare", "kv", "ui"]
    jobs = ["submit", "jobs", "status", "wait", "result", "logs", "stop", "serve"]
    assert commands == [
        *answers,
        *jobs,
        "models",
        "gpus",
        "conv-algos",
        "mcp",
        "schema",
        "doctor",
        "completion",
    ]
    assert "\n  autofit tune --model davenet --gpu-mem 16G" in finished.out
    assert "..." not in finished.out.split("Commands:")[1]


def test_nothing_at_all_shows_the_help_on_stderr_as_a_usage_error(autofit):
    finished = autofit()
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("Usage: autofit")


def test_a_usage_error_is_one_sentence_with_the_next_step(autofit):
    finished = autofit("tune", "--modle", "davenet")
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("error: No such option '--modle'")
    assert finished.err.endswith("see `autofit tune --help`\n")
    assert finished.err.count("\n") == 1


def test_a_usage_error_is_a_document_with_json(autofit):
    finished = autofit("estimate", "--model", "davenet", "--json")
    assert (finished.code, finished.err) == (2, "")
    document = finished.document
    message = document.pop("message")
    assert document == {"schema": "autofit.error/1", "kind": "usage", "exit_code": 2}
    assert message.startswith("Missing option '--batch-size'")


def test_ctrl_c_outside_a_search_exits_with_130(autofit):
    def interrupted():
        raise KeyboardInterrupt

    assert autofit("doctor", "--json", examine=interrupted).document["kind"] == "interrupted"
    assert autofit("doctor", examine=interrupted).code == 130


def test_a_terminal_without_the_signs_still_gets_the_answer():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    finished = subprocess.run(
        [sys.executable, "-m", "autofit.cli", "models"], capture_output=True, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert b"3?224?224" in finished.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_the_shell(autofit, shell: str):
    finished = autofit("completion", shell)
    assert finished.code == 0
    assert f"_AUTOFIT_COMPLETE={shell}_complete" in finished.out


# What a shell asks for, line after line, in a process that answers as its own would.
COMPLETING = """
import contextlib, io, json, os, sys
from autofit.cli import main

answers = []
for line in json.loads(sys.argv[1]):
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = line, str(len(line.split(" ")) - 1)
    out = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(out)), contextlib.suppress(SystemExit):
        main([])
    answers.append(out.getvalue().decode().split())
heavy = {"torch", "ray", "optuna"} & sys.modules.keys()
assert not heavy, heavy
print(json.dumps(answers))
"""


def test_the_shell_completes_without_importing_what_is_heavy():
    expected = {
        "autofit tune --model davenet-": ["plain,davenet-audio", "plain,davenet-image"],
        "autofit tune --model mine/tr": ["file,mine/tr"],
        "autofit estimate --gpu rtx-409": ["plain,rtx-4090", "plain,rtx-4090-d"],
        "autofit tune --conv-algo cudnn,na": ["plain,cudnn,native"],
        "autofit tune --conv-algo a": ["plain,all"],
        "autofit estimate --task text-g": ["plain,text-generation"],
        "autofit tune --device c": ["plain,cuda", "plain,cpu"],
    }
    environment = {**os.environ, "_AUTOFIT_COMPLETE": "bash_complete"}
    finished = python(COMPLETING, json.dumps(list(expected)), env=environment)
    assert finished.returncode == 0, finished.stderr
    assert dict(zip(expected, json.loads(finished.stdout), strict=True)) == expected


def test_every_command_with_a_model_takes_it_as_an_argument_too():
    with_model = {
        name: [type(each) for each in command.params]
        for name, command in app.autofit.commands.items()
        if any(each.name == "model" for each in command.params)
    }
    assert set(with_model) > {"tune", "estimate", "profile", "check", "cards", "observe", "kv", "submit"}
    assert [name for name, kinds in with_model.items() if click.Argument not in kinds] == []
