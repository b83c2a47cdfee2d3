"""Installed autofit leaves the names of users' modules alone, as a wheel and as an editable installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.install.environments import KINDS, Environment, document, environment, project

pytestmark = pytest.mark.process

TAKEN = ("workers", "tests", "deploy", "configs", "utils")


@pytest.fixture(scope="module", params=KINDS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp(request.param) / "environment", request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path)


@pytest.mark.parametrize("name", TAKEN)
def test_nothing_that_is_installed_has_a_name_of_users(installed: Environment, name: str, tmp_path: Path):
    done = installed.run("python", "-c", f"import {name}", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named '{name}'"


def test_importing_autofit_takes_no_module_of_the_folder(installed: Environment, folder: Path):
    code = (
        "import autofit, sys; autofit.check, autofit.tune, autofit.Workload; "
        f"print([name for name in {TAKEN} if name in sys.modules]); "
        "import deploy, tests, utils, workers; "
        "print(workers.NUM_WORKERS, utils.WIDTH, tests.SEED, deploy.NAME)"
    )
    done = installed.run("python", "-c", code, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "0 16 3 mine"]


def test_a_script_that_imports_modules_of_such_names_is_followed(installed: Environment, folder: Path):
    done = installed.run(
        "autofit",
        "check",
        "--script",
        "beside.py",
        "--batch-size",
        "8",
        "--gpu-mem",
        "4G",
        "--json",
        cwd=folder,
    )
    assert document(done)["verdict"] == "fits"


def test_a_workload_that_imports_modules_of_such_names_is_traced(installed: Environment, folder: Path):
    done = installed.run(
        "autofit", "estimate", "beside_setup.py:workload", "--batch-size", "4", "--json", cwd=folder
    )
    found = document(done)
    assert (found["workload"], found["batch_size"]) == ("beside_setup.py:workload", 4)


def test_a_measured_trial_imports_modules_of_such_names(installed: Environment, folder: Path):
    done = installed.run(
        "autofit",
        *("tune", "beside_setup.py:workload", "--device", "cpu", "--gpu-mem", "2G", "--max-batch", "2"),
        *("--dispatch", "inline", "--conv-algo", "onednn", "--soak-steps", "0", "--json"),
        cwd=folder,
    )
    best = document(done)["best"]
    assert isinstance(best, dict)
    assert (best["batch_size"], best["evidence"]) == (2, "measured-cpu")


def test_the_recorder_has_a_door(installed: Environment, folder: Path):
    done = installed.run("python", "-m", "autofit_workers.trials.record", "--help", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "python -m autofit_workers.trials.record" in done.stdout
