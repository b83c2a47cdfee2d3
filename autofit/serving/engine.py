"""Description of a serving engine: its releases, its options' names, and how it sizes its KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autofit.hardware.context import ContextInterval, context_interval
from autofit.hardware.gpus import Gpu
from autofit.hardware.nccl import communicator_interval
from autofit.serving.architecture import Architecture
from autofit.serving.pool import Pool

_MIB = 1024**2
_NOTHING = ContextInterval(low_bytes=0, likely_bytes=0, high_bytes=0, basis="")
# Memory that grows between an engine's first measurement of the card and its last: kernels that are loaded at
# their first use. 0.16 GiB on an H100 in two logs of vLLM (pull requests 12126 of vllm-project/vllm and 550
# of kubernetes-sigs/gateway-api-inference-extension), 0.20 with several ranks on 3090s (14447 of vLLM).
_KERNELS = ContextInterval(
    low_bytes=90 * _MIB,
    likely_bytes=164 * _MIB,
    high_bytes=340 * _MIB,
    basis="kernels, as logs of vLLM have it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options that a server is started with; None leaves the choice to the engine.

    Attributes:
        utilization: share of the card's memory that the engine may take.
        num_ranks: number of ranks of tensor parallelism.
        max_model_len: tokens of the longest sequence, prompt and answer together.
        element_bytes: bytes of an element of weights and activations.
        kv_element_bytes: bytes of an element of the KV cache.
        max_loras: number of LoRA adapters on the card at once.
        max_lora_rank: largest rank of their matrices.
    """

    gpu: Gpu
    num_ranks: int = 1
    utilization: float | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    element_bytes: int = 2
    kv_element_bytes: int = 2
    max_loras: int = 0
    max_lora_rank: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Amount of memory with low, likely and high bytes.

    Attributes:
        parts: likely bytes of each part that it consists of, by name.
    """

    low_bytes: int = 0
    likely_bytes: int = 0
    high_bytes: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Mapping[str, ContextInterval]) -> Spans:
        """Amount of memory that is the sum of given parts; parts that are always 0 are left out."""
        kept = {name: each for name, each in parts.items() if each.high_bytes}
        return cls(
            low_bytes=sum(each.low_bytes for each in kept.values()),
            likely_bytes=sum(each.likely_bytes for each in kept.values()),
            high_bytes=sum(each.high_bytes for each in kept.values()),
            parts={name: each.likely_bytes for name, each in kept.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Division of a card's memory by a serving engine, such as vLLM.

    Attributes:
        options: the given options, with the engine's own choices filled in.
        usable_bytes: memory that the engine may take: the card's, times the utilization.
        weights_bytes: weights of one rank.
        activation_bytes: peak of the forward pass by which the engine measures its activations at the start,
            on one rank; for an engine without such a pass, the memory that it keeps free instead.
        outside: memory outside PyTorch's allocator, such as the CUDA context, as far as the engine subtracts
            it.
        graphs: memory of CUDA graphs, as far as the engine subtracts it.
        pool: KV cache that likely fits into the rest.
        notes: sentences on what was assumed, and on memory that is not counted.
    """

    options: Options
    usable_bytes: int
    weights_bytes: int
    activation_bytes: int
    outside: Spans
    graphs: Spans
    pool: Pool
    notes: tuple[str, ...] = ()

    @property
    def left_bytes(self) -> int:
        """Likely bytes that remain for the KV cache; negative if other memory exceeds the usable memory."""
        return self._left(self.outside.likely_bytes + self.graphs.likely_bytes)

    @property
    def pools(self) -> tuple[Pool, Pool]:
        """Smallest and largest KV cache that may fit.

        For the smallest, memory outside the allocator and CUDA graphs are at their high ends; for the
        largest, at their low ends.
        """
        most, least = (
            self._left(self.outside.high_bytes + self.graphs.high_bytes),
            self._left(self.outside.low_bytes + self.graphs.low_bytes),
        )
        return self.pool.with_bytes(most), self.pool.with_bytes(least)

    def _left(self, outside_bytes: int) -> int:
        return self.usable_bytes - self.weights_bytes - self.activation_bytes - outside_bytes


Size = Callable[[Architecture, Options], Sizing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Serving engine, such as vLLM: how its releases divide memory, and its command line.

    Attributes:
        releases: functions that size the KV cache as the engine does, each by the first release that it is
            true for, the newest first.
        start: command that starts the server, up to the model's name.
        flags: names of its options on the command line, by the fields of `Options`.
        kv_dtypes, dtypes: for the KV cache and for the model, the engine's names of data types by autofit's
            names.
    """

    name: str
    releases: Mapping[str, Size]
    start: str
    flags: Mapping[str, str]
    kv_dtypes: Mapping[str, str]
    dtypes: Mapping[str, str]

    @property
    def newest(self) -> str:
        return next(iter(self.releases))


def outside(gpu: Gpu, num_ranks: int, *, context: bool, nccl: bool, kernels: bool) -> Spans:
    """Memory of a process outside PyTorch's allocator, as the sum of the parts that are asked for.

    Args:
        num_ranks: number of ranks; a single rank needs no NCCL.
        context: whether to add the CUDA context.
        nccl: whether to add NCCL's memory.
        kernels: whether to add what libraries allocate for their kernels.
    """
    several = nccl and num_ranks > 1
    return Spans.of(
        {
            "CUDA context": context_interval(gpu.architecture, gpu.key) if context else _NOTHING,
            "NCCL": communicator_interval(num_ranks, card=gpu.key) if several else _NOTHING,
            "kernels": _KERNELS if kernels else _NOTHING,
        }
    )
