"""The knob `seq_len`: the size of a sample, such as the tokens of a text or the side of an image."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, or_none, whole_number

KNOB = Knob(
    name="seq_len",
    default=None,
    read=or_none(whole_number()),
    help="Size of a sample: tokens of a text, side of an image, or what the workload's make_batch takes as "
    "the keyword size. In mode generate, tokens of a prompt.",
    aliases=("prompt-len",),
    metavar="N",
    is_searchable=True,
    words={None: "samples of their own size"},
    phrase="seq-len {}",
)
