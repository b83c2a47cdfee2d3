"""Card that a trial runs on: its name, its memory, and the other processes on it."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

import torch

from autofit_workers.spec.devices import GPU_KIND
from autofit_workers.spec.errors import BusyDeviceError, DeviceError
from autofit_workers.spec.protocol import Device
from autofit_workers.spec.pythons import Self

_MIB = 2**20
# Bytes that a trial is assumed to need besides its budget, for its context and the libraries' kernels.
# Large cards were seen to take more; the trial itself then runs out of memory.
_CONTEXT_ALLOWANCE_BYTES = 512 * _MIB
# A card without processes shows up to some tens of MiB in use.
_IDLE_BYTES = 128 * _MIB


@dataclass(frozen=True, slots=True)
class Tenant:
    """Process, other than this one, that holds memory on the card.

    Attributes:
        pid: process id as the driver counts, which within a container is the host's count.
        used_bytes: memory that the process holds; None if the driver does not report it.
    """

    pid: int
    used_bytes: int | None

    def __str__(self) -> str:
        held = "an unknown amount" if self.used_bytes is None else f"{self.used_bytes / _MIB:.0f} MiB"
        return f"process {self.pid} holds {held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Memory that was in use on a card before this process touched it.

    Attributes:
        used_bytes: memory that all other processes held.
        free_bytes: memory that no process held.
        tenants: the processes that the driver names; a container may hide some.
    """

    used_bytes: int
    free_bytes: int
    tenants: tuple[Tenant, ...]

    @property
    def is_busy(self) -> bool:
        return bool(self.tenants) or self.used_bytes > _IDLE_BYTES

    def __str__(self) -> str:
        who = "; ".join(map(str, self.tenants)) or "by processes that the driver does not name"
        return f"{self.used_bytes / _MIB:.0f} MiB in use ({who})"

    def demand(self, budget_bytes: int | None, name: str) -> None:
        """Raises an error if other processes leave a trial too little memory on the card.

        The trial needs its budget and the memory of a CUDA context.

        Args:
            budget_bytes: budget of the trial; without one, nothing is raised.
            name: name of the card, for the message.

        Raises:
            BusyDeviceError: memory is missing, so running out of it would not show that the budget is
                too small.
        """
        if budget_bytes is None or not self.is_busy:
            return
        needed_bytes = budget_bytes + _CONTEXT_ALLOWANCE_BYTES
        if self.free_bytes < needed_bytes:
            raise BusyDeviceError(
                f"{name} is busy: {self}, {self.free_bytes / _MIB:.0f} MiB are free, but the trial needs "
                f"{needed_bytes / _MIB:.0f} MiB. End the other processes, choose another card with "
                "CUDA_VISIBLE_DEVICES, or leave them their memory with --reserve"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """First visible card, with the memory that was in use on it before this process touched it.

    Attributes:
        total_bytes: memory of the card, as CUDA reports it.
        occupancy: memory in use before; None without NVML.
        nvml: NVML with the card's handle; None if it is not available.
    """

    device: Device
    total_bytes: int
    occupancy: Occupancy | None
    nvml: Nvml | None

    @classmethod
    def at_hand(cls) -> Self:
        """First visible card, with the memory in use on it.

        To be called before this process allocates anything on the card, which would count as in use.

        Raises:
            DeviceError: PyTorch finds no CUDA device.
        """
        if not torch.cuda.is_available():
            raise DeviceError(
                "PyTorch finds no CUDA device here: use a machine with an NVIDIA GPU and a CUDA build of "
                "PyTorch, measure on the CPU (--device cpu), or predict (--probe predict)"
            )
        properties = torch.cuda.get_device_properties(0)
        nvml = Nvml.of_card(str(properties.uuid))
        return cls(
            device=Device(
                kind=GPU_KIND, name=properties.name, driver=None if nvml is None else nvml.driver_version
            ),
            total_bytes=properties.total_memory,
            occupancy=None if nvml is None else nvml.occupancy(),
            nvml=nvml,
        )

    def process_bytes(self) -> int:
        """Device bytes that this process holds on the card; those of all processes if NVML is missing."""
        if self.nvml is not None and self.occupancy is not None:
            return self.nvml.used_bytes() - self.occupancy.used_bytes
        free_bytes, total_bytes = torch.cuda.mem_get_info(0)
        return total_bytes - free_bytes

    def description(self) -> dict[str, str]:
        """Entries for an outcome's environment that tell how much memory other processes used on the card."""
        if self.occupancy is None:
            return {"device_bytes_from": "cudaMemGetInfo, other processes included"}
        told = {"device_bytes_from": "NVML", "other_processes_bytes": str(self.occupancy.used_bytes)}
        return {**told, "busy": str(self.occupancy)} if self.occupancy.is_busy else told


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """NVIDIA's management library (NVML), for questions about one card or MIG slice.

    Args:
        library: a module with the functions of `pynvml`.
    """

    library: Any
    handle: Any
    driver_version: str

    @classmethod
    def of_card(cls, uuid: str, library: Any = None) -> Self | None:
        """Access to NVML for the card with a UUID; None if the library, its driver or the card is missing.

        Args:
            uuid: UUID of the card or MIG slice.
            library: a module with the functions of `pynvml`; None to import it.
        """
        if library is None:
            try:
                library = importlib.import_module("pynvml")
            except ImportError:
                return None
        try:
            library.nvmlInit()
            driver_version = library.nvmlSystemGetDriverVersion()
            for prefix in ("GPU-", "MIG-"):
                try:
                    handle = library.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}")
                except library.NVMLError_NotFound:
                    continue
                return cls(library=library, handle=handle, driver_version=driver_version)
        except library.NVMLError:
            return None
        return None

    def used_bytes(self) -> int:
        """Bytes that all processes together hold on the card, without the driver's reserved part."""
        return _used_bytes(self._memory())

    def occupancy(self) -> Occupancy | None:
        """Memory in use on the card now; None if the driver does not report it."""
        try:
            memory = self._memory()
        except self.library.NVMLError:
            return None
        return Occupancy(
            used_bytes=_used_bytes(memory),
            free_bytes=int(memory.free),
            tenants=self._tenants(),
        )

    def bytes_of(self, process: int) -> int | None:
        """Bytes that one process holds on the card; None if the driver does not name it, as in containers."""
        try:
            running = self.library.nvmlDeviceGetComputeRunningProcesses(self.handle)
        except self.library.NVMLError:
            return None
        return next((each.usedGpuMemory for each in running if each.pid == process), None)

    def _memory(self) -> Any:
        library = self.library
        return library.nvmlDeviceGetMemoryInfo(self.handle, version=library.nvmlMemory_v2)

    def _tenants(self) -> tuple[Tenant, ...]:
        """Other processes that hold memory on the card for compute or graphics (on a MIG slice: compute)."""
        found: dict[int, Tenant] = {}
        for ask in (
            self.library.nvmlDeviceGetComputeRunningProcesses,
            self.library.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            try:
                processes = ask(self.handle)
            except self.library.NVMLError:
                continue
            found |= {
                process.pid: Tenant(process.pid, process.usedGpuMemory)
                for process in processes
                if process.pid != os.getpid()
            }
        return tuple(found[pid] for pid in sorted(found))


def _used_bytes(memory: Any) -> int:
    """Bytes that processes hold on a card: its total, without free memory and the driver's reserved part.

    Args:
        memory: answer of NVML's `nvmlDeviceGetMemoryInfo`.
    """
    return int(memory.total - memory.reserved - memory.free)
