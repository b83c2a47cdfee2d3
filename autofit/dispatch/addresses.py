"""Parses addresses of Ray clusters, and checks that Ray answers at an address."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from autofit.errors import DispatchError, UsageError
from autofit_workers.spec.shown import redacted_place

_ANSWER_SECONDS = 3.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HTTP2_SETTINGS = b"\x04"


def require_answer(address: str, *, cluster_here: Callable[[], str | None]) -> None:
    """Checks quickly that a Ray cluster answers at an address; Ray itself would try for over a minute.

    Args:
        address: `auto`, `host:port` or `ray://host:port`.
        cluster_here: returns the address of the cluster that this machine belongs to, None if there is none;
            called for `auto`.

    Raises:
        UsageError: the text is no address.
        DispatchError: nothing answers there, or something other than Ray does.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or _found(cluster_here())
    host, port = _endpoint(address)
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(_HTTP2_GREETING)
            greeting = connection.recv(9)
    except OSError as error:
        raise DispatchError(
            f"nobody answers at {host}:{port} ({error}): start Ray there with `ray start --head`, or leave "
            "out --address to use this machine"
        ) from error
    if greeting[3:4] != _HTTP2_SETTINGS:
        raise DispatchError(
            f"what answers at {host}:{port} is not Ray's head: give the port that `ray start --head` prints, "
            "usually 6379, or 10001 after ray://"
        )


def _endpoint(address: str) -> tuple[str, int]:
    """Host and port in an address of a Ray cluster."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.scheme in ("", "ray") and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:  # the port is no number
        pass
    raise UsageError(
        f"{redacted_place(address)!r} is not a Ray address: write local, auto, host:port or ray://host:port"
    )


def _found(address: str | None) -> str:
    if address is None:
        raise DispatchError(
            "no Ray cluster runs on this machine: start one with `ray start --head`, or leave out --address"
        )
    return address
