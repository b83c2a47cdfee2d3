"""The knob `global_batch`: how many samples make an optimizer step, whatever the batch size."""

from __future__ import annotations

from typing import Any

from workers.knobs.knob import Knob, whole_number


def _read(value: Any) -> int | None:
    return None if value is None else whole_number(value)


KNOB = Knob(
    name="global_batch",
    default=None,
    read=_read,
    help="Exact number of samples per optimizer step, accumulated from batches that divide it.",
    metavar="N",
    words={None: "no global batch"},
    phrase="global batch {}",
)
