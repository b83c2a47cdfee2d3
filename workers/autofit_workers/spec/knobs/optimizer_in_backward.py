"""The knob `optimizer_in_backward`: whether a parameter is updated as soon as its gradient is computed."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Cost, Knob, Part, switch

KNOB = Knob(
    name="optimizer_in_backward",
    default=False,
    read=switch,
    help="Step each parameter, and free its gradient, as soon as backward has made it. Cannot be combined "
    "with gradient accumulation, clipping or a gradient scaler.",
    values=("true", "false"),
    is_searchable=True,
    is_switch=True,
    of_training=True,
    levers=(True,),
    leaves=lambda value: {Part.GRADIENTS: 0.0, Part.TEMPORARIES: 0.0} if value else {},
    words={True: "optimizer in backward", False: "optimizer after backward"},
    # Parameters are updated one after the other, as by `optimizer_impl` loop.
    cost=Cost(rank=3, of=lambda value, _capability: int(value)),
)
