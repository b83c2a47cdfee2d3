"""The knob `optimizer`: an optimizer by name, in place of the workload's own."""

from __future__ import annotations

from workers.knobs.knob import Knob, one_of, or_none

TORCH_OPTIMIZERS = ("sgd", "sgd-momentum", "adam", "adamw", "rmsprop", "adagrad")
OPTIMIZERS = (*TORCH_OPTIMIZERS, "adamw8bit")

KNOB = Knob(
    name="optimizer",
    default=None,
    read=or_none(one_of(OPTIMIZERS)),
    help="Use this optimizer instead of the workload's own.",
    values=OPTIMIZERS,
    metavar="NAME",
    is_searchable=True,
    words={None: "the workload's optimizer"},
)
