"""What the tables' cards can do: those of the catalogue, and a few that it lacks."""

from __future__ import annotations

import functools

from autofit.hardware.chips import device_properties
from autofit.hardware.gpus import find_gpu
from autofit_workers.replay.time.speeds import Speeds, speeds_of, sustained

_KEYS = {
    "Tesla T4": "t4",
    "a100": "a100-80g",
    "h100": "h100-80g",
    "a40": "a40",
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
