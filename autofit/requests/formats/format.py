"""Format of a request: a scheduler, what it is asked by, and how it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autofit.hardware.gpus import Gpu
from autofit.questions.card_fits import CardFit
from autofit.requests.asked import Asked
from autofit_workers.spec.pythons import StrEnum


class AsksBy(StrEnum):
    """Kind of thing that a scheduler is asked for.

    `CARD`: names of cards. `CARD_MEMORY`: a card that has at least so much memory. `MEMORY`: so much of a
    card's memory, of which other processes may get the rest.
    """

    CARD = "card"
    CARD_MEMORY = "card-memory"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Request as a scheduler reads it.

    Attributes:
        text: the request, ready to paste.
        values: its content, as JSON's types.
        cards: results for the cards that it asks for, or may get, in order.
        memory_bytes: memory of each GPU that it asks for, in bytes; None where it asks for cards by name.
        notes: sentences on what to know before it is used.
    """

    text: str
    values: dict[str, Any]
    cards: tuple[CardFit, ...]
    memory_bytes: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFormat:
    """Scheduler for which `autofit request` writes.

    Attributes:
        name: name as it is typed: `--for NAME`.
        scheduler: its own name, for sentences.
        asks_by: what it is asked by.
        write: writes a request; None if the scheduler has a name for none of the cards.
        only_cuda: whether it gives cards alone that have CUDA's compute capabilities.
        gives_slices: whether it gives MIG slices.
    """

    name: str
    scheduler: str
    asks_by: AsksBy
    write: Callable[[Asked], Written | None]
    only_cuda: bool = False
    gives_slices: bool = False

    def gives(self, gpu: Gpu) -> bool:
        """Whether the scheduler gives such a card."""
        is_meant = gpu.vendor.facts.has_capability or not self.only_cuda
        return is_meant and (self.gives_slices or not gpu.is_mig_slice)
