"""Connections of a script lead to itself."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.scripts.guard.network import Network


@pytest.fixture
def offline() -> Iterator[None]:
    network = Network()
    network.begin()
    yield
    network.end()


def test_another_process_of_the_machine_is_not_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        network = Network()
        network.begin()
        try:
            with pytest.raises(PermissionError, match=r"connect to 127\.0\.0\.1:.*--allow-network"):
                socket.create_connection(server.getsockname())
        finally:
            network.end()
        socket.create_connection(server.getsockname()).close()


def test_a_socket_of_its_own_is_reached(offline: None, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        client.connect(str(tmp_path / "socket"))


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.getaddrinfo("example.com", 80),
        lambda: socket.gethostbyname("example.com"),
        lambda: socket.gethostbyname_ex("example.com"),
        lambda: socket.socket().connect(("192.0.2.1", 80)),
        lambda: socket.socket().connect_ex(("192.0.2.1", 80)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendmsg([b"x"], [], 0, ("192.0.2.1", 53)),
        lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80)),
    ],
)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_other_machines_are_not(offline: None, reach: Callable[[], Any]):
    with pytest.raises(PermissionError, match="--allow-network"):
        reach()


def test_its_own_names_and_numbers_are_looked_up(offline: None):
    for host in (None, "localhost", "127.0.0.1", "192.0.2.1", socket.gethostname()):
        try:
            socket.getaddrinfo(host, 80)
        except socket.gaierror:
            assert host == socket.gethostname()  # some machines do not know theirs
