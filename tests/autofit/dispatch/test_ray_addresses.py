"""Where no Ray cluster can be had: a clear sentence within seconds, never a wait."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from autofit.dispatch.ray import RayDispatcher
from autofit.errors import DispatchError, ExitCode, UsageError

pytestmark = pytest.mark.process


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as bound:  # bound and not listening, so that nobody else takes it
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silent_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def web_port() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Keeps quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_nobody_listens_at_is_refused(closed_port: str, scheme: str):
    with pytest.raises(DispatchError, match=f"nobody answers at {closed_port}.*refused") as raised:
        RayDispatcher(scheme + closed_port)
    assert raised.value.exit_code is ExitCode.INFRASTRUCTURE


def test_a_listener_that_says_nothing_is_given_up(silent_port: str):
    with pytest.raises(DispatchError, match=f"nobody answers at {silent_port}.*timed out"):
        RayDispatcher(silent_port)


def test_a_web_server_is_told_from_ray(web_port: str):
    with pytest.raises(DispatchError, match=f"what answers at {web_port} is not Ray's head"):
        RayDispatcher(web_port)


def test_auto_follows_the_environment_and_names_where_it_leads(
    closed_port: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", closed_port)
    with pytest.raises(DispatchError, match=f"nobody answers at {closed_port}"):
        RayDispatcher("auto")


@pytest.mark.parametrize(
    "address", ["head", "head:port", "head:99999", "http://head:8265", "ray://head", "ray://:10001"]
)
def test_what_is_no_address_is_a_usage_error_that_shows_one(address: str):
    with pytest.raises(UsageError, match="write local, auto, host:port or ray://host:port") as raised:
        RayDispatcher(address)
    assert raised.value.exit_code is ExitCode.USAGE


def test_a_local_cluster_that_cannot_start_says_why_and_leaves_the_process_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    monkeypatch.setenv("RAY_TMPDIR", str(not_a_folder))
    environment = dict(os.environ)
    with pytest.raises(DispatchError, match=r"Ray cannot start on this machine \(NotADirectoryError"):
        RayDispatcher()
    assert dict(os.environ) == environment
    assert not ray.is_initialized()
