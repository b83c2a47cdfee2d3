"""Client of the warm tracer: a process with PyTorch imported, which forks for each question.

    command ── start ──▶ warm tracer        once a command has traced; outlives it, for minutes
    next command ── fork ──▶ warm tracer    a request over a Unix socket, with descriptors
                 ◀── process id ── fork     which enters the process boundary
                 ◀── ready ── fork
                 ── go ──▶ fork             which then reads its specs
                 ◀── exit status ──         at its end, from the warm tracer

The socket lies in a folder that only the user can enter. The lock beside it is held by the tracer for life,
so that there is never more than one. A tracer answers only commands whose surroundings have the same digest.
See `autofit_workers.trials.warm` for its process.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from autofit_workers.process import host_memory, operating_system

MODULE = "autofit_workers.trials.warm"
FORK, STATE = "fork", "state"  # requests
LENGTH = struct.Struct("!I")  # of a request, sent with its descriptors
ANSWER = struct.Struct("!ci")  # a kind of answer, and a number
PROCESS, READY, ENDED, REFUSED = b"p", b"r", b"e", b"n"  # with a process id, 0, an exit code, 0
GO = b"\n"  # to a forked process that is ready; without it, it reads nothing and ends
# Environment variables of the tracer: the digest, and modules that it imports.
SURROUNDINGS, LIBRARIES = "_AUTOFIT_SURROUNDINGS", "_AUTOFIT_LIBRARIES"
_CREDENTIALS = struct.Struct("3i")  # process, user, group: struct ucred, unix(7)
_SOCKET, _LOCK = "socket", "lock"
# A tracer that is stopped, or busy with another command, costs no more than this.
_ANSWER_SECONDS = 0.5
_ENTER_SECONDS = 5.0  # for a fork to enter the process boundary
_STATUS_SECONDS = 2.0
_MOST_OF_DIGEST = 4096
_LEAST_AVAILABLE_BYTES = 2 * 1024**3  # its own memory is about 0.4 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerState:
    """State of a running warm tracer.

    Attributes:
        process: its process id.
        seconds_left: seconds until it ends, unless it is asked before.
        is_alike: whether it answers commands with these surroundings.
    """

    process: int
    seconds_left: float
    is_alike: bool


class ForkedProcess:
    """Process that the warm tracer forked; to be waited for like a child process.

    Attributes:
        pid: its process id, which stays taken until `wait` has returned.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._end = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._end, select.POLLIN)
        self._connection = connection

    def has_exited(self) -> bool:
        """Whether the process has exited."""
        return bool(self._poll.poll(0))

    def wait(self) -> int:
        """Waits until the process has exited; returns its exit code, negative if a signal ended it.

        If the tracer was killed meanwhile, nobody knows the code; it is then that of SIGKILL.
        """
        self._poll.poll()
        os.close(self._end)
        with self._connection, suppress(OSError, ValueError):
            self._connection.settimeout(_STATUS_SECONDS)
            return _answered(self._connection, ENDED)
        return -signal.SIGKILL


