"""A process of its own for a trial: fresh for a measured one, kept warm for predictions.

    supervisor (never imports torch)                 child (session and process group of its own)
      specs pipe     ── one JSON line per trial ──▶    a thread reads: end of file kills the group
      outcomes pipe  ◀── one JSON line per trial ──    the main thread runs trial after trial
      log file       ◀── stdout and stderr

The child never outlives its supervisor: when that dies, however it dies, the kernel closes the
specs pipe. The supervisor never waits beyond the deadline: it kills the child's whole process
group (data loaders' processes are in it) and returns once the child is gone.
"""

from __future__ import annotations

import dataclasses
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from workers.outcomes import without_answer
from workers.protocol import Probe, TrialError, TrialOutcome, TrialSpec, Verdict

# `workers` is a common name, so the child takes this very package by its path, before any search
# of the import path, and nothing is put in front of that path.
_BOOTSTRAP = """
import importlib, importlib.util, sys
_, folder, module, requests, answers = sys.argv
del sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "workers", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["workers"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
importlib.import_module(module).main(int(requests), int(answers))
"""

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}  # the CUDA runtime then creates no context
# One arena and fixed thresholds: glibc otherwise adapts them to the history of the process, and
# the same batch fits once and fails once (mallopt(3), "M_MMAP_THRESHOLD" and "M_ARENA_MAX").
STEADY_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
_LOG_TAIL_BYTES = 4096
_POLL_SECONDS = 0.05
_EXIT_GRACE_SECONDS = 5.0


def environment_of(spec: TrialSpec) -> dict[str, str]:
    """The variables that a trial's process is given beside the supervisor's own."""
    if spec.probe is Probe.PREDICT:
        return dict(NO_GPU)
    threads = {} if spec.num_threads is None else {"OMP_NUM_THREADS": str(spec.num_threads)}
    return {**threads, **(NO_GPU | STEADY_MALLOC if spec.probe is Probe.CPU else {})}


def run_fresh(spec: TrialSpec) -> TrialOutcome:
    """Runs one trial in a process that did nothing before it and does nothing after it."""
    with Child(environment_of(spec)) as child:
        return child.run(spec)


class Child:
    """A process that runs trials, one at a time; started when first needed, restarted when it died.

    Args:
        environment: variables set for the process, over a copy of this process's own.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._process: ChildProcess | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the process and returns at once, so that its import of torch overlaps other work.

        Raises:
            OSError: the system refuses another process.
        """
        with self._lock:
            self._started()

    def run(self, spec: TrialSpec) -> TrialOutcome:
        """Runs a trial; its process's death and its deadline are outcomes, not errors.

        The deadline includes the start of the process, but not the wait for another trial in it.
        """
        with self._lock:
            begin = time.monotonic()
            outcome = self._run(spec, begin + spec.deadline_seconds)
            return dataclasses.replace(
                outcome,
                wall_seconds=time.monotonic() - begin,
                environment={**self._environment, **outcome.environment},
            )

    def close(self) -> None:
        """Ends the process and whatever it started; a later `run` starts another."""
        with self._lock:
            if self._process is not None:
                process, self._process = self._process, None
                process.dismiss()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _run(self, spec: TrialSpec, deadline: float) -> TrialOutcome:
        try:
            process = self._started()
        except OSError as error:
            message = f"no process could be started for the trial ({error}): free memory or processes"
            return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message=message))
        log_start = process.log_bytes
        try:
            outcome = TrialOutcome.from_json(process.ask(spec.to_json(), deadline))
        except BaseException as error:  # an interrupted supervisor leaves no process behind either
            self._process = None
            death = process.kill()
            if not isinstance(error, (TimeoutError, EOFError, ValueError)):
                process.log.close()
                raise
            outcome = _unfinished(spec, error, death)
        outcome = dataclasses.replace(outcome, log_tail=process.log_tail(log_start))
        if self._process is None:
            process.log.close()
        return outcome

    def _started(self) -> ChildProcess:
        if self._process is not None and self._process.has_exited():
            process, self._process = self._process, None
            process.kill()
            process.log.close()
        if self._process is None:
            self._process = ChildProcess("workers.child", self._environment)
        return self._process


