"""`autofit serve` as a process: started, scraped, told to end."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobSpec
from tests.autofit.serve.searches import open_search, tell
from tests.daemons import Daemon

pytestmark = pytest.mark.process

FITS = 'autofit_trials_total{probe="cuda",verdict="FITS"} '


class Server(Daemon):
    """A running `autofit serve` on a free port.

    Args:
        folder: takes its log.
        options: of the command.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "autofit.cli", "serve", "--port", "0", "--interval", "0.1", *options]
        super().__init__(command, log=folder / "serve.log")
        self.port = int(self.await_log("metrics at http://").rpartition(":")[2].partition("/")[0])

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def await_line(self, line: str) -> str:
        """Scrapes until there is such a line; the whole answer."""
        while line not in (text := self.get("/metrics")[1]).splitlines():
            assert self.process.poll() is None, self.log
        return text


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start_one(*options: str) -> Server:
        servers.append(Server(tmp_path, *options))
        return servers[-1]

    yield start_one
    for server in servers:
        server.stop()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """The command where it ends by itself."""
    command = [sys.executable, "-m", "autofit.cli", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_it_shows_searches_and_jobs_as_they_go_on_and_ends_on_sigterm(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    storage = str(tmp_path / "all.journal")
    server = start("--storage", storage)
    server.await_line("autofit_storage_up 0.0")  # nobody has submitted anything yet
    assert FITS not in server.get("/metrics")[1]
    assert server.get("/readyz") == (503, "the storage has not been read yet\n")
    with open_search(storage) as study:
        tell(study, study.ask())
        server.await_line(f"{FITS}1.0")
        assert server.get("/readyz") == server.get("/healthz") == (200, "ok\n")
        tell(study, study.ask())
        server.await_line(f"{FITS}2.0")
    with JobQueue.open(storage) as queue:
        queue.enqueue("job", JobSpec(options={}, workload="resnet50"))
    text = server.await_line('autofit_jobs{state="queued"} 1.0')
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
    missing = os.strerror(errno.ENOENT)
    assert server.log.splitlines() == [
        f"metrics at http://127.0.0.1:{server.port}/metrics",
        f"the storage cannot be read, trying again: {storage} cannot be read: {missing}",
        "the storage can be read again",
    ]


def test_ctrl_c_ends_it_and_a_restart_shows_the_same_counts(start: Callable[..., Server]) -> None:
    with open_search(None) as study:
        tell(study, study.ask())
    first = start()
    shown = [line for line in first.await_line(f"{FITS}1.0").splitlines() if is_from_the_storage(line)]
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(timeout=60) == 0
    second = start()
    again = second.await_line(f"{FITS}1.0").splitlines()
    assert [line for line in again if is_from_the_storage(line)] == shown


def is_from_the_storage(line: str) -> bool:
    return not line.startswith(("#", "autofit_storage_"))


def test_what_cannot_begin_is_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finished = run("--port", str(port))
    assert finished.returncode == 5
    assert finished.stderr == (
        f"error: metrics cannot be served on 127.0.0.1:{port} (Address already in use): "
        "choose a free port, or 0 for any\n"
    )
    finished = run("--port", "0", "--storage", str(tmp_path / "studies.csv"))
    assert finished.returncode == 2
    assert "a study cannot be kept in" in finished.stderr
    finished = run("--port", "0", "--storage", "postgresql://me:secret@127.0.0.1/studies")
    assert finished.returncode == 2
    assert "secret" not in finished.stderr
    assert finished.stdout == ""
