"""The server of the page: what it serves, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from autofit.errors import InfrastructureError, InternalError, UsageError
from autofit.hardware.gpus import catalogue
from autofit.ui.answers import Answers
from autofit.ui.page import rendered
from autofit.ui.server import application, is_loopback, listening
from autofit.ui.threads import Threads

Ask = Callable[[TestClient[Any, Any]], Awaitable[Any]]
JSON = {"Content-Type": "application/json"}


def served(ask: Ask, page: str = "the page") -> Any:
    """What a client learns of the server."""

    async def run() -> Any:
        stop = threading.Event()
        answers = Answers(Threads(1, stop), Threads(1, stop), lambda error: InternalError(str(error)))
        async with TestClient(TestServer(application(answers, page, "token"))) as client:
            return await ask(client)

    return asyncio.run(run())


def status(path: str, **given: Any) -> int:
    async def ask(client: TestClient[Any, Any]) -> int:
        method = "POST" if "data" in given else "GET"
        return (await client.request(method, path, **given)).status

    return int(served(ask))


def test_the_page_and_its_files_are_there_with_a_policy_that_loads_nothing_from_elsewhere():
    async def ask(client: TestClient[Any, Any]) -> None:
        response = await client.get("/token/")
        assert (response.status, await response.text()) == (200, "the page")
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "http" not in policy
        assert response.headers["Referrer-Policy"] == "no-referrer"
        for name in ("style.css", "drawing.js", "ui.js", "plotly.js"):
            response = await client.get(f"/token/{name}")
            assert response.status == 200
            assert len(await response.text()) > 500

    served(ask)


@pytest.mark.parametrize("path", ["/", "/token", "/other/", "/token/../token/x", "/answer"])
def test_without_the_token_there_is_nothing(path: str):
    assert status(path) == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "10.0.0.1", "localhost.evil.example"])
def test_another_name_of_this_address_is_refused(host: str):
    assert status("/token/", headers={"Host": host}) == 421
    assert status("/token/answer", data=b"{}", headers={**JSON, "Host": host}) == 421


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:80"])
def test_a_tunnel_s_port_is_none_of_our_business(host: str):
    assert status("/token/", headers={"Host": host}) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_of_other_origins_are_refused(headers: dict[str, str]):
    assert status("/token/answer", data=b"{}", headers={**JSON, **headers}) == 403


def test_a_form_of_another_site_cannot_be_a_move():
    assert status("/token/answer", data=b"{}", headers={"Content-Type": "text/plain"}) == 415
    assert status("/token/answer", data=b" " * 100_000, headers=JSON) == 413


def test_bad_moves_are_documents_of_errors():
    async def ask(client: TestClient[Any, Any]) -> None:
        response = await client.post("/token/answer", data=b"{", headers=JSON)
        assert response.status == 400
        assert (await response.json(content_type=None))["error"]["kind"] == "usage"
        body = json.dumps({"tab": "a", "number": 1, "model": "nope", "batch_size": 8})
        response = await client.post("/token/answer", data=body, headers=JSON)
        assert response.content_type == "application/x-ndjson"
        (line,) = (await response.text()).splitlines()
        assert json.loads(line)["error"]["kind"] == "unknown-model"

    served(ask)


def test_the_page_shows_its_first_values_and_escapes_them():
    page = rendered(model='"><script>', gpu=catalogue()["t4"], batch_size=70)
    assert "<script>" not in page
    assert '<option value="t4" selected>' in page
    assert 'value="70"' in page
    assert "http" not in page


def test_only_the_loopback_interface_is_served():
    assert [is_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "0.0.0.0", "", "x")] == [
        *(True, True, True),
        *(False, False, False),
    ]
    with pytest.raises(UsageError, match="not a loopback address"):
        listening("0.0.0.0", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InfrastructureError, match="in use"):
        listening("127.0.0.1", taken.getsockname()[1])
