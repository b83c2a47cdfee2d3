"""CPU probe: runs real steps in a process whose memory the kernel limits."""

from __future__ import annotations

import dataclasses
import errno
import os
import platform
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from autofit_workers.apply import setting
from autofit_workers.apply.parallel import meeting
from autofit_workers.process import host_memory
from autofit_workers.process.heart import LastWord, Report, unheard, unsaid
from autofit_workers.process.operating_system import missing_for_cpu_trials
from autofit_workers.spec.errors import InvalidTrialError, UnsupportedError
from autofit_workers.spec.protocol import (
    ALLOCATOR_PEAK,
    CHECKPOINT,
    EVALUATION,
    Device,
    Peaks,
    TrialOutcome,
    TrialSpec,
    Verdict,
)
from autofit_workers.tracing.host.allocator_peak import allocator_peak_bytes
from autofit_workers.trials.measure import steps
from autofit_workers.trials.measure.baseline import resolve_measured
from autofit_workers.trials.measure.script import ScriptTrial
from autofit_workers.trials.outcomes import evidence_sought, processor_name
from autofit_workers.workload.workload import Workload

# The additional profiled step is only taken if the deadline leaves time for as many usual steps: the profiler
# slows a step down.
_STEPS_OF_TIME = 3.0
_START_SECONDS = 10.0


def measure(spec: TrialSpec, report: Report = unheard, last_word: LastWord = unsaid) -> TrialOutcome:
    """Runs the steps of a measured trial on the CPU, in this process, and returns the outcome.

    The budget limits the process's private writable memory (`RLIMIT_DATA`), so running out is
    real. The size fits if all steps completed and the peak resident set, which also counts
    the libraries' code, stayed within the budget. The process must not run a second trial: the
    peak of the first would stay in its heap.

    Args:
        spec: the trial.
        report: called for every phase of the trial.
        last_word: sends the outcome if a script cannot be ended otherwise, and ends the process.

    Raises:
        UnsupportedError: this system can neither limit nor tell a process's private memory.
    """
    if missing := missing_for_cpu_trials():
        raise UnsupportedError(f"nothing is measured on the CPU here, as {' and '.join(missing)}: use Linux")
    # A rank that repeats a step is out of step with the others, so `autofit_workers.trials.run` repeats the
    # trial with all ranks.
    meter = ResidentSet(tries_again=not spec.setup.parallel)
    progress = steps.Progress(device=Device(kind="cpu", name=processor_name()), report=report)

    def give_up() -> None:
        last_word(lambda: _outcome(spec, meter, progress, beyond(spec.budget_bytes, progress)))

    try:
        if spec.workload.kind == "script":
            out_of_memory = _run_script(spec, meter, progress, give_up)
        else:
            out_of_memory = _run(resolve_measured(spec.workload), spec, meter, progress)
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        out_of_memory = f"{steps.in_one_line(error)} (in {progress.phase})"
    return _outcome(spec, meter, progress, out_of_memory)


def _outcome(
    spec: TrialSpec, meter: ResidentSet, progress: steps.Progress, out_of_memory: str | None
) -> TrialOutcome:
    """Outcome of a measured trial on the CPU: `FITS`, or `OOM` with the reason."""
    fits = out_of_memory is None
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "peak_counts": meter.counts,
        **{name: os.environ[name] for name in ("LD_PRELOAD",) if name in os.environ},
        **progress.remarks,
        **({} if out_of_memory is None else {"out_of_memory": out_of_memory}),
    }
    assert progress.device is not None
    return TrialOutcome(
        verdict=Verdict.FITS if fits else Verdict.OOM,
        evidence=evidence_sought(spec),
        device=progress.device,
        batch_size=spec.batch_size,
        knobs=spec.knobs,
        first_step=progress.first_step,
        steady=progress.steady or meter.peaks(),
        evaluation=progress.evaluation,
        checkpoint=progress.checkpoint,
        phase="" if fits else progress.phase,
        num_steps_done=progress.num_steps_done,
        num_ooms=0 if fits else 1,
        step_seconds=progress.median_step_seconds,
        environment=environment,
    )


def _run(workload: Workload, spec: TrialSpec, meter: ResidentSet, progress: steps.Progress) -> str | None:
    """Runs a trial's steps, evaluation and checkpoint under the memory limit.

    Returns:
        A message on how far the peak exceeds the budget; None if it is within.
    """
    device = torch.device("cpu")
    with steps.conditions(spec, device, progress.remarks) as rewriting:
        setting.set_threads(spec.num_threads)
        progress.remarks["threads"] = str(torch.get_num_threads())
        with data_limit(spec.budget_bytes):
            trial = steps.Trial(workload, spec, device, meter, progress, rewriting=rewriting)
            with _unnamed_failures_tried_again(trial, meter, progress):
                trial.take_steps()
            trial.follow_up()
        excess = beyond(spec.budget_bytes, progress)
        if excess is None and spec.with_follow_up:
            _note_allocator_peak(trial, spec, progress)
    return excess


