"""The card memory that NCCL holds outside PyTorch's allocator, for a rank that reduces gradients.

A communicator has channels; each channel a buffer for each of its connections in each protocol:
4 MiB (`NCCL_BUFFSIZE`) for Simple, and what makes some 10 MiB with those of LL and LL128 (allocations of
10,485,760 bytes in https://github.com/NVIDIA/nccl/issues/1685). How many channels there are follows from
the links between the cards, which no prediction knows: two to four over PCIe, 24 over the NVLinks of an
A100. Rings and trees have a few connections each, however many ranks there are
(https://github.com/NVIDIA/nccl/issues/986). RCCL, NCCL on AMD's cards, is the same code; 627 to 652 MiB a
communicator were seen on LUMI's MI250X cards, whatever the number of ranks. Not measured by us.
"""

from __future__ import annotations

from autofit.hardware.context import ContextInterval

_MIB = 1024**2

# Two channels over PCIe with two connections each, and what a communicator has beside its channels.
_LOW_MIB = 100
# A 4 MB all-reduce on four A100s with NVLink: https://github.com/NVIDIA/nccl/issues/964
_LIKELY_OF_TWO_MIB, _LIKELY_MIB = 544, 688
# "about 1.6GB" for the first communicator: https://github.com/NVIDIA/nccl/issues/864
_HIGH_MIB = 1638


def communicator_interval(num_ranks: int) -> ContextInterval:
    """What NCCL's memory comes to on each of so many ranks, 2 or more, with one communicator."""
    likely = _LIKELY_OF_TWO_MIB if num_ranks == 2 else _LIKELY_MIB
    return ContextInterval(
        low_bytes=_LOW_MIB * _MIB,
        likely_bytes=likely * _MIB,
        high_bytes=_HIGH_MIB * _MIB,
        basis="as others saw it, the likely on A100s with NVLink; the links of the cards decide",
    )
