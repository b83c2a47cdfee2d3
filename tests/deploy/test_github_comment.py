"""The comment that the GitHub Action writes, with GitHub's API answered by a server on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.deploy.places import DEPLOY

pytestmark = pytest.mark.process

SCRIPT = DEPLOY / "github" / "comment.py"
TOKEN = "a token of the run"


@dataclass
class GitHub:
    """A pull request's comments, as GitHub keeps them.

    Attributes:
        refusals: statuses, and seconds for Retry-After, with which the next requests are answered.
    """

    url: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[tuple[int, str | None]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, content: dict[str, Any]) -> Any:
        """Answer to a request, by GitHub's documentation of its REST API for issues' comments."""
        parts = urlsplit(path)
        if method == "GET" and parts.path == "/repos/team/project/issues/7/comments":
            asked = parse_qs(parts.query)
            page, size = int(asked["page"][0]), int(asked["per_page"][0])
            assert size <= 100
            return self.comments[(page - 1) * size : page * size]
        if method == "POST" and parts.path == "/repos/team/project/issues/7/comments":
            self.comments.append({"id": len(self.comments), **content})
            return self.comments[-1]
        edited = re.fullmatch(r"/repos/team/project/issues/comments/(\d+)", parts.path)
        if method == "PATCH" and edited is not None:
            self.comments[int(edited[1])].update(content)
            return self.comments[int(edited[1])]
        raise AssertionError(f"{method} {path} is no request of comments")


@pytest.fixture
def github() -> Iterator[GitHub]:
    state = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
            state.requests.append(self.command)
            if state.refusals:
                status, wait = state.refusals.pop(0)
                self.send_response(status)
                if wait is not None:
                    self.send_header("Retry-After", wait)
                self.end_headers()
                return
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
            body = json.dumps(state.answer(self.command, self.path, content)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - names that the base class looks up

        def log_message(self, *_arguments: object) -> None:
            """Keeps the output of tests free of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


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
