"""A small HTTP server: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever keeps it running."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from autofit.errors import InfrastructureError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_SILENT_CLIENT_SECONDS = 30.0

Check = Callable[[], str | None]
"""Why something is not as it should be; None where it is."""


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running server.

    Attributes:
        port: the port it listens on; the system's choice when 0 was asked for.
    """

    port: int
    _server: WSGIServer
    _thread: threading.Thread

    def close(self) -> None:
        """Stops listening and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(
    registry: CollectorRegistry,
    port: int,
    host: str = "127.0.0.1",
    *,
    checks: Mapping[str, Check] | None = None,
) -> MetricsServer:
    """Serves `registry` over HTTP until the returned server is closed.

    Args:
        checks: by path: answered with 200, or with 503 and the reason. `/healthz` is there anyway.

    Raises:
        InfrastructureError: when the address cannot be listened on, such as a port in use.
    """
    app = _application(registry, {"/healthz": lambda: None, **(checks or {})})
    try:
        server = _listening(host, port)
    except OSError as error:
        raise InfrastructureError(
            f"metrics cannot be served on {host}:{port} ({error.strerror}): choose a free port, or 0 for any"
        ) from error
    server.set_app(app)
    thread = threading.Thread(target=server.serve_forever, name="autofit-metrics", daemon=True)
    thread.start()
    return MetricsServer(server.server_port, server, thread)


class _Server(ThreadingMixIn, WSGIServer):
    """One thread a request, so that a client that says nothing keeps nobody waiting."""

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.address_family = family
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the look-up of the host's full name, which may take seconds and is not needed."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are no news."""


def _listening(host: str, port: int) -> _Server:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return _Server(family, address)


def _application(registry: CollectorRegistry, checks: Mapping[str, Check]) -> WSGIApplication:
    metrics = make_wsgi_app(registry)

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        if path in checks:
            wrong = checks[path]()
            status, text = ("200 OK", "ok") if wrong is None else ("503 Service Unavailable", wrong)
        else:
            known = ", ".join(["/metrics", *checks])
            status, text = "404 Not Found", f"not found; try {known}"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return application
