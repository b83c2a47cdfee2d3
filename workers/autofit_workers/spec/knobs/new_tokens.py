"""The knob `new_tokens`: how many tokens are generated after each prompt."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, or_none, whole_number

KNOB = Knob(
    name="new_tokens",
    default=None,
    read=or_none(whole_number()),
    help="In mode generate, tokens that are generated after each prompt; no text ends sooner.",
    metavar="N",
    is_searchable=True,
    words={None: "no new tokens"},
    phrase="{} new tokens",
)
