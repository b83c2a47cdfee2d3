"""Runs a trial in a child process: a fresh one for a measured trial, a reused one for predictions.

    supervisor (never imports torch)                 child (session and process group of its own)
      specs pipe     ── one JSON line per trial ──▶    a thread reads: end of file kills the group
      outcomes pipe  ◀── one JSON line per trial ──    the main thread runs trial after trial
                     ◀── heartbeats, one a line  ──    another thread repeats the last one
      log pipe       ◀── stdout and stderr          both ends are kept, and how much was between them

The child never outlives its supervisor: however the supervisor dies, the kernel closes the
specs pipe. The supervisor never waits beyond the deadline, nor for a child that sends no heartbeats or
exceeds its memory: it kills the child's whole process group (processes of data loaders are in
it) and all descendants in other groups, and returns once the child is gone.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.process.boundary.variables import HUBS_OFFLINE, public
from autofit_workers.process.child_process import NO_GPU, ChildProcess, bootstrap
from autofit_workers.process.heart import Report, unheard
from autofit_workers.process.warm_tracer import MODULE, WarmTracer
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.documents import LimitError
from autofit_workers.spec.knobs.allocator import allocator_conf
from autofit_workers.spec.protocol import Probe, TrialError, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.shown import shown
from autofit_workers.trials.outcomes import without_answer
from autofit_workers.trials.supervision import (
    HungError,
    StoppedError,
    Supervision,
    TooManyProcessesError,
    TooMuchMemoryError,
)

# A predicted script computes little on the CPU: threads that wait for each other would cost more than they
# save.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# One arena and fixed thresholds: glibc otherwise adapts them to the process's history, so
# the same batch fits once and fails once (mallopt(3), "M_MMAP_THRESHOLD" and "M_ARENA_MAX").
STEADY_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
# Inductor would otherwise fork processes that compile, each with its own PyTorch in memory.
ONE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
_LOOK_SECONDS = 0.05


def environment_of(spec: TrialSpec) -> dict[str, str]:
    """Environment variables that a trial's process gets on top of those of the process that starts it."""
    if spec.probe is Probe.PREDICT:
        return NO_GPU | (ONE_THREAD if spec.workload.kind == "script" else {})
    threads = {} if spec.num_threads is None else {"OMP_NUM_THREADS": str(spec.num_threads)}
    if spec.probe is Probe.CPU:
        return threads | NO_GPU | STEADY_MALLOC | (ONE_COMPILER if spec.knobs.compile else {})
    policy = conv.policy_of(conv.find(spec.knobs.conv_algo), GPU_KIND)
    return threads | dict(policy.variables) | _allocator_variables(spec.knobs.allocator)


def _allocator_variables(allocator: str) -> dict[str, str]:
    """Environment variables that set the CUDA allocator, under both names that PyTorch reads.

    Args:
        allocator: a value of the option `--allocator`, such as `max_split:128`.
    """
    settings = allocator_conf(allocator)
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if settings else ()
    return dict.fromkeys(names, settings)


_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextmanager
def ended_by(stop: threading.Event) -> Iterator[None]:
    """Context manager in which setting `stop` ends the trials that this thread runs.

    `Child.run` then raises `StoppedError`.
    """
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


_report: ContextVar[Report] = ContextVar("report", default=unheard)


