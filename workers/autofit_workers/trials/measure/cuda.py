"""CUDA probe: runs real steps on the card, under a cap of PyTorch's allocator."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from autofit_workers.process.heart import LastWord, Report, unheard, unsaid
from autofit_workers.pytorch.cuda import memory_snapshot, record_memory_history
from autofit_workers.spec.architecture import of_device
from autofit_workers.spec.errors import DeviceError, InvalidTrialError
from autofit_workers.spec.protocol import Device, Peaks, TrialOutcome, TrialSpec, Verdict
from autofit_workers.trials.measure import steps
from autofit_workers.trials.measure.card import Card
from autofit_workers.trials.measure.script import ScriptTrial
from autofit_workers.trials.outcomes import evidence_sought
from autofit_workers.workload.workload import Workload, resolve

_CUDA_ERROR_MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation of the CUDA runtime
_LIBRARY_ALLOCATION_FAILURE = re.compile(
    r"\bCU(BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED\b"
    r"|\bCUFFT_ALLOC_FAILED\b"
    r"|\bCUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED\b"
)
_SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDNN_CONV_WSCAP_DBG",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_MODULE_LOADING",
    "NVIDIA_TF32_OVERRIDE",
)
_MAX_HISTORY_EVENTS = 1_000_000

# PyTorch leaves these untyped, and its allocator's history has no public name.
_memory: Any = torch.cuda.memory
_new_event: Any = torch.cuda.Event
_cudnn: Any = torch.backends.cudnn


def measure(spec: TrialSpec, report: Report = unheard, last_word: LastWord = unsaid) -> TrialOutcome:
    """Runs the steps of a measured trial on the first visible card and returns the outcome.

    The allocator may reserve no more than the budget. If the allocator retries, which releases
    its cached segments and asks again, the verdict is `THRASH`. Under the budget of a smaller card
    the evidence is `emulated`: cuDNN then still sees all of the free memory when it ranks its plans.

    Args:
        spec: the trial.
        report: called for every phase of the trial.
        last_word: sends the outcome if a script cannot be ended otherwise, and ends the process.

    Raises:
        DeviceError: PyTorch finds no CUDA device, or it is too small or busy.
    """
    card = Card.at_hand()
    if card.occupancy is not None:
        card.occupancy.demand(spec.budget_bytes, card.device.name)
    workload = None if spec.workload.kind == "script" else resolve(spec.workload)
    _cap(spec.budget_bytes, card)
    meter = AllocatorMeter(card)
    progress = steps.Progress(device=card.device, report=report)
    learned = _Learned()

    def give_up() -> None:
        last_word(lambda: _outcome(spec, card, meter, progress, learned, _swallowed_out_of_memory()))

    out_of_memory = _run(workload, spec, meter, progress, learned, give_up)
    return _outcome(spec, card, meter, progress, learned, out_of_memory)


def _swallowed_out_of_memory() -> str | None:
    """Message that a script caught out-of-memory errors by itself, and how many; None if there was none."""
    num_ooms = torch.cuda.memory_stats(0).get("num_ooms", 0)
    times = "once" if num_ooms == 1 else f"{num_ooms} times"
    return f"the script caught an out-of-memory error, {times}" if num_ooms else None


def _outcome(  # noqa: PLR0917 - what a trial has learned
    spec: TrialSpec,
    card: Card,
    meter: AllocatorMeter,
    progress: steps.Progress,
    learned: _Learned,
    out_of_memory: str | None,
) -> TrialOutcome:
    """Outcome of a measured trial on a card: `FITS`, `THRASH` or `OOM`, with peaks and environment."""
    counters = torch.cuda.memory_stats(0)
    num_retries = counters.get("num_alloc_retries", 0)
    if out_of_memory is not None:
        verdict = Verdict.OOM
        learned.environment["out_of_memory"] = out_of_memory
    else:
        verdict = Verdict.THRASH if num_retries else Verdict.FITS
    return TrialOutcome(
        verdict=verdict,
        evidence=evidence_sought(spec),
        device=card.device,
        batch_size=spec.batch_size,
        knobs=spec.knobs,
        first_step=progress.first_step,
        steady=progress.steady or meter.allocator_peaks(),
        evaluation=progress.evaluation,
        checkpoint=progress.checkpoint,
        phase="" if out_of_memory is None else learned.phase,
        num_steps_done=progress.num_steps_done,
        num_alloc_retries=num_retries,
        num_ooms=counters.get("num_ooms", 0),
        context_bytes=learned.context_bytes,
        step_seconds=progress.median_step_seconds,
        environment={**_versions(), **card.description(), **progress.remarks, **learned.environment},
    )


@dataclass(slots=True)
class _Learned:
    """Results of a trial on a card other than the peaks and times in `steps.Progress`.

    Attributes:
        context_bytes: size of the CUDA context; None if the steps did not complete, as it may then be
            unreadable.
        phase: phase in which memory ran out; empty if it did not.
        environment: entries for the outcome's environment.
    """

    context_bytes: int | None = None
    phase: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def _run(  # noqa: PLR0917 - as above
    workload: Workload | None,
    spec: TrialSpec,
    meter: AllocatorMeter,
    progress: steps.Progress,
    learned: _Learned,
    give_up: Callable[[], None],
) -> str | None:
    """Runs a trial's steps, evaluation and checkpoint, or a script's steps.

    Args:
        workload: the workload; None for a script.
        spec: the trial.
        meter: measures the peaks.
        progress: gets phases, peaks and times.
        learned: gets further results.
        give_up: called if a script cannot be ended.

    Returns:
        A message on how memory ran out; None if it did not.
    """
    device = torch.device("cuda", 0)
    try:
        with steps.conditions(spec, device, progress.remarks) as rewriting:
            trial: steps.Trial | ScriptTrial
            if workload is None:
                trial = ScriptTrial(spec, device, meter, progress, give_up=give_up)
            else:
                trial = steps.Trial(workload, spec, device, meter, progress, rewriting=rewriting)
            trial.take_steps()
            learned.environment |= history_digest(meter.history())
            learned.context_bytes = meter.context_bytes()
            trial.follow_up()
    except Exception as error:
        out_of_memory = steps.in_one_line(error) if is_out_of_memory(error) else None
        if out_of_memory is None and workload is None:
            out_of_memory = _swallowed_out_of_memory()
        if out_of_memory is None:
            raise
        learned.phase = progress.phase
        return f"{out_of_memory} (in {progress.phase})"
    return None if workload is not None else _swallowed_out_of_memory()


def _cap(budget_bytes: int | None, card: Card) -> None:
    if budget_bytes is None:
        return
    if budget_bytes > card.total_bytes:
        raise DeviceError(
            f"{card.device.name} has {card.total_bytes} bytes, fewer than the budget of "
            f"{budget_bytes}: measure on a larger card, or predict (--probe predict)"
        )
    torch.cuda.set_per_process_memory_fraction(allowed_fraction(budget_bytes, card.total_bytes), 0)


def device_at_hand() -> Device | None:
    """Card that a trial on this machine runs on; None without a CUDA device."""
    return Card.at_hand().device if torch.cuda.is_available() else None


def allowed_fraction(budget_bytes: int, total_bytes: int) -> float:
    """Argument of `set_per_process_memory_fraction` at which PyTorch allows exactly the budget.

    PyTorch takes floor(fraction × total) (`setMemoryFraction` of c10/cuda/CUDACachingAllocator.cpp). Half a
    byte is added to the budget, lest rounding makes it one byte smaller, and so one segment too small.
    """
    return min(1.0, (budget_bytes + 0.5) / total_bytes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says, by its type, code or status name, that device memory ran out."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _CUDA_ERROR_MEMORY_ALLOCATION
    if isinstance(error, torch.cuda.CudaError):
        return str(error).endswith(f"({_CUDA_ERROR_MEMORY_ALLOCATION})")
    return isinstance(error, RuntimeError) and _LIBRARY_ALLOCATION_FAILURE.search(str(error)) is not None


def history_digest(events: list[dict[str, Any]]) -> dict[str, str]:
    """Facts for an outcome's environment that identify an allocator's history.

    They are the SHA-256 of its actions and sizes, without addresses, and its number of events.
    """
    digest = hashlib.sha256()
    num_events = 0
    for event in events:
        if event["action"] != "snapshot":
            digest.update(f"{event['action']} {event['size']}\n".encode())
            num_events += 1
    return {"history_sha256": digest.hexdigest(), "history_events": str(num_events)}


class AllocatorMeter:
    """Measurements of a trial on a card, by the allocator's statistics, NVML and CUDA events.

    It implements `steps.Meter`.

    Args:
        card: the card to measure on.
    """

    def __init__(self, card: Card) -> None:
        self._card = card

    def reset(self) -> None:
        torch.cuda.synchronize(0)
        torch.cuda.reset_peak_memory_stats(0)
        record_memory_history(
            "all",
            context=None,
            stacks="python",
            max_entries=_MAX_HISTORY_EVENTS,
            clear_history=True,
        )

    def allocator_peaks(self) -> Peaks:
        """Peaks of allocated and reserved memory from the allocator, without asking the card."""
        return Peaks(
            allocated_bytes=torch.cuda.max_memory_allocated(0),
            reserved_bytes=torch.cuda.max_memory_reserved(0),
        )

    def context_bytes(self) -> int:
        """Device memory of this process outside the allocator: context, kernels, libraries."""
        return self._card.process_bytes() - torch.cuda.memory_reserved(0)

    def peaks(self) -> Peaks:
        peaks = self.allocator_peaks()
        return Peaks(
            allocated_bytes=peaks.allocated_bytes,
            reserved_bytes=peaks.reserved_bytes,
            device_bytes=(peaks.reserved_bytes or 0) + self.context_bytes(),
        )

    def history(self) -> list[dict[str, Any]]:
        """Events of the allocator since the last `reset`, without stacks."""
        events: list[dict[str, Any]] = memory_snapshot()["device_traces"][0]
        return events

    def seconds_of(self, step: Callable[[], None]) -> float:
        begin: Any = _new_event(enable_timing=True)
        end: Any = _new_event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def attempt(self, action: Callable[[], None]) -> str | None:
        """Runs an action that a workload may not support, such as an evaluation.

        Returns:
            Why it failed, as a text; None if it succeeded.

        Raises:
            Exception: memory ran out, the trial is invalid, or the device is out of order.
        """
        try:
            action()
            torch.cuda.synchronize(0)
        except (InvalidTrialError, torch.AcceleratorError):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return steps.in_one_line(error)
        return None


def _versions() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": str(torch.version.cuda),
        "cudnn": str(_cudnn.version()),
        "architecture": of_device(torch.cuda.get_device_properties(0), torch.version.hip),
        **{name: os.environ[name] for name in _SETTINGS if name in os.environ},
    }
