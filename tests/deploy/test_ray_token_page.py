"""How a token is made and copied, by the page's own commands and Ray's own program."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.places import DEPLOY

pytestmark = pytest.mark.process

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# In the place of ssh: another home directory on this machine.
SSH = """#!/usr/bin/env bash
[ "$1" = node ] && cd "$HOME_OF_NODE" && HOME=$HOME_OF_NODE exec bash -c "$2"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def ran(home: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a shell that has nothing else of this machine's environment."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"umask 022; {command}"],
        env={"HOME": str(home), "PATH": PATH, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_pages_commands_make_one_token_for_all_nodes_that_its_user_alone_reads(
    home: Path, tmp_path: Path
) -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```sh\n([^`]*ray get-auth-token[^`]*)^```", page, re.MULTILINE)
    programs, node = tmp_path / "programs", tmp_path / "node"
    programs.mkdir()
    node.mkdir()
    (programs / "ssh").write_text(SSH, encoding="utf-8")
    (programs / "ssh").chmod(0o755)
    given = {"PATH": f"{programs}{os.pathsep}{PATH}", "HOME_OF_NODE": str(node)}
    tokens = []
    for _ in range(2):  # once more changes nothing
        made = ran(home, commands, **given)
        assert (made.returncode, made.stdout) == (0, ""), made.stderr
        for file in (home / ".ray" / "auth_token", node / ".ray" / "auth_token"):
            tokens.append(file.read_text(encoding="ascii"))
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}", tokens[0])
    assert set(tokens) == {tokens[0]}


def test_ray_itself_lets_others_read_the_token_and_prints_it(home: Path) -> None:
    """What the page's `umask` and `>/dev/null` are for."""
    made = ran(home, "ray get-auth-token --generate")
    file = home / ".ray" / "auth_token"
    assert made.stdout == file.read_text(encoding="ascii")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.mark.parametrize("variable", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_where_there_is_a_token_already_it_is_printed_and_none_is_written(
    home: Path, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "mine").write_text("of-mine\n", encoding="ascii")
    value = {"RAY_AUTH_TOKEN": "of-mine", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "mine")}[variable]
    told = ran(home, "ray get-auth-token --generate", **{variable: value})
    assert (told.returncode, told.stdout) == (0, "of-mine")
    assert not (home / ".ray").exists()


def test_no_token_is_made_where_the_variable_names_a_file_that_is_missing(home: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    told = ran(home, "ray get-auth-token --generate", RAY_AUTH_TOKEN_PATH=str(missing))
    assert told.returncode == 1
    assert f"cannot be opened or is empty: {missing}" in told.stderr
    assert not missing.exists()
    assert not (home / ".ray").exists()
