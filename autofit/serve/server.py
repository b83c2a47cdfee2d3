"""HTTP servers: `/metrics` for Prometheus with health checks such as `/healthz`, and others.

A server is aiohttp's, in a thread with an event loop of its own: a connection takes no thread, and while
the system refuses further connections the server waits. This module limits the resources that clients take:

- a connection lives `connection_seconds` at most, however slowly requests are sent; one of `/metrics` serves
  a single request
- if there are more connections than the process may open files, the oldest is closed
- errors of connections are logged once a minute at most
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from autofit.errors import InfrastructureError

if TYPE_CHECKING:
    from aiohttp import web

_BACKLOG = 128
_MOST_CONNECTIONS = 4096
_OTHER_FILES = 128  # files that the process opens otherwise: its storage, Ray's client, libraries
_LINE_SECONDS = 60.0
_HANDSHAKE_SECONDS = 10.0  # for TLS

Check = Callable[[], str | None]
"""Returns the reason why a check fails; None if it succeeds."""


Handler = Callable[["web.BaseRequest"], Awaitable["web.StreamResponse"]]
"""Answers a request."""


@dataclass(frozen=True, slots=True)
class HttpServer:
    """Running HTTP server.

    Attributes:
        port: port that it listens on; chosen by the system if 0 was given.
    """

    port: int
    _loop: asyncio.AbstractEventLoop
    _thread: threading.Thread

    def close(self) -> None:
        """Stops listening and frees the port."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def serve_metrics(
    registry: CollectorRegistry,
    port: int,
    host: str = "127.0.0.1",
    *,
    checks: Mapping[str, Check] | None = None,
    max_connections: int | None = None,
    request_seconds: float = 10.0,
) -> HttpServer:
    """Starts an HTTP server for the metrics in `registry`; it runs until the returned server is closed.

    Args:
        checks: function for each path, such as `/readyz`, that returns what is wrong, or None. The path is
            answered with 200, or with 503 and the reason. `/healthz` always exists.
        max_connections: most connections at a time; by default the number of files that the process may open,
            less those that it needs itself.
        request_seconds: seconds that a client may take to send a request and to read the answer.

    Raises:
        InfrastructureError: the server cannot listen on the address, such as a port in use.
    """
    answer = _answering(registry, {"/healthz": lambda: None, **(checks or {})})
    return serve_http(
        answer, port, host, of="metrics", max_connections=max_connections, connection_seconds=request_seconds
    )


def serve_http(
    answer: Handler,
    port: int,
    host: str = "127.0.0.1",
    *,
    of: str,
    tls: ssl.SSLContext | None = None,
    max_connections: int | None = None,
    connection_seconds: float = 60.0,
) -> HttpServer:
    """Starts an HTTP server; it runs until the returned server is closed.

    Args:
        answer: answers a request, in the server's own thread.
        of: name of what is served, for messages, such as `metrics`.
        tls: context of HTTPS; None for HTTP.
        max_connections: most connections at a time; by default the number of files that the process may open,
            less those that it needs itself.
        connection_seconds: longest life of a connection. In the second half of it, the answer to a request
            asks the client for another connection.

    Raises:
        InfrastructureError: the server cannot listen on the address, such as a port in use.
    """
    try:
        listening = _listening(host, port)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the message names the address anyway
        raise InfrastructureError(
            f"{of} cannot be served on {host}:{port} ({reason}): choose a free port, or 0 for any"
        ) from error
    loop = asyncio.new_event_loop()
    server = _bounded(answer, loop, max_connections or _num_connections(), connection_seconds)
    shaking = None if tls is None else _HANDSHAKE_SECONDS
    loop.run_until_complete(
        loop.create_server(server, sock=listening, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=shaking)
    )
    thread = threading.Thread(
        target=_run, args=(loop, server, listening), name=f"autofit-{of.replace(' ', '-')}", daemon=True
    )
    thread.start()
    return HttpServer(listening.getsockname()[1], loop, thread)