@contextmanager
def reported_to(report: Report) -> Iterator[None]:
    """Context manager in which heartbeats of the trials that this thread runs are also passed to `report`."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def run_interruptibly(run: Callable[[TrialSpec], TrialOutcome], spec: TrialSpec) -> TrialOutcome:
    """Runs a trial in another thread, so that an interruption of this one ends the trial completely.

    `KeyboardInterrupt` is raised between any two lines of the main thread, so also while a process is being
    started or ended, which then would live on. The other thread is told of the interruption instead.

    Args:
        run: runs a trial; an `ended_by` block surrounds it.
        spec: the trial.
    """
    stop = threading.Event()

    def run_until_stopped() -> TrialOutcome:
        with ended_by(stop):
            return run(spec)

    pool = ThreadPoolExecutor(1, thread_name_prefix="autofit-supervisor")
    try:
        running = pool.submit(run_until_stopped)
        while not running.done():  # only a running main thread notices `_thread.interrupt_main`, as Ray calls
            wait([running], timeout=_LOOK_SECONDS)
        return running.result()
    finally:
        stop.set()
        pool.shutdown()


# A process that forks must have one thread, and NumPy's OpenBLAS starts others when it is imported.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
_warm_tracer: WarmTracer | None = None


def use_warm_tracer(tracer: WarmTracer) -> None:
    """Has predicting processes forked by a warm tracer from now on, where one is running."""
    global _warm_tracer  # noqa: PLW0603 - of the process, as its predicting processes are
    _warm_tracer = tracer


def leave_warm_tracer(make_folder: Callable[[], object]) -> None:
    """Starts a warm tracer for later commands if this one would have used it, and there was none.

    Args:
        make_folder: makes the folder of its socket.
    """
    if _warm_tracer is not None and _warm_tracer.was_missed:
        make_folder()
        with suppress(OSError):  # later commands start processes of their own
            variables = public(os.environ) | HUBS_OFFLINE | NO_GPU | _NO_THREADS
            _warm_tracer.start(bootstrap(MODULE), variables)


def require_wanted() -> None:
    """Raises `StoppedError` if the event of the surrounding `ended_by` block is set.

    The trial is then not wanted any more.
    """
    if (stop := _stop.get()) is not None and stop.is_set():
        raise StoppedError


def run_fresh(spec: TrialSpec) -> TrialOutcome:
    """Runs one trial in a fresh process, which ends after it, and returns the outcome."""
    with Child(environment_of(spec), of_script=spec.workload.kind == "script") as child:
        return child.run(spec)


class Child:
    """Process that runs trials one at a time; it starts when first needed, and again after it died.

    Args:
        environment: variables set for the process, on top of a copy of this process's own.
        inherited: file descriptors of this process that it gets, under the same numbers.
        of_script: whether it runs a script, and so gets a scratch folder for the script's files.

    Attributes:
        start_seconds: seconds from the start of the process to its first trial.
        busy_seconds: seconds that trials have run in the process so far, without `start_seconds`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        inherited: Sequence[int] = (),
        of_script: bool = False,
    ) -> None:
        self._environment = dict(environment)
        self._of_script = of_script
        self._permissions: Permissions | None = None
        self._inherited = tuple(inherited)
        self._process: ChildProcess | None = None
        self._lock = threading.Lock()
        self._is_asked = False
        self.start_seconds = self.busy_seconds = 0.0

    def start(self, permissions: Permissions | None = Permissions()) -> None:  # noqa: B008 - frozen
        """Starts the process and returns immediately, so that its import of torch overlaps other work.

        Args:
            permissions: what predicted workloads may do in it; None for a process that measures.

        Raises:
            OSError: the system refuses another process.
        """
        with self._lock:
            self._started(permissions)

    @property
    def is_started(self) -> bool:
        """Whether a process was started; it may still be importing torch."""
        return self._process is not None

    def run(self, spec: TrialSpec) -> TrialOutcome:
        """Runs a trial and returns its outcome; a process that dies or exceeds the deadline gives one too.

        The deadline includes the start of the process, but not the wait for another trial to end.
        """
        with self._lock:
            return self._timed(spec)

    def run_if_free(self, spec: TrialSpec) -> TrialOutcome | None:
        """Runs a trial as `run` does; returns None without waiting if another trial is running."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._timed(spec)
        finally:
            self._lock.release()

    def _timed(self, spec: TrialSpec) -> TrialOutcome:
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
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            if self._is_asked:
                process.dismiss()
            else:  # it may still be importing torch, and leaves nothing behind
                process.kill()
                process.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _run(self, spec: TrialSpec, deadline: float) -> TrialOutcome:
        """Runs a trial in the process; a process that dies, hangs or is interrupted is ended."""
        require_wanted()  # before a process is started for nothing
        try:
            process = self._started(Permissions.of(spec.setup) if spec.probe is Probe.PREDICT else None)
        except OSError as error:
            message = f"no process could be started for the trial ({error}): free memory, or end processes"
            return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message=message))
        process.log.forget()
        supervision = Supervision(spec, process.group, stop=_stop.get(), report=_report.get())
        try:
            outcome = TrialOutcome.from_json(process.ask(spec.to_json(), deadline, supervision))
            self._count(process, supervision)
        except BaseException as error:  # an interrupted supervisor, too, leaves no process behind
            self._process = None
            if isinstance(error, StoppedError) and process.has_exited():
                error = EOFError()  # its death may be the reason why the other ranks are stopped
            death = process.kill()
            if not isinstance(error, _ENDINGS):
                process.log.close()
                raise
            outcome = _unfinished(spec, error, death, supervision)
        outcome = dataclasses.replace(outcome, log_tail=shown(process.log.text()))
        if self._process is None:
            process.log.close()
        return outcome

    def _count(self, process: ChildProcess, supervision: Supervision) -> None:
        """Adds the duration of a finished trial to `start_seconds` and `busy_seconds`.

        Args:
            process: the process that ran it.
            supervision: has the time of its first heartbeat, which ends the start of the process.
        """
        if not self._is_asked:
            self._is_asked = True
            self.start_seconds = supervision.first_heard - process.begin
        self.busy_seconds += time.monotonic() - supervision.first_heard

    def _started(self, permissions: Permissions | None) -> ChildProcess:
        """Process with the given permissions, which is started unless it runs already."""
        if permissions != self._permissions:
            self._end()
            self._permissions = permissions
        if self._process is not None and self._process.has_exited():
            process, self._process = self._process, None
            process.kill()
            process.log.close()
        if self._process is None:
            self._process = ChildProcess(
                "autofit_workers.trials.child",
                self._environment,
                inherited=self._inherited,
                permissions=self._permissions,
                of_script=self._of_script,
                tracer=self._tracer(),
            )
            self._is_asked = False
        return self._process

    def _tracer(self) -> WarmTracer | None:
        """Warm tracer that may fork the process; None if the process differs from what a tracer forks."""
        usual = NO_GPU | ONE_THREAD if self._of_script else NO_GPU
        is_alike = self._environment == usual and not self._inherited
        return _warm_tracer if is_alike and self._permissions == Permissions() else None


# Errors that end the wait for an outcome.
_ENDINGS = (TimeoutError, EOFError, ValueError, TooMuchMemoryError, TooManyProcessesError)


def _unfinished(spec: TrialSpec, error: BaseException, death: str, supervision: Supervision) -> TrialOutcome:
    """Outcome of a trial whose process sent none, with phase and steps from its last heartbeat.

    Args:
        spec: the trial.
        error: error that ended the wait for the outcome.
        death: how the process ended: name of a signal, or exit code.
        supervision: has the process's last heartbeat.
    """
    outcome = _ending(spec, error, death, supervision)
    beat = supervision.last_beat
    return dataclasses.replace(
        outcome,
        device=beat.device or outcome.device,
        phase=beat.phase,
        num_steps_done=beat.num_steps_done,
        environment={**outcome.environment, "last_heard": supervision.last_heard},
    )


def _ending(spec: TrialSpec, error: BaseException, death: str, supervision: Supervision) -> TrialOutcome:
    """Outcome of a trial whose process died or was ended: the verdict, and the reason for the user."""
    where = supervision.last_heard
    if isinstance(error, TooMuchMemoryError):
        return _out_of_host_memory(spec, str(error), where)
    if isinstance(error, EOFError):
        kill = supervision.killed_for_memory() if death == signal.SIGKILL.name else None
        if kill is not None:
            return _out_of_host_memory(spec, kill, where)
        message = f"the trial's process died ({death}, {where}): the end of its log may show why"
        return without_answer(
            spec, Verdict.LOST, TrialError(kind="environment", message=message), environment={"exit": death}
        )
    if isinstance(error, TimeoutError | TooManyProcessesError):
        verdict = Verdict.TIMEOUT if isinstance(error, TimeoutError) else Verdict.LOST
        return without_answer(
            spec, verdict, TrialError(kind="environment", message=_why_ended(spec, error, where))
        )
    message = (
        f"the answer of the trial's process {error}: its trace is too large, so try a smaller model"
        if isinstance(error, LimitError)
        else f"the outcome of the trial's process cannot be read ({error}): install autofit here again"
    )
    return without_answer(spec, Verdict.LOST, TrialError(kind="protocol", message=message))


def _why_ended(spec: TrialSpec, error: Exception, where: str) -> str:
    """Message that says why the supervisor ended a trial, and what to do.

    Args:
        spec: the trial.
        error: the supervisor's reason.
        where: clause with the phase of the trial's last heartbeat.
    """
    if isinstance(error, TooManyProcessesError):
        return f"the workload starts ever more processes ({error}; {where}): find what starts them"
    if isinstance(error, HungError):
        return f"the trial's process fell silent for {spec.heartbeat_seconds:g} s ({where}): find what hangs"
    return (
        f"the trial did not end within {spec.deadline_seconds:g} s ({where}): "
        "allow more time, or find what hangs"
    )


def _out_of_host_memory(spec: TrialSpec, reason: str, where: str) -> TrialOutcome:
    """Outcome of a trial that ran out of host memory: `OOM` if measured, `LOST` if predicted.

    The host memory that a prediction takes does not show how much memory the workload needs.

    Args:
        spec: the trial.
        reason: how it was found out, in words.
        where: clause with the phase of the trial's last heartbeat.
    """
    if spec.probe is Probe.PREDICT:
        message = (
            f"the prediction ran out of this machine's memory ({reason}; {where}): "
            "free some, give more with --max-host-memory, or predict on another machine"
        )
        return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message=message))
    outcome = without_answer(spec, Verdict.OOM, None, environment={"out_of_memory": f"{reason}; {where}"})
    return dataclasses.replace(outcome, num_ooms=1)
