"""HTTP server of the page: its paths, its guards, and its end.

The page runs the models that it is asked for, so nobody but the user may ask:

- it is served on the loopback interface alone
- its paths begin with a random token, which other users of the machine do not know
- requests must name a loopback host, so that no other site can lead its name here (DNS rebinding)
- requests of another origin are refused, and the page loads nothing from elsewhere (Content-Security-Policy)
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from autofit.errors import AutofitError, InfrastructureError, UsageError
from autofit.report.html.plotly_js import plotly_js
from autofit.ui.answers import Answers, Part
from autofit.ui.move import Move
from autofit.ui.threads import Threads

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]

_TRACING, _COMPUTING = 2, 4  # threads
_MOST_REQUEST_BYTES = 64 * 1024
_END_SECONDS = 2.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """Random text that nobody can guess, for the paths of a page."""
    return secrets.token_urlsafe(16)


def application(answers: Answers, page: str, token: str) -> web.Application:
    """Application of aiohttp: the page with its files, and its answers as lines of JSON.

    Args:
        page: text of the page.
        token: first part of all paths.
    """
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        """Answer to a move, its parts as lines of JSON, each sent as soon as it is known."""
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="a move is JSON: send Content-Type application/json\n")
        try:
            move = Move.from_json(await request.read())
        except UsageError as error:
            return web.Response(status=400, body=_line({"error": json.loads(error.to_json())}))
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        try:
            async for part in answers.parts(move):
                await response.write(_line(part))
        except ConnectionError:  # the tab has gone on
            return response
        await response.write_eof()
        return response

    def file(text: str, content_type: str) -> Handler:
        async def send(_request: web.Request) -> web.StreamResponse:
            response = web.Response(text=text, content_type=content_type, charset="utf-8")
            response.enable_compression()
            return response

        return send

    app = web.Application(middlewares=[_guard()], client_max_size=_MOST_REQUEST_BYTES)
    app.on_response_prepare.append(_add_headers)
    app.router.add_get(f"/{token}/", file(page, "text/html"))
    for name, (text, content_type) in _files().items():
        app.router.add_get(f"/{token}/{name}", file(text, content_type))
    app.router.add_post(f"/{token}/answer", answer)
    return app


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _line(part: Part) -> bytes:
    return json.dumps(part, separators=(",", ":")).encode() + b"\n"


def _files() -> Mapping[str, tuple[str, str]]:
    """Text and type of each file that the page loads, by its name."""
    own, of_report = resources.files("autofit.ui") / "files", resources.files("autofit.report.html")
    styles = [folder.joinpath(name).read_text("utf-8") for folder, name in (
        (of_report, "style.css"), (own, "ui.css")
    )]  # fmt: skip
    return {
        "style.css": ("\n".join(styles), "text/css"),
        "drawing.js": (of_report.joinpath("drawing.js").read_text("utf-8"), "text/javascript"),
        "ui.js": (own.joinpath("ui.js").read_text("utf-8"), "text/javascript"),
        "plotly.js": (plotly_js(), "text/javascript"),
    }


def _guard() -> Middleware:
    from aiohttp import web

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses requests under another name than the loopback interface's, and those of other origins."""
        if not is_loopback(urlsplit(f"//{request.host}").hostname or ""):
            return web.Response(status=421, text="this page is served under a loopback address alone\n")
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
        if origin not in (None, f"http://{request.host}") or site not in ("none", "same-origin"):
            return web.Response(status=403, text="requests of other origins are refused\n")
        return await handler(request)

    return guard


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback interface: `localhost`, or such an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int) -> socket.socket:
    """Socket that listens on an address of the loopback interface.

    Raises:
        UsageError: the address is not one of the loopback interface.
        InfrastructureError: the port is in use, or there is no such address.
    """
    if not is_loopback(host):
        raise UsageError(
            f"--host {host} is not a loopback address: the page runs the models that it is asked for, and is "
            "served to this machine alone; from another one, `ssh -L 8123:127.0.0.1:PORT` leads here"
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # the message names the address anyway
        raise InfrastructureError(
            f"the page cannot be served on {host}:{port} ({reason}): choose a free port, or 0 for any"
        ) from error


def serve_page(
    listens: socket.socket,
    page: str,
    token: str,
    *,
    internal: Callable[[BaseException], AutofitError],
    on_start: Callable[[], None],
) -> None:
    """Serves the page until SIGINT or SIGTERM; then running traces are ended.

    Args:
        page: text of the page.
        token: first part of all paths.
        internal: makes an error for the user out of an unexpected exception.
        on_start: called once the page can be loaded.
    """
    stop = threading.Event()

    async def serve() -> None:
        from aiohttp import web

        ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def end(*_signal: object) -> None:
            with suppress(RuntimeError):  # a further signal, after the loop has ended
                loop.call_soon_threadsafe(ended.set)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)  # the loop's own handlers would be gone before the process is
        answers = Answers(Threads(_TRACING, stop), Threads(_COMPUTING, stop), internal)
        app = application(answers, page, token)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_SECONDS)
        await runner.setup()
        try:
            await web.SockSite(runner, listens).start()
            on_start()
            await ended.wait()
        finally:
            stop.set()
            await runner.cleanup()

    asyncio.run(serve())
