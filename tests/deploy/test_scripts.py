"""All shell scripts for operators, as a shell and its linter read them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.places import DEPLOY

SCRIPTS = sorted([*DEPLOY.glob("*/*.sh"), *DEPLOY.glob("*/*.sbatch")])

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@pytest.mark.process
@every_script
def test_bash_reads_the_script(script: Path) -> None:
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.process
@every_script
@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed (Debian: shellcheck)"
)
def test_shellcheck_finds_nothing(script: Path) -> None:
    checked = subprocess.run(
        ["shellcheck", "--external-sources", "--source-path=SCRIPTDIR", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


@every_script
def test_a_script_that_is_run_is_executable(script: Path) -> None:
    is_run = script.read_text(encoding="utf-8").startswith("#!")
    assert os.access(script, os.X_OK) == is_run