class WarmTracer:
    """Access to the warm tracer of this user, which may be running or not.

    Args:
        folder: folder of its socket.
        surroundings: returns a digest of all that decides a trace besides its spec, such as the installed
            packages.
        libraries: modules that the tracer has imported besides PyTorch; one with others is of no use, as a
            script may set variables that a library reads at its import.

    Attributes:
        was_missed: whether a fork was asked for and there was none.
    """

    def __init__(
        self, folder: Path, surroundings: Callable[[], str], *, libraries: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._libraries = list(libraries)
        self._surroundings = surroundings
        self.was_missed = False

    def fork(self, variables: Mapping[str, str], descriptors: Sequence[int]) -> ForkedProcess | None:
        """Forks a process for a question; returns None if there is no tracer that can.

        Args:
            variables: environment of the process.
            descriptors: its requests, answers, and its output.
        """
        try:
            return self._forked({"variables": dict(variables), "folder": str(Path.cwd())}, descriptors)
        except (OSError, ValueError):  # none runs, it is stopped, refuses, or is of another version
            self.was_missed = True
            return None

    def _forked(self, said: Mapping[str, object], descriptors: Sequence[int]) -> ForkedProcess:
        """Asks the tracer for a process, and waits until it is inside the process boundary.

        Raises:
            OSError, ValueError: there is no tracer, or it cannot.
        """
        if not (self._folder / _SOCKET).exists():
            raise FileNotFoundError(_SOCKET)
        own = {"surroundings": self._surroundings(), "libraries": self._libraries}
        request = {"request": FORK, **own, **said}
        with _closed_on_error(self._connected(_ANSWER_SECONDS)) as connection:
            _send(connection, request, descriptors)
            process = _answered(connection, PROCESS)
            connection.settimeout(_ENTER_SECONDS)
            _answered(connection, READY)
            forked = ForkedProcess(process, connection)
            connection.sendall(GO)
        return forked

    def state(self) -> TracerState | None:
        """State of the running tracer; None if none runs, or it does not answer."""
        try:
            request = {"request": STATE, "surroundings": self._surroundings()}
            with self._connected(_ANSWER_SECONDS) as connection:
                _send(connection, request, ())
                said = json.loads(
                    read_whole(connection, LENGTH.unpack(read_whole(connection, LENGTH.size))[0])
                )
            return TracerState(**said)
        except (OSError, ValueError, TypeError):
            return None

    def _connected(self, seconds: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        with _closed_on_error(connection), _at(self._folder) as place:
            connection.settimeout(seconds)
            connection.connect(f"{place}/{_SOCKET}")
            require_own(connection)
        return connection

    def start(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        """Starts a tracer, without waiting for it, unless one runs, memory is short, or one was of no use.

        Args:
            arguments: arguments of Python that run `MODULE`, up to the numbers of its descriptors.
            variables: its environment.

        Raises:
            OSError: it cannot be started, or the folder is missing.
        """
        available = host_memory.available_bytes()
        if available is not None and available < _LEAST_AVAILABLE_BYTES:
            return
        lock = os.open(self._folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            with (
                suppress(BlockingIOError),
                socket.socket(socket.AF_UNIX) as listener,
                _at(self._folder) as place,
            ):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.pread(lock, _MOST_OF_DIGEST, 0) == self._surroundings().encode():
                    return
                (self._folder / _SOCKET).unlink(missing_ok=True)
                listener.bind(f"{place}/{_SOCKET}")
                for descriptor in (listener.fileno(), lock):
                    os.set_inheritable(descriptor, True)
                command = [sys.executable, *arguments, str(listener.fileno()), str(lock), ""]
                os.posix_spawn(
                    sys.executable,
                    command,
                    {
                        **variables,
                        SURROUNDINGS: self._surroundings(),
                        LIBRARIES: " ".join(self._libraries),
                    },
                    file_actions=[(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in range(3)],
                    setsid=True,
                )
        finally:
            os.close(lock)


def of_this_process() -> str:
    """Text on all that a forked process gets from the tracer instead of the command: rights, limits, mounts.

    Raises:
        OSError: this system does not tell.
    """
    if not operating_system.is_linux() or not hasattr(os, "pidfd_open"):
        raise OSError(f"{operating_system.name()} has no warm tracer")
    proc = Path("/proc/self")
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folders != [""] and not all(Path(folder).is_absolute() for folder in folders):
        raise OSError("PYTHONPATH has a folder that is relative to the current one")
    kept = (
        "Umask",
        "Uid",
        "Gid",
        "Groups",
        "Cap",
        "NoNewPrivs",
        "Seccomp",
        "Cpus_allowed:",
        "Mems_allowed:",
    )
    said = [line for line in (proc / "status").read_text().splitlines() if line.startswith(kept)]
    spaces = sorted(os.readlink(entry) for entry in (proc / "ns").iterdir())  # noqa: PTH115 - no file
    names = ("limits", "cgroup", "mountinfo", "oom_score_adj", "personality")
    texts = [(proc / name).read_text(encoding="utf-8", errors="surrogateescape") for name in names]
    with suppress(OSError):  # there are no security modules
        texts.append((proc / "attr" / "current").read_text())
    order = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]
    python = [sys.executable, sys.version, sys.flags, sys.path[1:]]  # the first folder is the command's own
    return json.dumps([said, spaces, texts, order, python])


def require_own(connection: socket.socket) -> None:
    """Raises `OSError` if the process at the other end of a connection is another user's."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
        raise PermissionError("the process is another user's")


def _send(connection: socket.socket, said: Mapping[str, object], descriptors: Sequence[int]) -> None:
    body = json.dumps(said).encode()
    socket.send_fds(connection, [LENGTH.pack(len(body))], descriptors)
    connection.sendall(body)


def _answered(connection: socket.socket, kind: bytes) -> int:
    """Reads the number of an answer.

    Raises:
        ValueError: the answer is of another kind, or the connection has ended.
    """
    found, number = ANSWER.unpack(read_whole(connection, ANSWER.size))
    if found != kind:
        raise ValueError("the warm tracer gives another answer")
    return int(number)


def read_whole(connection: socket.socket, num_bytes: int) -> bytes:
    """Reads a number of bytes.

    Raises:
        ValueError: the connection ends before.
    """
    read = bytearray()
    while len(read) < num_bytes:
        if not (chunk := connection.recv(num_bytes - len(read))):
            raise ValueError("the connection has ended")
        read += chunk
    return bytes(read)


@contextmanager
def _closed_on_error(connection: socket.socket) -> Iterator[socket.socket]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


@contextmanager
def _at(folder: Path) -> Iterator[str]:
    """Yields a short path of a folder, as that of a socket has room for 107 bytes (unix(7))."""
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
