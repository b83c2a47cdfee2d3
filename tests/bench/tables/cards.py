"""The cards of the tables, as the catalogue knows them."""

from __future__ import annotations

from typing import NamedTuple

from autofit.hardware.budget import assumed_context
from autofit.hardware.gpus import find_gpu


class Card(NamedTuple):
    """What a row needs of the card that it was measured on, sizes in bytes."""

    gpu: str
    architecture: str
    total_bytes: int
    context_bytes: int


def card(name: str) -> Card:
    """The card of that key or CUDA name, with the context that is likely on it."""
    gpu = find_gpu(name)
    context, _ = assumed_context(gpu.architecture, gpu.key)
    return Card(gpu.key, gpu.architecture, gpu.total_bytes, context.likely_bytes)
