"""Runs a bench as a person does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.bench.smoke")

from tests.bench.smoke import ROOT, Run  # noqa: E402 - what is asserted in is rewritten first
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402
from tests.commands import Finished  # noqa: E402


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a file's benches: what one has made, such as the self-test, serves the next."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def run(request: pytest.FixtureRequest, state: Path) -> Run:
    """Runs the program of a test from the root of the repository, and fails where it ends in a traceback."""
    program, *_ = request.function.programs
    named = program.removesuffix(".py").replace("/", ".")
    command = [sys.executable, "-m", named] if request.function.is_of_module else [sys.executable, program]
    own = {
        "AUTOFIT_STATE_DIR": str(state),
        "GROUND_TRUTH_TABLES": str(DEFAULT_TABLES),
        "PIP_NO_INDEX": "1",  # no bench needs the network here
    }

    def ran(*words: object, code: int | None = 0) -> Finished:
        done = subprocess.run(
            [*command, *map(str, words)],
            cwd=ROOT,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert code is None or done.returncode == code, (done.stdout, done.stderr)
        return Finished(done.returncode, done.stdout, done.stderr)

    return ran
