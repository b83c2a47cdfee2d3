"""The CUDA probe: the steps on the card itself, under a cap of PyTorch's allocator."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch

from workers.errors import DeviceError
from workers.measure import steps
from workers.protocol import Device, Evidence, Peaks, TrialOutcome, TrialSpec, Verdict
from workers.workload import resolve

# A budget is what is left of a card after its context, a margin and other processes. From this
# share of (total - nominal context) upwards it is taken for this card's own: the default margin of
# 3 % stays well above it, and the next smaller card on sale stays below.
_OWN_BUDGET_SHARE = 0.9
_NOMINAL_CONTEXT_BYTES = 512 * 2**20

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


def measure(spec: TrialSpec) -> TrialOutcome:
    """Runs the trial's steps on the first visible card.

    The allocator may reserve no more than the budget. Retries of the allocator, which release
    its cached segments and ask again, make the size `THRASH`. The evidence is `measured` where
    the budget is the card's own and `emulated` where it is a smaller card's: cuDNN then still
    sees all of the free memory when it ranks its plans.

    Raises:
        DeviceError: PyTorch finds no CUDA device.
    """
    card = Card.at_hand()
    workload = resolve(spec.workload)
    if spec.budget_bytes is not None:
        if spec.budget_bytes > card.total_bytes:
            raise DeviceError(
                f"{card.device.name} has {card.total_bytes} bytes, fewer than the budget of "
                f"{spec.budget_bytes}: measure on a card that has them, or predict (--probe predict)"
            )
        torch.cuda.set_per_process_memory_fraction(allowed_fraction(spec.budget_bytes, card.total_bytes), 0)
    meter = AllocatorMeter(card)
    progress = steps.Progress()
    out_of_memory = None
    try:
        steps.run(workload, spec, torch.device("cuda", 0), meter, progress)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        out_of_memory = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    counters = torch.cuda.memory_stats(0)
    num_retries = counters.get("num_alloc_retries", 0)
    environment = {**_versions(), **card.description()}
    if out_of_memory is None:
        context_bytes = meter.context_bytes()
        steady = meter.peaks()
        environment |= history_digest(meter.history())
        verdict = Verdict.THRASH if num_retries else Verdict.FITS
    else:
        context_bytes = None  # the context may be unusable after a failed call
        steady = meter.allocator_peaks()
        environment["out_of_memory"] = out_of_memory
        verdict = Verdict.OOM
    return TrialOutcome(
        verdict=verdict,
        evidence=evidence_of(spec.budget_bytes, card.total_bytes),
        device=card.device,
        batch_size=spec.batch_size,
        knobs=spec.knobs,
        first_step=progress.first_step,
        steady=steady,
        num_steps_done=progress.num_steps_done,
        num_alloc_retries=num_retries,
        num_ooms=counters.get("num_ooms", 0),
        context_bytes=context_bytes,
        step_seconds=progress.median_step_seconds,
        environment=environment,
    )


def device_at_hand() -> Device | None:
    """The card that a trial here runs on, None where there is none."""
    return Card.at_hand().device if torch.cuda.is_available() else None


def allowed_fraction(budget_bytes: int, total_bytes: int) -> float:
    """The fraction for which PyTorch allows exactly the budget.

    It takes floor(fraction × total) (`setMemoryFraction` of c10/cuda/CUDACachingAllocator.cpp);
    the half byte keeps that from falling one byte, and so one segment, short.
    """
    return min(1.0, (budget_bytes + 0.5) / total_bytes)


def evidence_of(budget_bytes: int | None, total_bytes: int) -> Evidence:
    """`measured` where the budget is this card's own, `emulated` where it is a smaller card's."""
    if budget_bytes is None or budget_bytes >= _OWN_BUDGET_SHARE * (total_bytes - _NOMINAL_CONTEXT_BYTES):
        return Evidence.MEASURED
    return Evidence.EMULATED


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
    """Names an allocator's history by its actions and sizes, without its addresses."""
    digest = hashlib.sha256()
    num_events = 0
    for event in events:
        if event["action"] != "snapshot":
            digest.update(f"{event['action']} {event['size']}\n".encode())
            num_events += 1
    return {"history_sha256": digest.hexdigest(), "history_events": str(num_events)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The first visible card, and what was in use on it before this process touched it.

    Attributes:
        total_bytes: as CUDA reports it.
        other_bytes: what other processes used then, None where NVML is not to be had.
        nvml_handle: NVML's handle of the card, None without NVML.
    """

    device: Device
    total_bytes: int
    other_bytes: int | None
    nvml_handle: Any

    @classmethod
    def at_hand(cls) -> Self:
        """Looks the card up; to be called before anything is put on it.

        Raises:
            DeviceError: PyTorch finds no CUDA device.
        """
        if not torch.cuda.is_available():
            raise DeviceError(
                "PyTorch finds no CUDA device here: use a machine with an NVIDIA GPU and a CUDA build of "
                "PyTorch, measure on the CPU (--device cpu), or predict (--probe predict)"
            )
        properties = torch.cuda.get_device_properties(0)
        handle, driver = _nvml_handle(str(properties.uuid))
        return cls(
            device=Device(kind="cuda", name=properties.name, driver=driver),
            total_bytes=properties.total_memory,
            other_bytes=None if handle is None else _nvml_used_bytes(handle),
            nvml_handle=handle,
        )

    def process_bytes(self) -> int:
        """What this process holds of the card; without NVML, what all processes hold."""
        if self.nvml_handle is not None and self.other_bytes is not None:
            return _nvml_used_bytes(self.nvml_handle) - self.other_bytes
        free_bytes, total_bytes = torch.cuda.mem_get_info(0)
        return total_bytes - free_bytes

    def description(self) -> dict[str, str]:
        if self.other_bytes is None:
            return {"device_bytes_from": "cudaMemGetInfo, other processes included"}
        return {"device_bytes_from": "NVML", "other_processes_bytes": str(self.other_bytes)}


class AllocatorMeter:
    """The `steps.Meter` of CUDA: PyTorch's allocator statistics, NVML and CUDA events."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def reset(self) -> None:
        torch.cuda.synchronize(0)
        torch.cuda.reset_peak_memory_stats(0)
        _memory._record_memory_history(  # noqa: SLF001
            "all", context=None, stacks="python", max_entries=_MAX_HISTORY_EVENTS, clear_history=True
        )

    def allocator_peaks(self) -> Peaks:
        """The peaks that the allocator knows, without asking the card."""
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
        """The allocator's events since the last `reset`, without stacks."""
        events: list[dict[str, Any]] = _memory._snapshot()["device_traces"][0]  # noqa: SLF001
        return events

    def seconds_of(self, step: Callable[[], None]) -> float:
        begin: Any = _new_event(enable_timing=True)
        end: Any = _new_event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def _versions() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": str(torch.version.cuda),
        "cudnn": str(_cudnn.version()),
        "architecture": "sm_{}{}".format(*torch.cuda.get_device_capability(0)),
        **{name: os.environ[name] for name in _SETTINGS if name in os.environ},
    }


def _nvml_handle(uuid: str) -> tuple[Any, str | None]:
    """NVML's handle of a card (or of a slice of one) and the driver's version; None without NVML."""
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        for prefix in ("GPU-", "MIG-"):
            try:
                return pynvml.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}"), driver
            except pynvml.NVMLError_NotFound:
                continue
    except pynvml.NVMLError:
        return None, None
    return None, driver


def _nvml_used_bytes(handle: Any) -> int:
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
