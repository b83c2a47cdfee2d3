"""Memory that NCCL holds outside PyTorch's allocator on the card of each rank.

Every process group that runs a collective has a communicator with memory of its own, unless it is split
from another and shares that one's (`split_share`, an option that is off:
https://github.com/pytorch/pytorch/pull/130877). One took 1.6 GB where three and more took 6
(https://github.com/NVIDIA/nccl/issues/864). A communicator has:

- channels, two to four over PCIe, 24 over the NVLinks of an A100: their number depends on the links between
  the cards. The likely size of a named card is for the links that it is sold with
  (`autofit_workers.replay.time.collectives.network_of`); bridges and other boards are in the interval;
- for each channel and each neighbour in its ring and tree 12 MiB, in pages of 2 MiB: buffers of 4 MiB for the
  protocol Simple (`NCCL_BUFFSIZE`), 4.7 for LL128 and 0.5 for LL (`p2pSendSetup` and `p2pRecvSetup` of
  src/transport/p2p.cc; 10,485,760 and 2,097,152 bytes in https://github.com/NVIDIA/nccl/issues/1685).
  Neighbours are few, however many ranks there are (https://github.com/NVIDIA/nccl/issues/986);
- where NVSwitches compute the sums (NVLink SHARP, from Hopper on), once a collective uses them,
  2 × channels × 8 chunks for each card of the NVLink domain (`ncclNvlsBufferSetup` of
  src/transport/nvls.cc, 2.27 to 2.30).

Not counted, as they are unknown before the program runs: connections of all-to-all and point-to-point
(3.3 GB on eight H100s, issue 1685), buffers that a program registers, symmetric memory and NVSHMEM.
RCCL, NCCL on AMD's cards, is the same code; 627 to 652 MiB a communicator were seen on LUMI's MI250X cards,
whatever the number of ranks. These sizes were not measured for autofit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofit.hardware.context import ContextInterval
from autofit.hardware.gpus import catalogue
from autofit_workers.replay.time.collectives import network_of
from autofit_workers.spec.architecture import Architecture

_MIB = 1024**2
_NAME_OF_PCIE = "pcie"

# A communicator's memory besides its channels, and that of each connection of a channel, see above.
_BESIDE_MIB, _CONNECTION_MIB = 52, 12
# Two channels over PCIe with two connections each.
_LOW_MIB = _BESIDE_MIB + 2 * 2 * _CONNECTION_MIB
# Four channels over PCIe: a pair sends and receives, more ranks have neighbours in a tree too. Two RTX 4090,
# whose contexts hold 473 to 504 MiB, left PyTorch 22.7 of their 23.6 GiB in FSDP's training: at most 492 MiB
# for both (AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md).
_PCIE_OF_TWO_MIB = _BESIDE_MIB + 4 * 2 * _CONNECTION_MIB
_PCIE_MIB = _BESIDE_MIB + 4 * 4 * _CONNECTION_MIB
# A 4 MB all-reduce on four A100s with NVLink: https://github.com/NVIDIA/nccl/issues/964
_LIKELY_OF_TWO_MIB, _LIKELY_MIB = 544, 688
# "about 1.6GB" for the first communicator: https://github.com/NVIDIA/nccl/issues/864
_HIGH_MIB = 1638

# Pairs of the MiB for each card of an NVLink domain and the most cards in it. On Hopper 16 channels with
# chunks of 128 KiB; on Blackwell 24 in one domain, which holds up to 32 (`NCCL_MAX_NVLS_ARITY`), and between
# servers of eight cards chunks of 256 KiB.
_NVLS_OF_HOPPER = ((32, 8),)
_NVLS_OF_BLACKWELL = ((48, 32), (96, 8))


def communicator_interval(
    num_ranks: int, architecture: str | None = None, card: str | None = None
) -> ContextInterval:
    """Memory that NCCL holds on a rank for one communicator: low, likely and high bytes.

    Args:
        num_ranks: number of ranks of the communicator. Each process group that exchanges data has one
            communicator.
        architecture: architecture of the cards; None if unknown. Only with it the memory for NVLink SHARP is
            counted.
        card: key or CUDA name of the cards; None if unknown. Only with it their links are known.
    """
    is_pair, is_over_pcie = num_ranks == 2, _is_over_pcie(card)
    if is_over_pcie:
        likely, where = _PCIE_OF_TWO_MIB if is_pair else _PCIE_MIB, "over four channels of PCIe"
    else:
        likely, where = _LIKELY_OF_TWO_MIB if is_pair else _LIKELY_MIB, "on A100s with NVLink"
    return ContextInterval(
        low_bytes=_LOW_MIB * _MIB,
        likely_bytes=likely * _MIB,
        high_bytes=(_HIGH_MIB + _nvls_mib(num_ranks, architecture)) * _MIB,
        basis=f"as others saw it, the likely {where}; the links of the cards decide",
    )


def communicators_interval(
    degrees: Sequence[int],
    architecture: str | None = None,
    num_ranks: int | None = None,
    card: str | None = None,
) -> ContextInterval:
    """Memory that NCCL holds on a rank for all its process groups: low, likely and high bytes.

    Each process group that exchanges data has a communicator. In a device mesh each dimension has a group; a
    dimension that contains all ranks uses the default process group (`_init_one_process_group` of
    torch/distributed/device_mesh.py): FSDP2 on one dimension has one, HSDP and FSDP with tensor parallelism
    have two. With several dimensions, the low end assumes that all share the memory of one communicator. The
    high end counts one more, that of the default group, which gets memory of its own at its first use, such
    as a barrier.

    Args:
        degrees: number of ranks in each dimension of the mesh or other process group, 2 or more.
        architecture: architecture of the cards; None if unknown.
        num_ranks: number of all ranks; None for the product of `degrees`, as in a mesh.
        card: key or CUDA name of the cards; None if unknown.
    """
    parts = [communicator_interval(degree, architecture, card) for degree in degrees]
    whole = num_ranks or math.prod(degrees)
    spare = [] if whole in degrees else [communicator_interval(whole, architecture, card)]
    return ContextInterval(
        low_bytes=max(part.low_bytes for part in parts),
        likely_bytes=sum(part.likely_bytes for part in parts),
        high_bytes=sum(part.high_bytes for part in (*parts, *spare)),
        basis=parts[0].basis if len(parts) == 1 else f"{len(parts)} communicators, each {parts[0].basis}",
    )


def _is_over_pcie(card: str | None) -> bool:
    """Whether the catalogue has a card, by its key or CUDA name, and sells it joined by PCIe alone."""
    gpu = next((each for key, each in catalogue().items() if card in (key, each.name)), None)
    network = None if gpu is None else network_of(gpu.name, gpu.architecture)
    return network is not None and network.name == _NAME_OF_PCIE


def _nvls_mib(num_ranks: int, architecture: str | None) -> int:
    """Most memory, in MiB, that NCCL takes for NVLink SHARP; 0 on cards that are not sold with NVSwitch."""
    card = None if architecture is None else Architecture.of(architecture)
    if card is None or not card.vendor.facts.has_capability or not 90 <= card.capability < 120:
        return 0
    forms = _NVLS_OF_HOPPER if card.capability < 100 else _NVLS_OF_BLACKWELL
    return max(mib * min(num_ranks, most_cards) for mib, most_cards in forms)