def _listening(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


def _num_connections() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(_MOST_CONNECTIONS, allowed - _OTHER_FILES))


def _run(loop: asyncio.AbstractEventLoop, server: web.Server, listening: socket.socket) -> None:
    loop.run_forever()
    listening.close()
    loop.run_until_complete(server.shutdown(0))
    loop.run_until_complete(asyncio.sleep(0))  # a turn in which aborted connections are closed
    loop.close()


class _Seldom(logging.Filter):
    """Log filter that passes at most one record a minute, without its traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._told_at = -_LINE_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._told_at < _LINE_SECONDS:
            return False
        self._told_at = now
        if record.exc_info:
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]!r}", ()
            record.exc_info = None
        return True


def _bounded(
    answer: Handler, loop: asyncio.AbstractEventLoop, max_connections: int, connection_seconds: float
) -> web.Server:
    """Server that limits the number and duration of connections, and logs their errors seldom."""
    from aiohttp import web

    log = logging.getLogger(f"{__name__}.connections")
    log.filters[:] = [_Seldom()]
    loop.set_exception_handler(
        lambda _loop, context: log.warning("%s: %r", context["message"], context.get("exception"))
    )

    class Bounded(web.Server):
        """aiohttp server that limits the number and the duration of connections."""

        def __init__(self) -> None:
            super().__init__(self._answer, loop=loop, logger=log, access_log=None)
            self._open: dict[Any, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

        async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
            response = await answer(request)
            known = self._open.get(request.protocol)
            if known is None or known[1].when() - loop.time() < connection_seconds / 2:
                response.force_close()
            return response

        def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
            super().connection_made(handler, transport)
            if len(self._open) >= max_connections:
                oldest, timer = self._open.pop(next(iter(self._open)))  # now, as it is lost a turn later
                timer.cancel()
                oldest.abort()
            self._open[handler] = transport, loop.call_later(connection_seconds, transport.abort)

        async def shutdown(self, timeout: float | None = None) -> None:
            await super().shutdown(timeout)
            for transport, timer in self._open.values():
                timer.cancel()
                transport.abort()  # a close of TLS would wait for the client

        def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
            super().connection_lost(handler, exc)
            if (known := self._open.pop(handler, None)) is not None:
                known[1].cancel()

    return Bounded()


def _shared(registry: CollectorRegistry) -> Callable[[web.BaseRequest], Awaitable[web.Response]]:
    """Makes the handler of `/metrics`; requests that wait at the same time get the same text."""
    from aiohttp import web
    from prometheus_client.aiohttp import make_aiohttp_handler

    write: Any = make_aiohttp_handler(registry, disable_compression=True)
    coming: dict[object, asyncio.Task[web.Response]] = {}

    async def write_soon(wanted: object, request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(0)  # requests that have come by now share the rendering
        del coming[wanted]
        written: web.Response = await write(request)
        return written

    async def metrics(request: web.BaseRequest) -> web.Response:
        wanted = request.query_string, tuple(request.headers.getall("Accept", ()))
        if wanted not in coming:
            coming[wanted] = asyncio.create_task(write_soon(wanted, request))
        written = await coming[wanted]
        response = web.Response(status=written.status, headers=written.headers, body=written.body)
        response.enable_compression()
        return response

    return metrics


def _answering(registry: CollectorRegistry, checks: Mapping[str, Check]) -> Handler:
    """Handler of HTTP requests: metrics, health checks, and 404 for other paths."""
    from aiohttp import web

    metrics = _shared(registry)

    async def answer(request: Any) -> web.StreamResponse:
        path = request.path
        if path == "/metrics":
            response = await metrics(request)
        elif path in checks:
            wrong = checks[path]()
            response = (
                web.Response(text="ok\n") if wrong is None else web.Response(status=503, text=f"{wrong}\n")
            )
        else:
            known = ", ".join(["/metrics", *checks])
            response = web.Response(status=404, text=f"not found; try {known}\n")
        response.force_close()
        return response

    return answer
