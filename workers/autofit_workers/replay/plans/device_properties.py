"""Properties of a card that cuDNN needs to plan for it while the card is not in the machine.

cuDNN plans convolutions for an absent card from a JSON of its device properties ("Deviceless
ahead-of-time compilation" in the documentation of its frontend, cuDNN 9.8 and later). Most properties are
the same for all cards of an architecture and stand here; the rest are the card's own and are attributes of
`DeviceProperties`, which `autofit.hardware.chips` makes.

All of them are required, but the architecture alone seems to decide: with cuDNN 9.27, a quarter of the
multiprocessors, a quarter of bus and cache, four fifths of the clocks or less shared memory changed
neither the first two plans nor their workspaces of 48 convolutions, on each of sm_75, sm_80 and sm_86.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.architecture import Architecture

# From openxla/xla, xla/backends/gpu/target_config (thread_dim_limit and block_dim_limit), and any
# deviceQuery log: the same for every architecture since Kepler.
_MAX_BLOCK_DIMENSIONS = (1024, 1024, 64)
_MAX_GRID_DIMENSIONS = (2**31 - 1, 65535, 65535)
_WARP_SIZE = 32
_MAX_THREADS_PER_BLOCK = 1024
_REGISTERS = 65536  # of a multiprocessor, and all of them may go to one block
_SHARED_BYTES_PER_BLOCK = 48 * 1024  # without a kernel's opt-in to more

# Value of `cudnnSmCountOrigin`: the multiprocessors are those of the whole device, not of a green context.
_FULL_DEVICE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureLimits:
    """Limits that all cards of one compute capability have in common.

    Attributes:
        max_threads_per_sm, max_blocks_per_sm: most threads and thread blocks resident on a multiprocessor at
            the same time.
        shared_optin_bytes: the most shared memory of one block that opts in.
        shared_reserved_bytes: shared memory that CUDA keeps for itself in each block.
    """

    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_optin_bytes: int
    shared_reserved_bytes: int


def _limits(threads: int, blocks: int, optin_kib: int, reserved_bytes: int) -> ArchitectureLimits:
    return ArchitectureLimits(
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        shared_optin_bytes=optin_kib * 1024,
        shared_reserved_bytes=reserved_bytes,
    )


# The table "Technical specifications per compute capability" of NVIDIA's CUDA programming guide.
# From 8.0 on CUDA keeps 1 KiB of shared memory for each block, which the opt-in lacks.
ARCHITECTURE_LIMITS = {
    "sm_60": _limits(2048, 32, 48, 0),
    "sm_61": _limits(2048, 32, 48, 0),
    "sm_70": _limits(2048, 32, 96, 0),
    "sm_75": _limits(1024, 16, 64, 0),
    "sm_80": _limits(2048, 32, 163, 1024),
    "sm_86": _limits(1536, 16, 99, 1024),
    "sm_89": _limits(1536, 24, 99, 1024),
    "sm_90": _limits(2048, 32, 227, 1024),
    "sm_100": _limits(2048, 32, 227, 1024),
    "sm_120": _limits(1536, 24, 99, 1024),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """Properties of one card (`cudaDeviceProp`) that differ among cards of the same architecture.

    Attributes:
        name: the name CUDA gives the card.
        architecture: `sm_XY`, one of `ARCHITECTURE_LIMITS`.
        total_bytes: the total memory that CUDA reports.
        sm_clock_khz, memory_clock_khz: the highest clock rates, as CUDA reports them.
        memory_bus_bits: width of the memory bus.
        l2_bytes: size of the L2 cache.
        driver_version: the CUDA version of the driver, as 1000 × major + 10 × minor.
    """

    name: str
    architecture: str
    num_sms: int
    total_bytes: int
    sm_clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    l2_bytes: int
    driver_version: int = 13000

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURE_LIMITS:
            raise ValueError(
                f"unknown architecture {self.architecture}; known are {', '.join(ARCHITECTURE_LIMITS)}"
            )

    @property
    def limits(self) -> ArchitectureLimits:
        return ARCHITECTURE_LIMITS[self.architecture]

    def to_json(self) -> str:
        """JSON text of the card's properties, by which cuDNN plans for a card that is not there.

        It is the value of cuDNN's attribute `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`. Field names are
        those that libcudnn reads and writes; all of them but the two counts of multiprocessors and
        `maxThreadsDim` have to be there (tried with cuDNN 9.27).
        """
        return json.dumps(self._fields())

    def _fields(self) -> dict[str, Any]:
        """Fields of the card's JSON text under cuDNN's names."""
        limits = self.limits
        return {
            "deviceVer": 10 * Architecture.of(self.architecture).capability,  # 8.6 is 860
            "deviceName": self.name,
            "multiProcessorCount": self.num_sms,
            "targetSMcount": self.num_sms,
            "smCountOrigin": _FULL_DEVICE,
            "warpSize": _WARP_SIZE,
            "maxThreadsPerBlock": _MAX_THREADS_PER_BLOCK,
            "maxThreadsPerSM": limits.max_threads_per_sm,
            "maxCtasPerSM": limits.max_blocks_per_sm,
            "maxRegistersPerSM": _REGISTERS,
            "regsPerBlock": _REGISTERS,
            "maxSharedMemoryPerBlock": _SHARED_BYTES_PER_BLOCK,
            "maxSharedMemoryPerBlockOptin": limits.shared_optin_bytes,
            "reservedSharedMemoryPerBlock": limits.shared_reserved_bytes,
            "maxBlockSize": list(_MAX_BLOCK_DIMENSIONS),
            "maxThreadsDim": list(_MAX_BLOCK_DIMENSIONS),
            "maxGridSize": list(_MAX_GRID_DIMENSIONS),
            "supportCoopLaunch": 1,
            "totalGlobalMem": self.total_bytes,
            "smClockRateKHz": self.sm_clock_khz,
            "memClockRateKHz": self.memory_clock_khz,
            "memoryBusWidth": self.memory_bus_bits,
            "l2CacheSize": self.l2_bytes,
            "driverVer": self.driver_version,
            "cudaDeviceId": 0,
            "pciDeviceId": 0,
            "isTccDriver": 0,
        }
