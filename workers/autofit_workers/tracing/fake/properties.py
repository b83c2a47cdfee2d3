"""Device properties that `torch.cuda` reports for a simulated card."""

from __future__ import annotations

from types import SimpleNamespace

from autofit_workers.replay.plans.device_properties import ARCHITECTURE_LIMITS
from autofit_workers.spec.architecture import Architecture, num_multiprocessors

_UNKNOWN = "sm_80"
# MiB of the largest L2 cache among cards of an architecture, from the table of chips; cards differ.
_LARGEST_CACHE_MIB = {
    "sm_60": 4,
    "sm_61": 3,
    "sm_70": 6,
    "sm_75": 6,
    "sm_80": 40,
    "sm_86": 6,
    "sm_89": 96,
    "sm_90": 60,
    "sm_100": 129,
    "sm_120": 128,
}

# Names that the driver gives cards of 80 GB, by which scripts choose libraries and look up rates.
_NAMES = {"sm_80": "NVIDIA A100-SXM4-80GB", "sm_90": "NVIDIA H100 80GB HBM3"}


class CardProperties(SimpleNamespace):
    """Properties of a card, by their names in PyTorch; hashable as PyTorch's own, which Dynamo asks for."""

    def __hash__(self) -> int:  # type: ignore[override] # a namespace has none
        return id(self)


def card_properties(architecture: str, total_bytes: int) -> CardProperties:
    """Result of `torch.cuda.get_device_properties` for a card of an architecture.

    Raises:
        ValueError: the architecture has no compute capability, such as AMD's.
    """
    capability = Architecture.of(architecture).capability
    limits = ARCHITECTURE_LIMITS.get(architecture, ARCHITECTURE_LIMITS[_UNKNOWN])
    return CardProperties(
        name=_NAMES.get(architecture, f"a GPU of {architecture} that is not there"),
        major=capability // 10,
        minor=capability % 10,
        total_memory=total_bytes,
        multi_processor_count=num_multiprocessors(capability),
        max_threads_per_multi_processor=limits.max_threads_per_sm,
        shared_memory_per_block_optin=limits.shared_optin_bytes,
        regs_per_multiprocessor=65536,  # the same for every architecture in the catalogue
        warp_size=32,
        L2_cache_size=_LARGEST_CACHE_MIB.get(architecture, _LARGEST_CACHE_MIB[_UNKNOWN]) * 2**20,
        is_integrated=False,
        is_multi_gpu_board=False,
    )
