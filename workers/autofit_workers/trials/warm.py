"""Process of the warm tracer: imports PyTorch once, and forks a process for each question.

    warm tracer        sees all files read-only, runs no code of users, has one thread
      └ fork           gets the folder, variables and descriptors of the command that asks
          └ …          processes of the boundary, and in it the one that traces (`trials.child`)

It ends when nobody asks for five minutes, when a command with other surroundings asks (other packages,
variables or rights), when the folder of its socket is removed, or when the machine runs short of memory. What
it has forked goes on then.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import select
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from autofit_workers.process import host_memory
from autofit_workers.process.boundary.entering import enter_forked
from autofit_workers.process.boundary.read_only import all_files_are_read_only, make_files_read_only
from autofit_workers.process.garbage import importing
from autofit_workers.process.sources import used_files
from autofit_workers.process.warm_tracer import (
    ANSWER,
    ENDED,
    FORK,
    GO,
    LENGTH,
    LIBRARIES,
    PROCESS,
    READY,
    REFUSED,
    SURROUNDINGS,
    read_whole,
    require_own,
)

_WRITABLE = "_AUTOFIT_WRITABLE"  # environment variable with the paths of the mounts that are writable outside
_IDLE_SECONDS = 300.0
_LOOK_SECONDS = 10.0  # between two looks at the folder and the machine's memory
_REQUEST_SECONDS = 1.0  # for a command to send its request
_LEAST_AVAILABLE_BYTES = 1024**3
_MOST_BYTES = 16 * 1024**2  # of a request, which holds the environment
_NUM_DESCRIPTORS = 3


class _Task(NamedTuple):
    """Descriptors of the pipes by which a forked process gets specs and answers them."""

    requests: int
    answers: int


def main(listener_fd: int, lock_fd: int) -> None:
    """Serves commands that ask for a fork; in a fork, runs the trials of such a command.

    Args:
        listener_fd: bound socket, which is not listening yet.
        lock_fd: locked file, which stays locked for as long as this process lives.
    """
    os.chdir("/")  # it keeps no folder of the command that starts it
    _close_all_but(0, 1, 2, listener_fd, lock_fd)
    if _WRITABLE not in os.environ:
        os.environ[_WRITABLE] = json.dumps(make_files_read_only())
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - ourselves, from a file that is read-only now
    writable = json.loads(os.environ.pop(_WRITABLE))
    surroundings, libraries = os.environ.pop(SURROUNDINGS), os.environ.pop(LIBRARIES).split()
    if not all_files_are_read_only() or not _can_enter(writable):
        _note_useless(lock_fd, surroundings)
        return
    with importing():
        from autofit_workers.tracing import probe  # noqa: F401 - so that forks have it
        from autofit_workers.trials import child

        for library in libraries:
            with suppress(Exception):  # the fork that needs it reports the error
                importlib.import_module(library)
    # Files of users, as of a package that is installed from their folder, may change.
    if used_files() or not _has_one_thread():
        _note_useless(lock_fd, surroundings)
        return
    gc.freeze()
    with socket.socket(fileno=listener_fd) as listener:
        task = _Server(listener, lock_fd, surroundings, libraries, writable).serve()
    if task is not None:
        child.main(*task)


def _close_all_but(*kept: int) -> None:
    """Closes the descriptors that this process has from the shell of the command that starts it."""
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names alone
        if number not in kept:
            with suppress(OSError):  # that of the listing
                os.close(number)


def _note_useless(lock_fd: int, surroundings: str) -> None:
    """Writes to the locked file that a tracer in these surroundings is of no use, so that none is started."""
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, surroundings.encode(), 0)


def _can_enter(writable: Sequence[str]) -> bool:
    """Whether a fork of this process gets into the process boundary."""
    life, alive = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(alive)
        os._exit(int(not enter_forked(life, (), writable)))
    _, status = os.waitpid(process, 0)
    os.close(life)
    os.close(alive)
    return status == 0


class _Fork(NamedTuple):
    """Forked process, the descriptor that tells its end, and the connection to the command it works for."""

    process: int
    end: int
    command: socket.socket


class _Server:
    """Loop that forks a process for each request, and reports how it ended.

    Args:
        listener, lock: as for `main`.
        surroundings: digest of the surroundings; commands with another one get nothing.
        libraries: imported modules besides PyTorch; commands with others get nothing.
        writable: paths of the mounts that are writable outside.
    """

    def __init__(
        self,
        listener: socket.socket,
        lock: int,
        surroundings: str,
        libraries: Sequence[str],
        writable: Sequence[str],
    ) -> None:
        self._listener = listener
        self._lock = lock
        self._surroundings = surroundings
        self._libraries = libraries
        self._writable = writable
        self._ends_at = time.monotonic() + _IDLE_SECONDS
        self._running: dict[int, _Fork] = {}  # by `end`
        # Ended ones, by their connection: their ids stay taken until the commands have seen the end.
        self._ended: dict[int, _Fork] = {}
        self._poll = select.poll()

    def serve(self) -> _Task | None:
        """Serves until it is time to end, then returns None; in a fork, returns the fork's task."""
        self._listener.listen()
        self._poll.register(self._listener, select.POLLIN)
        while time.monotonic() < self._ends_at and self._is_wanted():
            if self._listener.fileno() in self._attend(_LOOK_SECONDS):
                task = self._answer()
                if task is not None:
                    return task
        self._poll.unregister(self._listener)
        self._listener.close()  # commands start processes of their own from now on
        os.close(self._lock)
        while self._running:
            self._attend(None)
        return None

    def _is_wanted(self) -> bool:
        available = host_memory.available_bytes()
        is_short = available is not None and available < _LEAST_AVAILABLE_BYTES
        return not is_short and os.fstat(self._lock).st_nlink > 0

    def _attend(self, seconds: float | None) -> list[int]:
        """Waits for something to happen, and reports processes that have ended.

        Args:
            seconds: how long to wait at most; None for as long as it takes.

        Returns:
            Descriptors that are ready.
        """
        ready = [number for number, _ in self._poll.poll(None if seconds is None else seconds * 1000)]
        for number in ready:
            if (running := self._running.pop(number, None)) is not None:
                self._report(running)
            elif (ended := self._ended.pop(number, None)) is not None:
                self._poll.unregister(number)
                ended.command.close()
                os.waitpid(ended.process, 0)
        return ready

    def _report(self, fork: _Fork) -> None:
        """Tells the command that a process works for how it has ended."""
        self._poll.unregister(fork.end)
        os.close(fork.end)
        told = os.waitid(os.P_PID, fork.process, os.WEXITED | os.WNOWAIT)
        if told is not None:
            code = told.si_status if told.si_code == os.CLD_EXITED else -told.si_status
            with suppress(OSError):  # the command is gone
                fork.command.sendall(ANSWER.pack(ENDED, code))
        self._ended[fork.command.fileno()] = fork
        self._poll.register(fork.command, select.POLLIN)

    def _answer(self) -> _Task | None:
        """Answers the next request; returns a task in the process that is forked for one."""
        command, _ = self._listener.accept()
        descriptors: list[int] = []
        task = None
        try:
            command.settimeout(_REQUEST_SECONDS)
            require_own(command)
            head, descriptors, _, _ = socket.recv_fds(command, LENGTH.size, _NUM_DESCRIPTORS)
            (length,) = LENGTH.unpack(head)
            said = json.loads(read_whole(command, min(length, _MOST_BYTES)))
            is_alike = said["surroundings"] == self._surroundings
            if said["request"] != FORK:
                self._tell(command, is_alike=is_alike)
            elif is_alike and self._can_serve(said["libraries"], descriptors):
                task = self._fork(command, descriptors, said["folder"], said["variables"])
            else:
                command.sendall(ANSWER.pack(REFUSED, 0))
                self._ends_at = time.monotonic()  # the command will start another one
        except (OSError, ValueError, LookupError, TypeError, RecursionError, struct.error):
            command.close()  # the command has given up, or is of another version
        for number in descriptors if task is None else ():
            os.close(number)
        return task

    def _can_serve(self, libraries: object, descriptors: Sequence[int]) -> bool:
        has_all = libraries == self._libraries and len(descriptors) == _NUM_DESCRIPTORS
        return has_all and _has_one_thread()

    def _tell(self, command: socket.socket, *, is_alike: bool) -> None:
        """Sends the state of this process, and ends the connection."""
        seconds = round(self._ends_at - time.monotonic(), 1)
        said = json.dumps({"process": os.getpid(), "seconds_left": seconds, "is_alike": is_alike}).encode()
        with command:
            command.sendall(LENGTH.pack(len(said)) + said)

    def _fork(
        self, command: socket.socket, descriptors: Sequence[int], folder: str, variables: dict[str, str]
    ) -> _Task | None:
        """Forks a process for a command; returns its task in that process, and None in this one."""
        process = os.fork()
        if process == 0:
            try:
                return self._become(command, descriptors, folder, variables)
            except BaseException:  # noqa: BLE001 - it must never go on as a second tracer
                traceback.print_exc()
                os._exit(1)
        end = os.pidfd_open(process)
        fork = _Fork(process, end, command)
        self._running[end] = fork
        self._poll.register(end, select.POLLIN)
        self._ends_at = time.monotonic() + _IDLE_SECONDS
        return None

    def _become(
        self, command: socket.socket, descriptors: Sequence[int], folder: str, variables: dict[str, str]
    ) -> _Task:
        """Makes a fork of this process what the command would have started, inside the boundary.

        A command that has given up meanwhile has given its pipes to another process: then this one ends.
        """
        os.setsid()
        command.sendall(ANSWER.pack(PROCESS, os.getpid()))
        for fork in (*self._running.values(), *self._ended.values()):
            fork.command.close()
        for end in self._running:
            os.close(end)
        self._listener.close()
        os.close(self._lock)
        requests, answers, output = descriptors
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        if not enter_forked(requests, (answers, command.fileno()), self._writable):
            os._exit(1)
        with command:
            command.sendall(ANSWER.pack(READY, 0))
            if command.recv(len(GO)) != GO:
                os._exit(1)
        _take_num_threads()
        importlib.invalidate_caches()  # folders may have come since the tracer looked for them
        _forget_numbers_drawn()
        return _Task(requests, answers)


def _has_one_thread() -> bool:
    """Whether a fork of this process would be whole: other threads would not be in it."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _take_num_threads() -> None:
    """Sets PyTorch's number of threads by the environment, from which PyTorch reads it when it is imported.

    Only scripts have one that differs from the tracer's.
    """
    if number := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(number))


def _forget_numbers_drawn() -> None:
    """Seeds the generators of random numbers anew, as two forks would else draw the same numbers.

    PyTorch's own starts from a fixed seed in every process.
    """
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
