"""Batch sizes that one process tried in turn, largest first, and what a try that failed leaves behind.

timm's `benchmark.py` (`_try_run`) gives the cache back before it tries again, but the runner of the try
that failed lives on until the next one is made, with its model and its input. The next input, smaller, is
then cut from the segment of the last one, whose rest stays for whatever fits. In channels last it is not:
there an input is copied into a segment of its own.
"""

from __future__ import annotations

import dataclasses

from workers.trace import Allocation, Category, Trace

# `decay_batch_step` of timm: by a quarter, then by a third.
_STEPS = (2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
_INPUT = "step 1 input"


def tried_before(batch_size: int, first: int) -> int | None:
    """The size that failed just before, of a ladder that begins at `first`; None for that one itself."""
    return min((step for step in _STEPS if batch_size < step <= first), default=None)


def after_failed_try(trace: Trace, num_samples: int) -> Trace:
    """The same steps in a process where so many samples were tried before, and did not fit.

    Args:
        trace: of steps that begin with one input.
    """
    (position,) = {mark.position for mark in trace.marks if mark.name == _INPUT}
    event = trace.events[position]
    assert event >= 0, "a step begins with what it frees"
    own = trace.allocations[event]
    assert own.category is Category.INPUT, own
    left = Allocation(num_bytes=own.num_bytes // trace.batch_size * num_samples, category=Category.OTHER)
    number = len(trace.allocations)
    return dataclasses.replace(
        trace,
        allocations=(*trace.allocations, left),
        events=(*trace.events[:position], number, ~number, *trace.events[position:]),
        marks=tuple(
            dataclasses.replace(mark, position=mark.position + 2) if mark.position > position else mark
            for mark in trace.marks
        ),
    )
