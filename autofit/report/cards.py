"""The same question for each card that is sold with the memory that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from autofit.errors import BudgetError
from autofit.events import EventSink, Progress
from autofit.hardware.budget import make_budget
from autofit.hardware.card import Card
from autofit.hardware.gpus import Gpu
from autofit.predict.curve import PredictedCurve
from autofit.report.result import CardAnswer
from autofit.search.boundary import largest_fitting_batch
from autofit.search.curves import CachedCurve


def card_answers(
    curve: PredictedCurve,
    cards: Sequence[Gpu],
    *,
    margin: Decimal,
    reserve_bytes: int,
    sizes: Sequence[int],
    emit: EventSink,
    num_ranks: int = 1,
) -> tuple[CardAnswer, ...]:
    """The largest batch of one knob setting on each of `cards`, in their order.

    Args:
        curve: of the setting, on any card.
        cards: the smallest first.
        margin, reserve_bytes, num_ranks: see `make_budget`.
        sizes: those of interest, ascending.
        emit: is told of each card.
    """
    by_architecture: dict[str, CachedCurve] = {}
    answers = []
    for number, gpu in enumerate(reversed(cards)):  # what exceeds a larger budget exceeds a smaller one
        emit(Progress(stage="cards of this class", done=number, total=len(cards)))
        try:
            budget = make_budget(
                gpu.total_bytes,
                architecture=gpu.architecture,
                card=gpu.key,
                margin=margin,
                reserve_bytes=reserve_bytes,
                num_ranks=num_ranks,
            )
        except BudgetError:  # the reserve may leave something on larger cards alone
            largest = None
        else:
            card = Card(name=gpu.key, architecture=gpu.architecture, context_bytes=budget.context_bytes)
            cached = by_architecture.setdefault(gpu.architecture, CachedCurve(curve.on(card)))
            largest = largest_fitting_batch(cached, budget.usable_bytes, sizes=sizes).largest_batch
        answers.append(CardAnswer(gpu=gpu.key, total_bytes=gpu.total_bytes, largest_batch=largest))
    return tuple(reversed(answers))
