"""Child process of a command, with pipes for requests and answers and a log of its output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from autofit_workers.process import process_table
from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.process.boundary.variables import HUBS_OFFLINE, public
from autofit_workers.process.descendants import MARK, kill_below, kill_marked
from autofit_workers.process.log import Log
from autofit_workers.process.scratch import VARIABLE, Scratch
from autofit_workers.process.warm_tracer import WarmTracer
from autofit_workers.spec.documents import MOST_BYTES, LimitError
from autofit_workers.spec.pythons import arguments_for

# The child imports this very package by its path, before any search of the import path, where another copy
# may be installed. The import path itself stays unchanged.
_BOOTSTRAP = """
import importlib, importlib.util, sys
_, folder, module, requests, answers, permissions = sys.argv
del sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "autofit_workers", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["autofit_workers"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
if permissions:
    entering = importlib.import_module("autofit_workers.process.boundary.entering")
    entering.enter(permissions, int(requests), int(answers))
importlib.import_module(module).main(int(requests), int(answers))
"""

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}  # the CUDA runtime then creates no context

_OPTIONS = ("-u", "-X", "faulthandler")
_POLL_SECONDS = 0.05
_EXIT_GRACE_SECONDS = 5.0


class _Process(Protocol):
    """Interface of a process that was started or forked for this one."""

    @property
    def pid(self) -> int:
        """Process id, which stays taken until it was waited for."""

    def has_exited(self) -> bool:
        """Whether the process has exited; does not wait for it."""

    def wait(self) -> int:
        """Waits until the process has exited; returns its exit code, negative if a signal ended it."""


class _OwnChild(subprocess.Popen[bytes]):
    """Child process of this one."""

    def has_exited(self) -> bool:
        return process_table.has_exited(self.pid)


def bootstrap(module: str) -> list[str]:
    """Arguments of Python that run the `main` of a module of this package; three more follow them.

    These are the numbers of two descriptors that `main` gets, and the JSON of `Permissions` of a process that
    enters the boundary, or an empty text.
    """
    return [*_OPTIONS, *arguments_for(_BOOTSTRAP), str(Path(__file__).parents[1]), module]


class Attendant(Protocol):
    """Interface of an object that handles a child process's lines, such as heartbeats, before its answer."""

    def hears(self, line: str) -> bool:
        """Handles a line of the child process; returns False if the line is the answer."""

    def attend(self) -> None:
        """Called while there is nothing to read from the child process; may raise to end the wait."""


class NoAttendant:
    """Handler for a child process without heartbeats, whose first line is its answer."""

    def hears(self, line: str) -> bool:  # noqa: ARG002 - the attendant's signature
        return False

    def attend(self) -> None:
        """Does nothing while the answer is awaited."""


_NO_ATTENDANT = NoAttendant()


class ChildProcess:
    """Child process with pipes for requests and answers, and a log of its output.

    Args:
        module: module of this package; its `main(requests_fd, answers_fd)` answers line by line.
        environment: variables set for the process, on top of a copy of this process's own.
        inherited: further descriptors that it gets, with the same numbers.
        permissions: permissions of a process that predicts a workload, and so enters the boundary; None for
            other processes.
        of_script: whether the process runs a script, and so gets a scratch folder for the script's files.
        tracer: warm tracer that forks the process where it can, for `module` `autofit_workers.trials.child`
            and permissions by default alone; None to start a process anew.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        *,
        inherited: Sequence[int] = (),
        permissions: Permissions | None = None,
        of_script: bool = False,
        tracer: WarmTracer | None = None,
    ) -> None:
        self.begin = time.monotonic()
        self._mark = uuid.uuid4().hex  # processes that it starts inherit the mark
        with ExitStack() as of_the_child, ExitStack() as ours:
            self.log = Log()
            ours.callback(self.log.close)
            self._scratch = Scratch() if of_script else None
            folder = {} if self._scratch is None else {VARIABLE: self._scratch.folder}
            ours.callback(self._remove_scratch)
            of_the_child.callback(os.close, self.log.writer)
            child_requests, self._requests = os.pipe()
            ours.callback(os.close, self._requests)
            of_the_child.callback(os.close, child_requests)
            self._answers, child_answers = os.pipe()
            ours.callback(os.close, self._answers)
            of_the_child.callback(os.close, child_answers)
            pipes = (child_requests, child_answers)
            told, variables = "", dict(os.environ)
            if permissions is not None:
                told = permissions.to_json()
                variables = public(variables, permissions.kept_variables)
                variables |= {} if permissions.network else HUBS_OFFLINE
            variables = {**variables, **environment, MARK: self._mark, **folder}
            forked = None if tracer is None else tracer.fork(variables, (*pipes, self.log.writer))
            self._process: _Process = forked or _OwnChild(
                [sys.executable, *bootstrap(module), *map(str, pipes), told],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=self.log.writer,
                stderr=self.log.writer,
                pass_fds=(*pipes, *inherited),
                start_new_session=True,
            )
            ours.pop_all()  # open as long as the process lives

    def ask(self, message: str, deadline: float, attendant: Attendant = _NO_ATTENDANT) -> str:
        """Sends one line to the child process and returns the line that it answers.

        Args:
            deadline: time of `time.monotonic` until which it waits.

        Raises:
            TimeoutError: the deadline passed first.
            EOFError: the process died first.
            LimitError: the answer is longer than the limit.
        """
        outgoing = memoryview(message.encode() + b"\n")
        incoming = bytearray()
        os.set_blocking(self._requests, False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_WRITE)
            selector.register(self._answers, selectors.EVENT_READ)
            selector.register(self.log, selectors.EVENT_READ)
            while (answer := _answer_in(incoming, attendant)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                # A process forked by the child may hold its pipes open, so their end alone does
                # not tell of its death. What it wrote before it died is already in the pipe.
                died = self.has_exited()
                ready = {key.fd for key, _ in selector.select(0 if died else min(remaining, _POLL_SECONDS))}
                if self._requests in ready:
                    outgoing = outgoing[self._write_some(outgoing) :]
                    if not outgoing:
                        selector.unregister(self._requests)
                if self.log.fileno() in ready and not self.log.listen():
                    selector.unregister(self.log)
                if self._answers in ready:
                    chunk = os.read(self._answers, 1 << 20)
                    if not chunk:
                        self._wait_for_exit()
                        raise EOFError
                    incoming += chunk
                    if len(incoming) > MOST_BYTES and b"\n" not in incoming:
                        raise LimitError(f"is larger than {MOST_BYTES >> 20} MiB")
                elif died:
                    raise EOFError
                else:
                    attendant.attend()
        return answer

    def _write_some(self, outgoing: memoryview) -> int:
        try:
            return os.write(self._requests, outgoing)
        except BrokenPipeError:
            return len(outgoing)  # nobody reads any more: the pipe of answers shows why

    @property
    def group(self) -> int:
        """Id of the child's process group, which is also the child's process id."""
        return self._process.pid

    def has_exited(self) -> bool:
        """Whether the child process has exited; does not reap it, so that its group's id stays taken."""
        return self._process.has_exited()

    def _wait_for_exit(self) -> None:
        give_up = time.monotonic() + _EXIT_GRACE_SECONDS
        while not self.has_exited() and time.monotonic() < give_up:
            self.log.listen()  # full pipes must not make it wait at its end
            time.sleep(_POLL_SECONDS)

    def dismiss(self) -> None:
        """Lets the child process exit by itself, then kills the remaining processes of its group."""
        kill_below(self.group, spared_group=self.group)  # once it ends, others cannot be found
        with suppress(BrokenPipeError):
            os.write(self._requests, b"\n")
        self._wait_for_exit()
        self.kill()
        self.log.close()

    def kill(self) -> str:
        """Kills the child and all its descendants, reaps it, and returns how it ended, as text for users."""
        kill_below(self._process.pid)  # first, while it still adopts their orphans
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        kill_marked(self._mark)
        code = self._process.wait()
        self._wait_for_descendants()
        self._close_pipes()
        self._remove_scratch()
        return _name_of_signal(-code) if code < 0 else f"exit code {code}"

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _wait_for_descendants(self) -> None:
        """Waits until the processes forked by the child have ended, which closes their copies of its pipe."""
        give_up = time.monotonic() + _EXIT_GRACE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while (remaining := give_up - time.monotonic()) > 0:
                if selector.select(remaining) and not os.read(self._answers, 1 << 20):
                    return

    def _close_pipes(self) -> None:
        os.close(self._requests)
        os.close(self._answers)


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"


def _answer_in(incoming: bytearray, attendant: Attendant) -> str | None:
    """Takes whole lines off `incoming` and returns the answer; None if it has not arrived yet."""
    while b"\n" in incoming:
        raw, _, _ = incoming.partition(b"\n")
        del incoming[: len(raw) + 1]
        line = raw.decode(errors="replace")
        if not attendant.hears(line):
            return line
    return None
