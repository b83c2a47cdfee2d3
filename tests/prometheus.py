"""Debian's Prometheus with data of its own, and queries to its API."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import Daemon, free_ports

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"
)


class Prometheus(Daemon):
    """A Prometheus server that scrapes the targets of its configuration.

    Args:
        config: the configuration's file.
        folder: the folder for its data and its log.
    """

    def __init__(self, config: Path, *, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            log=folder / "prometheus.log",
        )
        self.await_log("Server is ready to receive web requests")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Vector of an instant query; an expression that Prometheus rejects fails the test."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"Prometheus rejects {expression!r}: {error.read().decode()}") from None
        return answer["data"]["result"]
