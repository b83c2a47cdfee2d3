"""Chip properties of the catalogue's NVIDIA cards, on which cuDNN's convolution plans depend.

Properties that differ within an architecture are in `data/chips.toml`, with their sources; all others are in
`autofit_workers.replay.plans.device_properties`.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any

from autofit.errors import UnknownGpuError
from autofit.hardware.gpus import Gpu, catalogue, find_gpu
from autofit_workers.replay.plans.device_properties import DeviceProperties
from autofit_workers.spec.pythons import read_toml

# Card that represents its architecture if only the memory is known: the one most used for training.
TYPICAL_CARDS = {
    "sm_60": "p100",
    "sm_61": "gtx-1080-ti",
    "sm_70": "v100-16g",
    "sm_75": "t4",
    "sm_80": "a100-40g",
    "sm_86": "rtx-3090",
    "sm_89": "rtx-4090",
    "sm_90": "h100-80g",
    "sm_100": "b200",
    "sm_120": "rtx-5090",
}


@functools.cache
def _chips() -> Mapping[str, Mapping[str, Any]]:
    text = importlib.resources.files("autofit").joinpath("data/chips.toml").read_text(encoding="utf-8")
    return {key: entry for entries in read_toml(text).values() for key, entry in entries.items()}


def device_properties(gpu: Gpu) -> DeviceProperties:
    """Properties of a card's chip on which cuDNN's choice of convolution kernels depends.

    Args:
        gpu: card of the catalogue, or a MIG slice of one.
    """
    card = find_gpu(gpu.whole_card_key)
    chip = _chips()[card.key]
    # Bus and cache of a slice: an H100's 1g.10gb shows 640 of 5120 bits and 6400 of 51200 KiB
    # (openxla/xla, h100_sxm_mig.txtpb), an A100's 3g.40gb 2560 of 5120 bits and 20 of 40 MiB.
    eighths = round(8 * gpu.sold_gb / card.sold_gb) if gpu.is_mig_slice else 8
    return DeviceProperties(
        name=gpu.name,
        architecture=gpu.architecture,
        num_sms=gpu.num_sms,
        total_bytes=gpu.total_bytes,
        sm_clock_khz=chip["sm_mhz"] * 1000,
        memory_clock_khz=chip["memory_mhz"] * 1000,
        memory_bus_bits=chip["bus_bits"] * eighths // 8,
        l2_bytes=chip["l2_kib"] * 1024 * eighths // 8,
    )


def properties_for(architecture: str, name: str | None = None) -> DeviceProperties:
    """Properties of a chip on which cuDNN's choice of convolution kernels depends.

    Args:
        architecture: `sm_XY`.
        name: key or CUDA name of the card. If it is None, unknown to the catalogue, or of another
            architecture there, a typical card of `architecture` is taken.

    Raises:
        UnknownGpuError: the catalogue has no card of the architecture.
    """
    if name is not None:
        try:
            gpu = find_gpu(name)
        except UnknownGpuError:
            pass
        else:
            if gpu.architecture == architecture:
                return device_properties(gpu)
    if architecture not in TYPICAL_CARDS:
        raise UnknownGpuError(
            f"the catalogue has no {architecture} card, so its number of multiprocessors is unknown: "
            f"name a card of {', '.join(TYPICAL_CARDS)} with --gpu"
        )
    return device_properties(catalogue()[TYPICAL_CARDS[architecture]])
