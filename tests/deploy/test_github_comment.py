"""The comment that the GitHub Action writes, with GitHub's API answered by a server on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.github_api import TOKEN, GitHub, github
from tests.deploy.places import DEPLOY

pytestmark = pytest.mark.process

__all__ = ["github"]  # a fixture

SCRIPT = DEPLOY / "github" / "comment.py"


def run(
    github: GitHub, folder: Path, text: str, *, event: object = {"pull_request": {"number": 7}}
) -> subprocess.CompletedProcess[str]:
    """Runs the script as a step of the action does."""
    (folder / "event.json").write_text(json.dumps(event))
    (folder / "report.md").write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-I", SCRIPT, folder / "report.md", "./memory.lock.toml"],
        env={
            "PATH": os.defpath,
            "GITHUB_API_URL": github.url,
            "GITHUB_REPOSITORY": "team/project",
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_TOKEN": TOKEN,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_second_run_replaces_the_comment_of_the_first_among_many(github: GitHub, tmp_path: Path) -> None:
    github.comments = [{"id": number, "body": "by people"} for number in range(230)]
    assert run(github, tmp_path, "| a | 2 GiB | größer |").returncode == 0
    assert run(github, tmp_path, "| a | 1 GiB |").returncode == 0
    ours = [comment["body"] for comment in github.comments if comment["body"] != "by people"]
    assert ours == ["<!-- autofit: ./memory.lock.toml -->\n| a | 1 GiB |"]


def test_a_comment_without_a_text_is_passed_over(github: GitHub, tmp_path: Path) -> None:
    github.comments = [{"id": 0, "body": None}]
    assert run(github, tmp_path, "table").returncode == 0
    assert len(github.comments) == 2


def test_a_long_table_is_cut_at_a_line(github: GitHub, tmp_path: Path) -> None:
    assert run(github, tmp_path, "| a row of the table |\n" * 5000).returncode == 0
    body = github.comments[0]["body"]
    assert len(body) <= 65_536
    assert body.endswith("| a row of the table |\n\n… The rest is in the summary of the job.")


def test_a_busy_server_is_asked_again(github: GitHub, tmp_path: Path) -> None:
    github.refusals = [(502, "0"), (429, "0")]
    assert run(github, tmp_path, "table").returncode == 0
    assert (len(github.comments), github.requests) == (1, ["GET", "GET", "GET", "POST"])


def test_a_token_that_may_only_read_is_a_notice(github: GitHub, tmp_path: Path) -> None:
    github.refusals = [(403, None)]
    ended = run(github, tmp_path, "table")
    assert ended.returncode == 0
    assert ended.stdout.startswith("::notice::The token of this run may not write comments")
    assert github.comments == []


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_refusal_is_an_error_of_one_line(github: GitHub, tmp_path: Path, status: int) -> None:
    github.refusals = [(status, "0" if status == 500 else None)] * 4
    ended = run(github, tmp_path, "table")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert re.fullmatch(rf"::error::GitHub refused the comment: {status} .*\n", ended.stdout)


def test_a_server_that_is_away_is_an_error_of_one_line(github: GitHub, tmp_path: Path) -> None:
    github.url = "http://127.0.0.1:1"
    ended = run(github, tmp_path, "table")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert re.fullmatch("::error::GitHub could not be reached: .*\n", ended.stdout)


@pytest.mark.parametrize("event", [{"ref": "refs/heads/main"}, {"pull_request": {}}])
def test_a_push_has_no_comment(github: GitHub, tmp_path: Path, event: object) -> None:
    ended = run(github, tmp_path, "table", event=event)
    assert (ended.returncode, github.requests) == (0, [])