def _run_script(
    spec: TrialSpec, meter: ResidentSet, progress: steps.Progress, give_up: Callable[[], None]
) -> str | None:
    """Runs a script's steps under the CPU trial's memory limit.

    Args:
        spec: the trial.
        meter: measures the peaks.
        progress: gets phases, peaks and times.
        give_up: called if the script cannot be ended.

    Returns:
        A message on how far the peak exceeds the budget; None if it is within.
    """
    setting.set_threads(spec.num_threads)
    progress.remarks["threads"] = str(torch.get_num_threads())
    with data_limit(spec.budget_bytes):
        ScriptTrial(spec, torch.device("cpu"), meter, progress, give_up=give_up).take_steps()
    return beyond(spec.budget_bytes, progress)


@contextmanager
def _unnamed_failures_tried_again(
    trial: steps.Trial, meter: ResidentSet, progress: steps.Progress
) -> Iterator[None]:
    """Context manager for steps; finds out whether a step that failed would have succeeded with more memory.

    If its error does not name memory, the step is repeated without the memory limit. If it completes, the
    cause was memory. If it fails too, perhaps from leftovers of the first failure, the first error is raised
    again. With several ranks nothing is repeated.

    Args:
        trial: repeats the step.
        meter: measures the peaks, and tells whether failures are to be repeated.
        progress: gets the peaks up to the failure.

    Raises:
        MemoryError: the repeated step completed.
    """
    try:
        yield
    except (RuntimeError, SystemError) as error:
        if is_out_of_memory(error) or not meter.tries_again:
            raise
        progress.steady = meter.peaks()  # as far as the step came
        traceback.clear_frames(error.__traceback__)  # they hold tensors of the failed step

        def step() -> None:
            trial.drop_gradients()
            meter.reset()
            trial.step()

        with _soft_limit(None):
            _retry(step, steps.in_one_line(error), meter)
        raise


def _note_allocator_peak(trial: steps.Trial, spec: TrialSpec, progress: steps.Progress) -> None:
    """Adds the peak of PyTorch's allocator to the trial's steady peaks, or a remark why it was not measured.

    It is taken from a profiled step of its own, after the peaks of the resident set were read, because the
    profiler raises the resident set.
    """
    assert progress.steady is not None
    progress.enter(ALLOCATOR_PEAK)
    try:
        _demand_time(spec, progress)
        with data_limit(limit_of_machine(spec.processes_per_node)):
            trial.drop_gradients()
            allocated_bytes = trial.bytes_out_of_sight + allocator_peak_bytes(partial(_settled_step, trial))
    except Exception as error:  # noqa: BLE001 - the trial has its answer, whatever goes wrong here
        progress.remarks["allocated_bytes"] = f"could not be measured: {steps.in_one_line(error)}"
    else:
        progress.steady = dataclasses.replace(progress.steady, allocated_bytes=allocated_bytes)


def _settled_step(trial: steps.Trial) -> None:
    trial.step()
    meeting.settle()


def _demand_time(spec: TrialSpec, progress: steps.Progress) -> None:
    elapsed_seconds = time.monotonic() - progress.begin
    needed_seconds = _STEPS_OF_TIME * (progress.median_step_seconds or 0.0) + _START_SECONDS
    if not meeting.agreed(elapsed_seconds + needed_seconds <= spec.deadline_seconds):
        raise TimeoutError("the deadline is too near for another step")


def limit_of_machine(num_processes: int = 1) -> int | None:
    """Memory limit in bytes that lets this process use half of the machine's available memory.

    Args:
        num_processes: number of processes that share this half.

    Returns:
        What the process holds plus its share; None if the system does not report these numbers.
    """
    held_bytes, available_bytes = host_memory.status_bytes("VmData"), host_memory.available_bytes()
    if held_bytes is None or available_bytes is None:
        return None
    return held_bytes + available_bytes // (2 * num_processes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an out-of-memory error of the CPU, by its type, errno or text.

    PyTorch's CPU allocator raises a plain `RuntimeError`, known by the allocator's name in it
    (c10/core/impl/alloc_cpu.cpp); `std::bad_alloc` reaches Python as that text alone.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error)
    return type(error) is RuntimeError and (
        "DefaultCPUAllocator: can't allocate memory" in text or text == "std::bad_alloc"
    )


