"""The knob `grad_accumulation`: how many batches make an optimizer step."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, or_none, whole_number

KNOB = Knob(
    name="grad_accumulation",
    default=1,
    read=or_none(whole_number()),
    help="Number of batches per optimizer step.",
    metavar="N",
    choice="batches a step",
    words={None: "accumulated", 1: "one batch a step"},
    phrase="{} batches a step",
)
