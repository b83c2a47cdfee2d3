"""The knob `compile`: whether `torch.compile`, with its defaults, compiles the model."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, switch

KNOB = Knob(
    name="compile",
    default=False,
    read=switch,
    help="Compile the model with torch.compile and its defaults.",
    values=("true", "false"),
    is_searchable=True,
    is_switch=True,
    words={True: "compiled", False: "not compiled"},
)
