"""The knob `optimizer`: an optimizer by name, in place of the workload's own."""

from __future__ import annotations

from typing import Any

from workers.knobs.knob import Knob, one_of

TORCH_OPTIMIZERS = ("sgd", "sgd-momentum", "adam", "adamw", "rmsprop", "adagrad")
OPTIMIZERS = (*TORCH_OPTIMIZERS, "adamw8bit")


def _read(value: Any) -> str | None:
    return None if value is None else str(one_of(OPTIMIZERS)(value))


KNOB = Knob(
    name="optimizer",
    default=None,
    read=_read,
    help="Use this optimizer instead of the workload's own.",
    values=OPTIMIZERS,
    metavar="NAME",
    is_searchable=True,
    words={None: "the workload's optimizer"},
)
