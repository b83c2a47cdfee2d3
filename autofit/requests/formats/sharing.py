"""Notes on requests for a part of a card's memory, which any card may give."""

from __future__ import annotations

from autofit.errors import either
from autofit.questions.card_fits import CardFit
from autofit.requests.asked import Asked


def cards_with(asked: Asked, asked_bytes: int) -> tuple[CardFit, ...]:
    """Fitting cards that can give so much memory, in order."""
    return tuple(row for row in asked.of_one_number if row.total_bytes >= asked_bytes)


def notes_on_cards(asked: Asked, asked_bytes: int) -> tuple[str, ...]:
    """Note that names cards with so much memory on which it may not suffice; empty if there are none."""
    unsure = asked.unpredicted(asked_bytes)
    return (f"keep it off {either(unsure)}: so much may not suffice there",) if unsure else ()
