"""Job server of a Ray head that answers at once, for tests and benches that need no cluster."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

NUM_RUNNING = 4  # drivers that the head has places for


class _JobServer(http.server.BaseHTTPRequestHandler):
    """Job server of a head with places for a few drivers, all of which run."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/api/version":
            self._answer({"ray_version": "2.60.0"})
        elif self.path.startswith("/api/v0/nodes"):
            node = {"state": "ALIVE", "resources_total": {"autofit_driver": NUM_RUNNING}}
            self._answer({"data": {"result": {"result": [node]}}})
        else:
            self._answer({"status": "RUNNING", "message": ""})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer({"submission_id": asked["submission_id"], "job_id": asked["submission_id"]})

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Keeps stderr clean."""


@contextlib.contextmanager
def job_server() -> Iterator[str]:
    """Context manager that runs a job server, and yields its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _JobServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
