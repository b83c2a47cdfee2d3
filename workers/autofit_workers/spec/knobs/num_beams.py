"""The knob `num_beams`: how many continuations of each prompt are kept."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, whole_number

KNOB = Knob(
    name="num_beams",
    default=1,
    read=whole_number(),
    help="In mode generate, the beams of beam search; 1 takes the likeliest token.",
    metavar="N",
    is_searchable=True,
    words={1: "one beam"},
    phrase="{} beams",
)
