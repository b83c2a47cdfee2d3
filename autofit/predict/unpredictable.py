"""Refuses steps on cards where a library, such as AMD's MIOpen, takes an unknown amount of memory.

The vendor's row in `autofit_workers.spec.vendors` names the operators that such a library runs. A range that
covers all that the library may take would be a guess, so steps with these operators are refused.
"""

from __future__ import annotations

from autofit.errors import UnpredictableCardError
from autofit.hardware.card import Card
from autofit_workers.replay.curve.conditions import leaves_some_to_backend
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Trace


def why_unpredictable(knobs: Knobs, trace: Trace, card: Card) -> str | None:
    """Reason why a step cannot be predicted on a card, with the next step for the user; None if it can."""
    facts = Architecture.of(card.architecture).vendor.facts
    if facts.predicts_every_step:
        return None
    convolutions = dict.fromkeys(a.convolution for a in trace.allocations if a.convolution is not None)
    if facts.unknown_convolutions is not None and leaves_some_to_backend(convolutions, knobs.conv_algo):
        return facts.unknown_convolutions
    operators = {allocation.operator for allocation in trace.allocations}
    unknown = facts.unknown_operators.items()
    return next((why for part, why in unknown if any(part in name for name in operators)), None)


def require_predictable(knobs: Knobs, trace: Trace, card: Card) -> None:
    """Raises `UnpredictableCardError` if a step cannot be predicted on a card."""
    if (why := why_unpredictable(knobs, trace, card)) is not None:
        raise UnpredictableCardError(why)
