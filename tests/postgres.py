"""A PostgreSQL server of a test's own, which the test may stop, kill and start again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.daemons import free_ports

_DEBIANS = Path("/usr/lib/postgresql")
_SUPERUSER = "postgres"
# What a crash of the machine would lose does not matter here; a crash of the server loses nothing.
_FAST = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}


class Postgres:
    """A PostgreSQL cluster in a folder of its own, on a free loopback port; accepts every password.

    Attributes:
        port: the port that it listens on, the same after every start.
        programs: the folder of its programs, psql among them.
    """

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.programs = binaries
        self._data = folder / "data"
        self._log = folder / "log"
        (self.port,) = free_ports(1)
        options = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", f"--username={_SUPERUSER}"]
        self._run("initdb", "--pgdata", self._data, *options)

    @property
    def url(self) -> str:
        """URL of the database that a new cluster has."""
        return self.url_of(_SUPERUSER)

    def url_of(self, database: str, *, password: str | None = None) -> str:
        user = _SUPERUSER if password is None else f"{_SUPERUSER}:{password}"
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """Creates an empty database and returns its URL."""
        host = ("--host=127.0.0.1", f"--port={self.port}", f"--username={_SUPERUSER}")
        self._run("createdb", *host, name)
        return self.url_of(name)

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        settings = {**_FAST, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        given = " ".join(f"-c {name}={value}" for name, value in settings.items())
        sockets = "-c unix_socket_directories="
        self._run("pg_ctl", "-D", self._data, "-l", self._log, "-w", "-o", f"{given} {sockets}", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stops the server: `smart`, `fast`, or `immediate`, a crash that recovers at the next start."""
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """Kills all processes of the server at once with SIGKILL."""
        server = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        while not all(map(_has_ended, processes)):
            time.sleep(0.005)
        # Until somebody asks for its exit status, the next server would take it for one that runs.
        (self._data / "postmaster.pid").unlink()

    def signal(self, number: signal.Signals) -> None:
        """Signals the server: SIGTERM lets its clients end first, SIGINT does not, SIGKILL is a crash."""
        if number is signal.SIGKILL:
            self.kill()
        else:
            os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), number)

    def is_running(self) -> bool:
        return self._try("pg_ctl", "-D", self._data, "status").returncode == 0

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = self._try(program, *arguments)
        log = self._log.read_text() if self._log.exists() else ""
        assert done.returncode == 0, f"{program} failed: {done.stderr}\n{log}"

    def _try(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        # The server refuses to run as root; its log file inherits nothing, or pg_ctl's pipes stay open.
        as_user = ["runuser", "-u", _SUPERUSER, "--"] if os.geteuid() == 0 else []
        with tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(
                [*as_user, self.programs / program, *arguments],
                check=False,
                cwd=self._data.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                text=True,
                env={**os.environ, "LC_ALL": "C"},
            )
            err.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, "", err.read())


def _has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Starts a server, removed with its folder after the block; skips where PostgreSQL is missing."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed (Debian: postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, _SUPERUSER)
    try:
        server = Postgres(binaries, folder)
        server.start()
        try:
            yield server
        finally:
            if server.is_running():
                server.stop("immediate")
    finally:
        shutil.rmtree(folder)


def _binaries() -> Path | None:
    """Folder of PostgreSQL's programs: on PATH, else Debian's newest version; None where missing."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = sorted(_DEBIANS.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None
