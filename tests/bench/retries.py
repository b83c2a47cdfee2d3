"""What a process keeps of a larger batch that failed, when it comes down to a smaller one.

timm's `benchmark.py` gives back what is cached and makes a new model while it still holds the model and
the batch of the try that failed. So the old batch's segment stays, and the new, smaller batch, which is
made after the old one is freed, is put into it: the rest of the segment can be had for what fits in there
alone. This goes on down the ladder, always in the segment of the first try. (The old model's segments are
whole again by then, and go where memory is short; what is left of gradients and optimizer states is not
followed.)
"""

from __future__ import annotations

import dataclasses

from workers.predict.curve import PeakCurve, TracedCurve
from workers.trace import Trace

_INPUT = "step 1 input"


def after_failure(trace: Trace, first_batch_size: int) -> Trace:
    """A trace whose process has tried a larger batch before, and keeps that until it makes the new one.

    Args:
        trace: of steps that make their batch once, on the GPU.
        first_batch_size: what the process began with.
    """
    position = next(mark.position for mark in trace.marks if mark.name == _INPUT)
    batch = trace.allocations[trace.events[position]]
    samples_shape = batch.shape[1:]
    assert batch.shape[0] == trace.batch_size, f"{trace.workload} makes something else before its batch"
    failed = dataclasses.replace(
        batch,
        shape=(first_batch_size, *samples_shape),
        num_bytes=batch.num_bytes // trace.batch_size * first_batch_size,
    )
    number = len(trace.allocations)
    before, after = trace.events[:position], trace.events[position:]
    return dataclasses.replace(
        trace, allocations=(*trace.allocations, failed), events=(number, *before, ~number, *after), marks=()
    )


class RetriedCurve:
    """The curve of a process that begins with one batch size and comes down from it.

    Args:
        tried_first: of what is tried first.
        tried_again: of what is tried after that.
        first_batch_size: what the process begins with.
    """

    def __init__(
        self,
        tried_first: PeakCurve | TracedCurve,
        tried_again: PeakCurve | TracedCurve,
        *,
        first_batch_size: int,
    ) -> None:
        self._tried_first = tried_first
        self._tried_again = tried_again
        self._first_batch_size = first_batch_size

    def at(self, batch_size: int) -> PeakCurve:
        """The curve that knows this batch size."""
        curve = self._tried_again if batch_size < self._first_batch_size else self._tried_first
        return curve.at(batch_size)