@contextmanager
def data_limit(limit_bytes: int | None) -> Iterator[None]:
    """Context manager that limits this process's private writable memory; None for no limit.

    The limit is lifted at the end, so that there is memory to send the outcome.
    """
    if limit_bytes is None:
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = [limit_bytes, *(limit for limit in limits if limit != resource.RLIM_INFINITY)]
    with _soft_limit(min(wanted)):
        yield


@contextmanager
def _soft_limit(limit_bytes: int | None) -> Iterator[None]:
    """Context manager that sets the soft limit of private writable memory (`RLIMIT_DATA`).

    Args:
        limit_bytes: the limit; None for the hard limit, the highest that is allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard if limit_bytes is None else limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _is_limited() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    return soft != hard


class ResidentSet:
    """Measurements of a CPU trial: peaks in bytes of resident and private memory, and the clock.

    It implements `steps.Meter`.

    Args:
        tries_again: whether an action that fails under a memory limit, with an error that does not name
            memory, is repeated without the limit to find out the cause.

    Attributes:
        counts: time that the peak resident set covers: `steps` if the kernel can reset it, else
            `process`, its whole life.
    """

    def __init__(self, *, tries_again: bool = True) -> None:
        self.counts = "steps"
        self._tries_again = tries_again
        self._mapped_before_bytes = host_memory.status_bytes("VmPeak")

    @property
    def tries_again(self) -> bool:
        """Whether to repeat a failed action without the memory limit: if switched on, and a limit is set."""
        return self._tries_again and _is_limited()

    def reset(self) -> None:
        try:
            host_memory.reset_peak_resident()
        except OSError:  # not allowed: the peak is then that of the process's whole life
            self.counts = "process"

    def peaks(self) -> Peaks:
        return Peaks(device_bytes=host_memory.peak_resident_bytes(), private_bytes=self._peak_private_bytes())

    def _peak_private_bytes(self) -> int | None:
        """Peak of private writable memory in bytes, which is what `RLIMIT_DATA` limits; None if unknown.

        The kernel keeps a peak only of all mapped memory (`VmPeak`). From this peak, today's part that is not
        private and writable is subtracted: mostly libraries, which are mapped once and stay. The peak is
        unknown if mapped memory has not exceeded its peak from before the steps.
        """
        mapped_bytes = host_memory.status_bytes("VmPeak")
        if mapped_bytes is None or mapped_bytes == self._mapped_before_bytes:
            return None  # the peak is from before the steps
        return (
            mapped_bytes
            - (host_memory.status_bytes("VmSize") or 0)
            + (host_memory.status_bytes("VmData") or 0)
        )

    def seconds_of(self, step: Callable[[], None]) -> float:
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin

    def attempt(self, action: Callable[[], None]) -> str | None:
        """Runs an action that a workload may not support, such as an evaluation.

        Returns:
            Why it failed, as a text; None if it succeeded.

        Raises:
            Exception: memory ran out, by the error's text or because the action completes without the limit.
        """
        try:
            action()
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, InvalidTrialError):
                raise
            reason = steps.in_one_line(error)
            if self.tries_again and isinstance(error, RuntimeError | SystemError):
                with _soft_limit(None):
                    _retry(action, reason, self)
            return reason
        return None


def _retry(action: Callable[[], None], reason: str, meter: ResidentSet) -> None:
    """Repeats a failed action without the memory limit, to find out whether it failed for memory.

    Args:
        action: the action.
        reason: its first error, for the message.
        meter: has the peak of the repetition, for the message.

    Raises:
        MemoryError: the repeated action completes.
    """
    try:
        action()
    except Exception:  # noqa: BLE001 - it fails of itself, in whatever way
        return
    raise MemoryError(
        f"{reason}; it completes without the limit, with a peak resident set of "
        f"{meter.peaks().device_bytes} bytes"
    )


def beyond(budget_bytes: int | None, progress: steps.Progress) -> str | None:
    """Message that names the phase of the largest peak and its excess over the budget; None if within it.

    It also sets the trial's phase to that of the largest peak.

    Args:
        budget_bytes: the budget; None for no limit.
        progress: the trial's phases and peaks.
    """
    peaks = {
        "first step": progress.first_step,
        "steps": progress.steady or Peaks(),
        EVALUATION: progress.evaluation,
        CHECKPOINT: progress.checkpoint,
    }
    sizes = {phase: peak.device_bytes or 0 for phase, peak in peaks.items()}
    worst = max(sizes, key=sizes.__getitem__)
    if budget_bytes is None or sizes[worst] <= budget_bytes:
        return None
    progress.phase = worst
    return (
        f"the peak resident set of {sizes[worst]} bytes is beyond the budget of {budget_bytes} bytes "
        f"(in {worst})"
    )
