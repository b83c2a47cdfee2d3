"""The server: its paths, its port, and clients that behave badly; over HTTP on the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from autofit.errors import ExitCode, InfrastructureError
from autofit.serve.server import HttpServer, serve_metrics


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("apples", "Apples.", registry=registry).set(3)
    return registry


@pytest.fixture
def reasons() -> list[str]:
    """Why the server is not ready; it is while this is empty."""
    return []


@pytest.fixture
def server(registry: CollectorRegistry, reasons: list[str]) -> Iterator[HttpServer]:
    server = serve_metrics(registry, 0, checks={"/readyz": lambda: reasons[0] if reasons else None})
    yield server
    server.close()


def get(server: HttpServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_metrics_are_the_registry(server: HttpServer):
    status, text = get(server, "/metrics")
    assert (status, text.splitlines()[-1]) == (200, "apples 3.0")


def test_checks_answer_with_200_or_with_503_and_the_reason(server: HttpServer, reasons: list[str]):
    assert get(server, "/readyz") == (200, "ok\n")
    reasons.append("the storage cannot be read")
    assert get(server, "/readyz") == (503, "the storage cannot be read\n")
    assert get(server, "/healthz") == (200, "ok\n")


def test_another_path_says_which_there_are(server: HttpServer):
    status, text = get(server, "/")
    assert status == 404
    assert "/metrics, /healthz, /readyz" in text


def test_a_client_that_says_nothing_keeps_nobody_waiting(server: HttpServer):
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(server, "/metrics")[0] == 200


def test_it_listens_on_ipv6_where_it_is_told_to(registry: CollectorRegistry):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        server = serve_metrics(registry, 0, "::1")
    except InfrastructureError:
        pytest.skip("this machine has no IPv6 address")
    with urllib.request.urlopen(f"http://[::1]:{server.port}/metrics", timeout=10) as response:
        assert response.status == 200
    server.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_is_a_clear_error(registry: CollectorRegistry, host: str):
    with pytest.raises(InfrastructureError, match=f"metrics cannot be served on {host}:0"):
        serve_metrics(registry, 0, host)


def test_closing_frees_the_port(registry: CollectorRegistry):
    server = serve_metrics(registry, 0)
    server.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10)
    again = serve_metrics(registry, server.port)
    assert again.port == server.port
    again.close()


def test_a_port_in_use_is_a_clear_error(registry: CollectorRegistry):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InfrastructureError, match=rf"127\.0\.0\.1:{port} \(Address already in use\)"
        ) as raised:
            serve_metrics(registry, port)
    assert raised.value.exit_code is ExitCode.INFRASTRUCTURE
    assert "choose a free port" in raised.value.message


def test_a_slow_sender_is_cut_off_while_others_are_answered(registry: CollectorRegistry):
    server = serve_metrics(registry, 0, request_seconds=0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        assert get(server, "/metrics")[0] == 200
        with contextlib.suppress(ConnectionError):
            while not select.select([slow], [], [], 0.1)[0]:
                slow.sendall(b"X-Header: 1\r\n")
            assert slow.recv(1) == b""
    server.close()


def test_the_oldest_connection_gives_way_where_there_are_too_many(registry: CollectorRegistry):
    server = serve_metrics(registry, 0, max_connections=3)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3)]
    assert get(server, "/metrics")[0] == 200
    assert silent[0].recv(1) == b""
    silent[2].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert silent[2].recv(15) == b"HTTP/1.0 200 OK"
    for each in silent:
        each.close()
    server.close()


def test_a_burst_leaves_the_newest_connections_alone(registry: CollectorRegistry):
    """All of them come while the server is busy, and are taken in at once."""
    is_busy, may_go_on = threading.Event(), threading.Event()

    def keep_busy() -> None:
        is_busy.set()
        assert may_go_on.wait(60)

    server = serve_metrics(registry, 0, checks={"/busy": keep_busy}, max_connections=20, request_seconds=600)
    with contextlib.ExitStack() as opened:

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))

        connect().sendall(b"GET /busy HTTP/1.0\r\n\r\n")
        assert is_busy.wait(60)
        burst = [connect() for _ in range(100)]
        may_go_on.set()
        assert get(server, "/healthz")[0] == 200  # in the place of one more
        closed, _, _ = select.select(burst, [], [], 0)
        assert closed == burst[:81]
        assert [each.recv(1) for each in closed] == [b""] * 81
    server.close()


def test_nonsense_of_clients_is_a_line_a_minute_without_traceback(
    server: HttpServer, caplog: pytest.LogCaptureFixture
):
    for nonsense in (
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 100_000,
        b"\x00\xff\r\n\r\n",
    ):
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            with client, contextlib.suppress(ConnectionError):
                client.sendall(nonsense)
                client.shutdown(socket.SHUT_WR)
                client.recv(100)
    assert get(server, "/metrics")[0] == 200
    assert len(caplog.records) <= 1
    assert "Traceback" not in caplog.text


def test_no_file_left_to_open_is_waited_out_without_a_spin():
    """In a process of its own, whose limit is then its own too."""
    finished = subprocess.run(
        [sys.executable, "-c", EXHAUSTED], capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert len(finished.stderr.splitlines()) <= 1


EXHAUSTED = """
import os, resource, socket, time, urllib.request
from prometheus_client import CollectorRegistry
from autofit.serve.server import serve_metrics

server = serve_metrics(CollectorRegistry(), 0)
urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz").read()
waiting = socket.socket()
lowest = os.dup(0)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
waiting.connect(("127.0.0.1", server.port))
waiting.sendall(b"GET /healthz HTTP/1.0\\r\\n\\r\\n")
waiting.settimeout(0.8)
before = time.process_time()
try:
    answer = waiting.recv(15)
except TimeoutError:
    answer = b""
assert answer == b"", answer
assert time.process_time() - before < 0.4, "it spins"
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
waiting.settimeout(60)
assert waiting.recv(15) == b"HTTP/1.0 200 OK"
server.close()
"""
