"""A warm process that traces settings, apart from the bench, which it must not take down.

    bench                                    tracer (imports torch once, never replays)
      (setting, batch size)  ───pipe───▶     workload of the setting, steps on the fake GPU
      trace, seconds | why not ◀──pipe──     the trace as JSON

Predictions go the same way through `autofit_workers.trials.run`; here the replay is left out, which the bench
does itself under many conditions.
"""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from tests.bench import libraries
from tests.bench.tables.setting import Setting

_DEADLINE_SECONDS = 300.0


class NotTracedError(Exception):
    """A setting has no trace, and why."""


class Tracer:
    """A process that is started when it is first asked, and again after it died.

    Another takes its place where another release of a library is asked for: a process imports one alone.
    """

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._release = ""

    def trace(self, setting: Setting, batch_size: int) -> tuple[str, float]:
        """The trace of a setting as JSON, and the seconds that it took.

        Raises:
            NotTracedError: the model cannot be built, its step not traced, or not in time.
        """
        connection = self._connected(setting.release)
        try:
            connection.send((setting, batch_size))
            if not connection.poll(_DEADLINE_SECONDS):
                self.close()
                raise NotTracedError(f"batch {batch_size}: not traced within {_DEADLINE_SECONDS:g} s")
            trace_json, seconds, failure = connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise NotTracedError(f"batch {batch_size}: the process that traces died") from error
        if failure:
            raise NotTracedError(f"batch {batch_size}: {failure}")
        return trace_json, seconds

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()

    def _connected(self, release: str) -> Connection:
        if release != self._release:
            self.close()
        if self._process is None or self._connection is None:
            self._release = release
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()  # so that its death closes the pipe
        return self._connection


def _serve(connection: Connection) -> None:
    """Answers until the bench is gone."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    while True:
        try:
            setting, batch_size = connection.recv()
        except EOFError:
            return
        started = time.perf_counter()
        try:
            trace_json, failure = _trace(setting, batch_size), ""
        except Exception as error:  # noqa: BLE001 - the process boundary
            first_line = str(error).strip().partition("\n")[0]
            trace_json, failure = "", f"{type(error).__name__}: {first_line}"
        connection.send((trace_json, time.perf_counter() - started, failure))


def _trace(setting: Setting, batch_size: int) -> str:
    if setting.release:
        libraries.use(setting.release)
    from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
    from autofit_workers.spec.setup import Setup
    from autofit_workers.tracing import followed_release
    from autofit_workers.tracing.probe import trace_workload
    from tests.bench.tables.workloads import workload_of

    spec = TrialSpec(
        workload=WorkloadRef(kind="import", target=setting.model),
        batch_size=batch_size,
        probe=Probe.PREDICT,
        setup=Setup(mode=setting.mode, torch=setting.torch),
    )
    followed_release.begin_program(setting.torch)
    return trace_workload(workload_of(setting), spec).to_json()
