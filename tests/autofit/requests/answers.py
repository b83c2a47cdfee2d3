"""Answers of `autofit cards` for a need of memory, made without a trace, by the real budgets of the cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from autofit.hardware.budget import DEFAULT_MARGIN, budget_of, least_total_bytes
from autofit.hardware.gpus import Gpu, catalogue
from autofit.questions.card_fits import CardFit
from autofit.questions.cards import CardsAnswer
from autofit.questions.check import Answer
from autofit.settings.goals import Risk
from autofit_workers.spec.knobs import Knobs

GIB = 1024**3


def fit(gpu: Gpu, required_bytes: int, num_gpus: int = 1, **changes: Any) -> CardFit:
    """Result of a card: it fits where the need is within the card's real budget."""
    budget = budget_of(gpu)
    fits = required_bytes <= budget.usable_bytes
    usual: dict[str, Any] = {
        "gpu": gpu.key,
        "architecture": gpu.architecture,
        "total_bytes": gpu.total_bytes,
        "usable_bytes": budget.usable_bytes,
        "verdict": Answer.FITS if fits else Answer.DOES_NOT_FIT,
        "likely_verdict": None,
        "interval": None,
        "device_peak_bytes": None,
        "largest_batch": None,
        "num_gpus": num_gpus,
        "parallel": f"fsdp:{num_gpus}" if num_gpus > 1 else "",
        "required_bytes": required_bytes,
        "least_total_bytes": least_total_bytes(required_bytes + budget.context_bytes, DEFAULT_MARGIN),
    }
    return CardFit(**{**usual, **changes})


def answer(rows: Iterable[CardFit], **changes: Any) -> CardsAnswer:
    usual: dict[str, Any] = {
        "workload": "resnet50",
        "mode": "train",
        "batch_size": 64,
        "knobs": Knobs(),
        "risk": Risk.SAFE,
        "cards": tuple(rows),
    }
    return CardsAnswer(**{**usual, **changes})


def needing(
    gib: float,
    *keys: str,
    num_gpus: int = 1,
    more_on: Callable[[Gpu], float] = lambda _gpu: 1.0,
    **changes: Any,
) -> CardsAnswer:
    """Answer for a step that needs so much reserved memory.

    Args:
        keys: cards that are asked; all of the catalogue by default.
        more_on: how many times as much it needs on a card.
    """
    gpus = [catalogue()[key] for key in keys] or list(catalogue().values())
    rows = [fit(gpu, int(gib * more_on(gpu) * GIB), num_gpus) for gpu in gpus]
    return answer(rows, **changes)
