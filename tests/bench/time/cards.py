"""What the tables' cards can do: those of the catalogue, and a few that it lacks."""

from __future__ import annotations

import functools

from autofit.hardware.chips import device_properties
from autofit.hardware.gpus import find_gpu
from autofit_workers.replay.plans.device_properties import DeviceProperties
from autofit_workers.replay.time.speeds import Speeds, speeds_of, sustained

_KEYS = {
    "Tesla T4": "t4",
    "a100": "a100-80g",
    "h100": "h100-80g",
    "a40": "a40",
    "a100_sxm": "a100-80g",
    "h100_sxm": "h100-80g",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "l40s": "l40s",
}


@functools.cache
def speeds(name: str) -> Speeds:
    """Of a card as a table names it, or by its key in the catalogue."""
    if name in _OTHERS:
        return _OTHERS[name]
    return speeds_of(device_properties(find_gpu(_KEYS.get(name, name))))


def _other(  # noqa: PLR0917 - a row of the table below
    name: str, architecture: str, num_units: int, mhz: int, lanes: int, bandwidth: float, cache_kib: int
) -> Speeds:
    kept = sustained(name, architecture)
    flops = 2.0 * lanes * num_units * mhz * 1e6 * kept["vector"]
    return Speeds(
        name=name,
        architecture=architecture,
        num_units=num_units,
        flops={"float32": flops},
        vector_flops=flops,
        bandwidth=bandwidth * kept["memory"],
        cache_bytes=cache_kib * 1024,
        clock=mhz * 1e6,
    )


# PCIe cards whose clocks or memory differ from those of the catalogue, and Pascal's. From NVIDIA's data
# sheets: multiprocessors, boost clock, float32 units of a multiprocessor, bytes a second, L2 cache.
_OTHERS = {
    each.name: each
    for each in (
        _other("Tesla P4", "sm_61", 20, 1114, 128, 192e9, 2048),
        _other("Tesla P100-PCIE-16GB", "sm_60", 56, 1329, 64, 732e9, 4096),
        _other("Tesla V100-PCIE-32GB", "sm_70", 80, 1380, 64, 898e9, 6144),
        _other("NVIDIA A100-PCIE-40GB", "sm_80", 108, 1410, 64, 1555e9, 40960),
        _other("NVIDIA A100 80GB PCIe", "sm_80", 108, 1410, 64, 1935e9, 40960),
    )
}
_OTHERS["NVIDIA_A100_80GB_PCIe"] = _OTHERS["NVIDIA A100 80GB PCIe"]
_OTHERS["NVIDIA_A100-PCIE-40GB"] = _OTHERS["NVIDIA A100-PCIE-40GB"]
_OTHERS["Tesla_V100-PCIE-32GB"] = _OTHERS["Tesla V100-PCIE-32GB"]
_OTHERS["Tesla_P100-PCIE-16GB"] = _OTHERS["Tesla P100-PCIE-16GB"]
_OTHERS["Tesla_P4"] = _OTHERS["Tesla P4"]
_KEYS["Tesla_T4"] = "t4"


def _of_chip(  # noqa: PLR0917 - a row of the table below
    name: str, architecture: str, num_sms: int, mhz: int, memory_mhz: int, bus_bits: int, l2_kib: int
) -> Speeds:
    return speeds_of(
        DeviceProperties(
            name=name,
            architecture=architecture,
            num_sms=num_sms,
            total_bytes=0,
            sm_clock_khz=mhz * 1000,
            memory_clock_khz=memory_mhz * 1000,
            memory_bus_bits=bus_bits,
            l2_bytes=l2_kib * 1024,
        )
    )


# Cards of NVIDIA's wheel that the catalogue lacks, by the wheel's names. A B300 has the multiprocessors and
# clock of a B200 (2,250 TFLOPS in bfloat16 by both data sheets), a GB300's are of openxla/xla
# (gb300.txtpb), the Server Edition's clock of the wheel (rtx_pro_6000_server.yaml).
_OTHERS["b300_sxm"] = _of_chip("NVIDIA B300", "sm_100", 148, 1965, 3996, 7936, 132352)
_OTHERS["gb300"] = _of_chip("NVIDIA GB300", "sm_100", 152, 2070, 3996, 7936, 132352)
_OTHERS["rtx_pro_6000_server"] = _of_chip(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120", 188, 2430, 14001, 512, 131072
)
# Intel's Arc Pro B60: 20 Xe cores at 2.4 GHz, 98.3 TFLOPS in bfloat16 and, without matrix units for it, in
# fp8, 12.3 in float32, 456 GB/s, 18 MiB of cache (Intel's product brief). No constants are Intel's: those
# of its class.
_OTHERS["b60"] = Speeds(
    name="Intel Arc Pro B60",
    architecture="sm_120",
    num_units=20,
    flops={"float32": 12.3e12, "float16": 98.3e12, "bfloat16": 98.3e12, "float8_e4m3fn": 98.3e12},
    vector_flops=12.3e12,
    bandwidth=456e9,
    cache_bytes=18 * 2**20,
    clock=2.4e9,
)
