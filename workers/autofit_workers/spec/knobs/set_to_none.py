"""The knob `set_to_none`: whether a step begins with no gradients, or with gradients filled with zeros."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Cost, Knob, switch

KNOB = Knob(
    name="set_to_none",
    default=True,
    read=switch,
    help="Drop the gradients in zero_grad (true), or fill them with zeros (false).",
    values=("true", "false"),
    is_searchable=True,
    of_training=True,
    levers=(True, False),
    words={True: "gradients dropped", False: "gradients kept as zeros"},
    cost=Cost(rank=1, of=lambda value, _capability: 0 if value else 1),
)
