"""The knob `global_batch`: how many samples make an optimizer step, whatever the batch size."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, or_none, whole_number

KNOB = Knob(
    name="global_batch",
    default=None,
    read=or_none(whole_number()),
    help="Exact number of samples per optimizer step, accumulated from batches that divide it.",
    metavar="N",
    choice="batches a step",
    words={None: "no global batch"},
    phrase="global batch {}",
)
