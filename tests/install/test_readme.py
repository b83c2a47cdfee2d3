"""The README's commands run as they stand there, and its sample output is what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import missing_line
from tests.install.environments import ROOT, Environment, environment, project

pytestmark = pytest.mark.process

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "pages" / "largest-batch.md").read_text(encoding="utf-8")

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SETUP_FILE = re.compile(r"^```python\n(# train_setup\.py\n.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[str]:
    """The commands of the README's shell blocks, without the comments behind them."""
    for language, block in _BLOCK.findall(README):
        if language == "sh":
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words[0] == "autofit":
                    yield shlex.join(words)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of all commands."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel, installed; test_namesake.py and test_beside_users_files.py try the editable kind too."""
    return environment(tmp_path_factory.mktemp("wheel") / "environment", "wheel")


@pytest.fixture(scope="module")
def folder(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, in which one command finds what the one before it wrote."""
    return project(tmp_path_factory.mktemp(f"project-{installed.kind}"))


def test_the_workload_file_is_the_one_of_the_examples():
    found = _SETUP_FILE.search(README)
    assert found is not None
    assert found[1] == (ROOT / "configs" / "examples" / "train_setup.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", list(commands()))
def test_the_command_answers(
    command: str, installed: Environment, folder: Path, state: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(state))
    done = installed.run(*shlex.split(command), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or done.stderr.startswith("wrote ")


def test_the_sample_output_is_what_is_printed(installed: Environment, folder: Path):
    first = next(
        block for language, block in _BLOCK.findall(README) if "pip install" in block and language == "sh"
    )
    command = first.strip().rpartition(" && ")[2]
    done = installed.run(*shlex.split(command), cwd=folder)
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    shown = next(block for _, block in _BLOCK.findall(README) if block.startswith("davenet · "))
    rest = next(block for _, block in _BLOCK.findall(PAGE) if block.startswith("Where the memory goes"))
    assert missing_line(shown.splitlines(), printed) is None
    lines = iter(printed)
    assert [line for line in rest.splitlines() if line not in lines] == []  # in their order
