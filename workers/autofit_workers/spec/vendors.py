"""Vendors of GPUs, a row each: names, libraries, and how much is known of a step on their cards.

A vendor is added by a member and a row here, and by a line in the tables of what its libraries do: those in
`autofit_workers.replay.vendors`, `autofit.hardware.context` and `autofit.hardware.gpus`. Nothing else asks
which vendor a card is of (`tests/test_house.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofit_workers.spec.pythons import StrEnum


class Vendor(StrEnum):
    """Maker of a card, which decides its libraries: cuDNN and cuBLAS, or MIOpen and hipBLAS.

    The order is that in which architectures of different vendors are sorted.
    """

    NVIDIA = "NVIDIA"
    AMD = "AMD"

    @property
    def facts(self) -> Facts:
        """Names of the vendor's libraries, and how much autofit knows of steps on its cards."""
        return _FACTS[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names of a vendor's libraries and tools, and how much autofit knows of steps on its cards.

    Attributes:
        architectures: pattern of the names of its architectures, with the number as its group.
        number_base: base in which the number in these names is written.
        seller_words: words of its brands in lower case, which names of cards may leave out.
        context: name of the memory that a process holds on a card outside PyTorch's allocator.
        communicator: its library for collectives.
        memory_tool: the tool that shows the card memory of a process.
        has_capability: whether the numbers of its architectures are CUDA's compute capabilities.
        planned_since: the first architecture, by number, whose convolution plans are known; None if those of
            none are.
        knows_times: whether times of operators and steps are known.
        knows_servers: whether the memory of language models' servers is known.
        queued_launches: number of launches of a stream that the driver can queue; None if it is not known.
        residual_cards: name under which the errors of past predictions are kept for all its cards together;
            None if each generation has its own.
        spanned_libraries: libraries whose workspaces are known only as ranges, in words; empty if none.
        unknown_convolutions: why convolutions left to its library cannot be predicted; None if they can.
        unknown_operators: why a step with an operator cannot be predicted, by a part of the operator's name.
    """

    architectures: str
    number_base: int
    seller_words: tuple[str, ...]
    context: str
    communicator: str
    memory_tool: str
    has_capability: bool
    planned_since: int | None
    knows_times: bool
    knows_servers: bool
    queued_launches: int | None
    residual_cards: str | None
    spanned_libraries: str
    unknown_convolutions: str | None
    unknown_operators: Mapping[str, str]

    @property
    def predicts_every_step(self) -> bool:
        """Whether every step can be predicted on the vendor's cards, whatever its operators."""
        return self.unknown_convolutions is None and not self.unknown_operators


_FACTS = {
    Vendor.NVIDIA: Facts(
        architectures=r"sm_(\d{2,3})",
        number_base=10,
        seller_words=("nvidia", "geforce", "tesla"),
        context="CUDA context",
        communicator="NCCL",
        memory_tool="nvidia-smi",
        has_capability=True,
        planned_since=70,
        knows_times=True,
        knows_servers=True,
        queued_launches=1024,  # see `autofit_workers.replay.curve.launch_queue`
        residual_cards=None,
        spanned_libraries="",
        unknown_convolutions=None,
        unknown_operators={},
    ),
    Vendor.AMD: Facts(
        architectures=r"gfx([0-9a-f]{3,4})",
        number_base=16,
        seller_words=("amd", "instinct", "oam", "vf"),
        context="HIP context",
        communicator="RCCL",
        memory_tool="amd-smi",
        has_capability=False,
        planned_since=None,
        knows_times=False,
        knows_servers=False,
        queued_launches=None,
        residual_cards="amd-instinct",
        spanned_libraries="hipBLASLt, hipBLAS and AOTriton",
        # How much memory MIOpen's solutions take depends on what its database or a search finds best on the
        # card; no table of it is known, and none was measured. A span of all of them would be a guess.
        unknown_convolutions="AMD's cards run convolutions with MIOpen, whose workspaces are not known: name "
        "an NVIDIA card, or predict PyTorch's own kernels with --conv-algo native",
        unknown_operators={
            "_cudnn_rnn": "AMD's cards run recurrent layers with MIOpen, whose memory is not known: name an "
            "NVIDIA card",
            "cudnn_attention": "AMD's cards have no cuDNN for --attention cudnn: choose another backend, or "
            "name an NVIDIA card",
            "flash_attn": "what FlashAttention takes on AMD's cards is not known: choose another "
            "--attention, or name an NVIDIA card",
        },
    ),
}
