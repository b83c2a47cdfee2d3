"""The knob `grad_accumulation`: how many batches make an optimizer step."""

from __future__ import annotations

from typing import Any

from workers.knobs.knob import Knob, whole_number


def _read(value: Any) -> int | None:
    return None if value is None else whole_number(value)


KNOB = Knob(
    name="grad_accumulation",
    default=1,
    read=_read,
    help="Number of batches per optimizer step.",
    metavar="N",
    words={None: "accumulated", 1: "one batch a step"},
    phrase="{} batches a step",
)
