"""GitHub's API for the comments of a pull request, answered by a server on this machine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

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