def _unfinished(spec: TrialSpec, error: BaseException, death: str) -> TrialOutcome:
    if isinstance(error, TimeoutError):
        message = f"the trial did not end within {spec.deadline_seconds:g} s: allow more, or find what hangs"
        return without_answer(spec, Verdict.TIMEOUT, TrialError(kind="environment", message=message))
    if isinstance(error, EOFError):
        message = f"the trial's process died ({death}): the end of its log may say of what"
        return without_answer(
            spec, Verdict.LOST, TrialError(kind="environment", message=message), environment={"exit": death}
        )
    message = f"the trial's process sent no outcome that can be read ({error}): is this installation mixed?"
    return without_answer(spec, Verdict.LOST, TrialError(kind="protocol", message=message))


class ChildProcess:
    """One started child with its pipes and its log, from birth to reaping.

    Args:
        module: of this package; its `main(requests_fd, answers_fd)` answers line by line.
        environment: variables set for the process, over a copy of this process's own.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self.log: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        child_requests, self._requests = os.pipe()
        self._answers, child_answers = os.pipe()
        command = [sys.executable, "-P", "-u", "-X", "faulthandler", "-c", _BOOTSTRAP]
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [*command, str(Path(__file__).parent), module, str(child_requests), str(child_answers)],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                pass_fds=(child_requests, child_answers),
                start_new_session=True,
            )
        except BaseException:
            self._close_pipes()
            self.log.close()
            raise
        finally:
            os.close(child_requests)
            os.close(child_answers)

    def ask(self, message: str, deadline: float) -> str:
        """Sends one line and returns the line that answers it, until a moment of `time.monotonic`.

        Raises:
            TimeoutError: the deadline passed first.
            EOFError: the process died first.
        """
        outgoing = memoryview(message.encode() + b"\n")
        incoming = bytearray()
        os.set_blocking(self._requests, False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_WRITE)
            selector.register(self._answers, selectors.EVENT_READ)
            while not incoming.endswith(b"\n"):
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
                if self._answers in ready:
                    chunk = os.read(self._answers, 1 << 20)
                    if not chunk:
                        self._wait_for_exit()
                        raise EOFError
                    incoming += chunk
                elif died:
                    raise EOFError
        return incoming.decode()

    def _write_some(self, outgoing: memoryview) -> int:
        try:
            return os.write(self._requests, outgoing)
        except BrokenPipeError:
            return len(outgoing)  # nobody reads any more: the answers pipe tells why

    def has_exited(self) -> bool:
        """Whether the process is dead; it is not reaped, so that its group's number stays taken."""
        try:
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # reaped by someone else in this process
            return True

    def _wait_for_exit(self) -> None:
        give_up = time.monotonic() + _EXIT_GRACE_SECONDS
        while not self.has_exited() and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)

    def dismiss(self) -> None:
        """Lets the process end by itself, then kills whatever is left of its group."""
        with suppress(BrokenPipeError):
            os.write(self._requests, b"\n")
        self._wait_for_exit()
        self.kill()
        self.log.close()

    def kill(self) -> str:
        """Kills the process group, reaps the process and returns how that one ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        code = self._popen.wait()
        self._wait_for_descendants()
        self._close_pipes()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _wait_for_descendants(self) -> None:
        """Waits for the end of what the child forked: the last copy of its pipe is then closed."""
        give_up = time.monotonic() + _EXIT_GRACE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while (remaining := give_up - time.monotonic()) > 0:
                if selector.select(remaining) and not os.read(self._answers, 1 << 20):
                    return

    def _close_pipes(self) -> None:
        os.close(self._requests)
        os.close(self._answers)

    @property
    def log_bytes(self) -> int:
        """How much the process has printed so far."""
        return os.fstat(self.log.fileno()).st_size

    def log_tail(self, start: int) -> str:
        """The end of what it printed after `start`; `pread` leaves the child's offset alone."""
        end = self.log_bytes
        start = max(start, end - _LOG_TAIL_BYTES)
        return os.pread(self.log.fileno(), end - start, start).decode(errors="replace")
