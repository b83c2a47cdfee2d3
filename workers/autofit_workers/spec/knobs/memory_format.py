"""The knob `memory_format`: the layout of weights and inputs."""

from __future__ import annotations

from autofit_workers.spec.knobs.knob import Knob, one_of

MEMORY_FORMATS = ("contiguous", "channels_last")

KNOB = Knob(
    name="memory_format",
    default="contiguous",
    read=one_of(MEMORY_FORMATS),
    help="Memory layout of weights and inputs.",
    values=MEMORY_FORMATS,
    is_searchable=True,
    levers=("channels_last",),
)
