"""Lays out a request for a scheduler as one text, in which all that is said is a comment."""

from __future__ import annotations

from autofit.errors import either
from autofit.requests.answer import RequestAnswer
from autofit.requests.text import commented
from autofit.units import format_bytes


def request_text(answer: RequestAnswer) -> str:
    """Text of a request, with what it rests on as comments; to be given to the scheduler as it is.

    Args:
        answer: an answer that has a request.
    """
    assert answer.request is not None
    first = answer.cards[0]
    lines = [
        f"{answer.workload} at batch {answer.batch_size}: up to {format_bytes(first.required_bytes)} "
        f"reserved on {first.gpu}, with context and margin {format_bytes(first.least_total_bytes)} "
        f"(predicted, at risk {answer.risk})",
        f"fits on {either([card.gpu for card in answer.cards])}"
        + (f", each {first.num_gpus} ×, {first.parallel}" if first.num_gpus > 1 else ""),
    ]
    if first.epoch_price is not None:
        lines.append(f"an epoch costs about {first.epoch_price:.3g} on {first.gpu}, the cheapest")
    return commented([*lines, *answer.notes]) + answer.request
