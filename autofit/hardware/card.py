"""Card that a prediction is for, with its architecture and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofit.errors import UnknownGpuError
from autofit.hardware import gpus
from autofit.hardware.budget import DEFAULT_ARCHITECTURE, assumed_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Card that a prediction is for; some of its values may be unknown.

    Attributes:
        name: the card's key in the catalogue, or another text if the card is not named.
        architecture: `sm_XY`; the likely one if the card is not named.
        context_bytes: most bytes that a process holds outside the allocator.
        may_be: architectures that the card may have if it is not named; predicted intervals cover all of
            them. Empty for a named card.
        memory_bytes: memory of the card that this process may use; None if it is unknown.
    """

    name: str
    architecture: str
    context_bytes: int
    may_be: tuple[str, ...] = ()
    memory_bytes: int | None = None

    @property
    def limit_bytes(self) -> int | None:
        """Most bytes that PyTorch's allocator can reserve on the card; None if its memory is unknown."""
        return None if self.memory_bytes is None else max(0, self.memory_bytes - self.context_bytes)

    @property
    def multiprocessors(self) -> int | None:
        """Number of the card's multiprocessors; None if the card is not named or not in the catalogue."""
        gpu = self._gpu
        return None if gpu is None else gpu.num_sms

    @property
    def _gpu(self) -> gpus.Gpu | None:
        try:
            gpu = gpus.find_gpu(self.name)
        except UnknownGpuError:
            return None
        return gpu if gpu.architecture == self.architecture else None

    def among(self, groups: Sequence[int], num_ranks: int) -> Card:
        """Copy of the card whose memory outside the allocator includes NCCL's for the given process groups.

        Args:
            groups: number of ranks in each process group that exchanges data.
            num_ranks: number of all ranks.
        """
        architecture, name = (None, None) if self.may_be else (self.architecture, self.name)
        context, _ = assumed_context(architecture, name, groups, num_ranks)
        return replace(self, context_bytes=context.high_bytes)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures that the card may have, the likely one first; predicted intervals cover them all."""
        others = (each for each in self.may_be if each != self.architecture)
        return (self.architecture, *others)


def card_named(name: str | None, mesh: Sequence[int] = ()) -> Card:
    """Card of the catalogue called `name`; for None a card of unknown name and memory.

    An unknown card is most likely of `DEFAULT_ARCHITECTURE`, and may be of any architecture for which
    predictions exist.

    Args:
        mesh: number of ranks in each dimension of the processes that train together, one on each such card;
            empty for one process.

    Raises:
        UnknownGpuError: the catalogue has no such card.
    """
    if name is None:
        context, _ = assumed_context(None, mesh=mesh)
        return Card(
            name=DEFAULT_ARCHITECTURE,
            architecture=DEFAULT_ARCHITECTURE,
            context_bytes=context.high_bytes,
            may_be=gpus.catalogue_architectures(),
        )
    gpu = gpus.find_gpu(name)
    context, _ = assumed_context(gpu.architecture, gpu.key, mesh)
    return Card(
        name=gpu.key,
        architecture=gpu.architecture,
        context_bytes=context.high_bytes,
        memory_bytes=gpu.total_bytes,
    )
