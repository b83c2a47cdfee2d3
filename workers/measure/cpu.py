"""The CPU probe: the steps for real, in a process that the kernel limits."""

from __future__ import annotations

import errno
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from workers.measure import steps
from workers.outcomes import processor_name
from workers.protocol import Device, Evidence, Peaks, TrialOutcome, TrialSpec, Verdict
from workers.workload import resolve

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc_pid_clear_refs(5): sets the peak resident set to the current one


def measure(spec: TrialSpec) -> TrialOutcome:
    """Runs the trial's steps in this process.

    The budget limits the process's private writable memory (`RLIMIT_DATA`), so running out is
    real. The size fits when the steps ended and the peak resident set, which also counts the
    libraries' code, stayed within the budget. This process serves for one trial only: the peak
    of an earlier one would stay in its heap.
    """
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    workload = resolve(spec.workload)
    meter = ResidentSet()
    progress = steps.Progress()
    out_of_memory = None
    try:
        with data_limit(spec.budget_bytes):
            steps.run(workload, spec, torch.device("cpu"), meter, progress)
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        out_of_memory = f"{type(error).__name__}: {error}"
    steady = meter.peaks()
    if out_of_memory is None:
        out_of_memory = beyond(spec.budget_bytes, progress.first_step, steady)
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "peak_counts": meter.counts,
        **({"LD_PRELOAD": os.environ["LD_PRELOAD"]} if "LD_PRELOAD" in os.environ else {}),
    }
    return TrialOutcome(
        verdict=Verdict.FITS if out_of_memory is None else Verdict.OOM,
        evidence=Evidence.MEASURED_CPU,
        device=Device(kind="cpu", name=processor_name()),
        batch_size=spec.batch_size,
        knobs=spec.knobs,
        first_step=progress.first_step,
        steady=steady,
        num_steps_done=progress.num_steps_done,
        num_ooms=0 if out_of_memory is None else 1,
        step_seconds=progress.median_step_seconds,
        environment=environment if out_of_memory is None else {**environment, "out_of_memory": out_of_memory},
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says by its own type or identifier that memory ran out.

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
    """Limits this process's private writable memory; None is no limit.

    The limit is lifted at the end, so that there is memory to tell the outcome.
    """
    if limit_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = [limit_bytes, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class ResidentSet:
    """The `steps.Meter` of the CPU: the process's peaks, in bytes, and its clock.

    Attributes:
        counts: what the peak resident set covers: `steps` where the kernel lets it be reset, else
            `process`.
    """

    def __init__(self) -> None:
        self.counts = "steps"
        self._mapped_before_bytes = _status_bytes("VmPeak")

    def reset(self) -> None:
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
        except OSError:  # a kernel or sandbox without it: the peak is then the process's whole life's
            self.counts = "process"

    def peaks(self) -> Peaks:
        return Peaks(device_bytes=_peak_resident_bytes(), private_bytes=self._peak_private_bytes())

    def _peak_private_bytes(self) -> int | None:
        """Private writable memory at its peak, which is what `RLIMIT_DATA` limits; None if unknown.

        The kernel keeps a peak of all mapped memory alone. What of it is not private and writable
        are libraries, mapped once and for all.
        """
        mapped_bytes = _status_bytes("VmPeak")
        if mapped_bytes is None or mapped_bytes == self._mapped_before_bytes:
            return None  # it is from before the steps
        return mapped_bytes - (_status_bytes("VmSize") or 0) + (_status_bytes("VmData") or 0)

    def seconds_of(self, step: Callable[[], None]) -> float:
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin


def _peak_resident_bytes() -> int:
    resident_bytes = _status_bytes("VmHWM")
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if resident_bytes is None
        else resident_bytes
    )


def _status_bytes(name: str) -> int | None:
    """A line of `proc_pid_status(5)`; None on a system without it."""
    for line in _STATUS.read_text(encoding="ascii").splitlines() if _STATUS.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def beyond(budget_bytes: int | None, *peaks: Peaks) -> str | None:
    """Says how far the largest of the peaks passed the budget; None where it did not."""
    peak_bytes = max(peak.device_bytes or 0 for peak in peaks)
    if budget_bytes is None or peak_bytes <= budget_bytes:
        return None
    return f"the peak resident set of {peak_bytes} bytes is beyond the budget of {budget_bytes} bytes"
