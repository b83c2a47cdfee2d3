"""The server: its paths, its port, and clients that behave badly; over HTTP on the loopback interface."""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from autofit.errors import ExitCode, InfrastructureError
from autofit.serve.server import MetricsServer, serve_metrics


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
def server(registry: CollectorRegistry, reasons: list[str]) -> Iterator[MetricsServer]:
    server = serve_metrics(registry, 0, checks={"/readyz": lambda: reasons[0] if reasons else None})
    yield server
    server.close()


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_metrics_are_the_registry(server: MetricsServer):
    status, text = get(server, "/metrics")
    assert (status, text.splitlines()[-1]) == (200, "apples 3.0")


def test_checks_answer_with_200_or_with_503_and_the_reason(server: MetricsServer, reasons: list[str]):
    assert get(server, "/readyz") == (200, "ok\n")
    reasons.append("the storage cannot be read")
    assert get(server, "/readyz") == (503, "the storage cannot be read\n")
    assert get(server, "/healthz") == (200, "ok\n")


def test_another_path_says_which_there_are(server: MetricsServer):
    status, text = get(server, "/")
    assert status == 404
    assert "/metrics, /healthz, /readyz" in text


def test_a_client_that_says_nothing_keeps_nobody_waiting(server: MetricsServer):
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
