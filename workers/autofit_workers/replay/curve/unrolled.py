"""Events of all passes of a text generation, made by repeating the last traced pass.

Generation runs the model once per new token; only the first passes are traced. An allocation that does not
grow, is freed in its own pass and lies in the allocator's pool of small blocks gets the same block again in
the next pass. If all passes have too many events, such allocations are left out of all but the traced passes
and the last pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autofit_workers.replay.allocator import ONE_STREAM, Streams
from autofit_workers.replay.allocator.settings import SMALL_REQUEST_BYTES
from autofit_workers.spec.trace import Allocation, Repetition, Trace

_MOST_ALLOCATIONS = 200_000  # a replay of so many takes about a second


class Unrolled(NamedTuple):
    """Events of all passes of a text generation, and the bytes of each of their allocations."""

    events: Sequence[int]
    sizes: Sequence[int]


def unrolled(trace: Trace, sizes: Sequence[int]) -> Unrolled:
    """Returns a trace's events and sizes, continued by the passes of a text generation that were not traced.

    These repeat the last traced pass; allocations grow from pass to pass as they did between the last two.

    Args:
        trace: the trace.
        sizes: bytes of every allocation of the trace.
    """
    repetition = trace.repetition
    if repetition is None:
        return Unrolled(trace.events, sizes)
    period, times = repetition.num_allocations, repetition.times
    last = list(sizes[len(sizes) - period :])
    growth = [size - before for size, before in zip(last, sizes[-2 * period : -period], strict=True)]
    template = trace.events[repetition.start :]
    middle: Sequence[int] = template
    if period * times > _MOST_ALLOCATIONS:
        middle = _without_small(template, last, growth, first=len(sizes) - period)
    events, all_sizes = list(trace.events), list(sizes)
    for number in range(1, times + 1):
        shift = number * period
        events += [
            event + shift if event >= 0 else event - shift
            for event in (template if number == times else middle)
        ]
        all_sizes += [max(0, size + number * more) for size, more in zip(last, growth, strict=True)]
    return Unrolled(events, all_sizes)


def unrolled_streams(trace: Trace) -> Streams:
    """CUDA streams of the events that `unrolled` returns: of traced and untraced passes.

    The host's waits in the untraced passes are left out: memory then comes back no earlier than in the real
    run, so that the peak is not too low.
    """
    found = Streams.of(trace.allocations, trace.host_waits)
    repetition = trace.repetition
    if repetition is None or found == ONE_STREAM:
        return found
    repeated = trace.allocations[-repetition.num_allocations :] * repetition.times
    return Streams.of((*trace.allocations, *repeated), trace.host_waits)


def allocation_of(trace: Trace, number: int) -> Allocation:
    """Traced allocation that an allocation of the unrolled events is, or is a repetition of.

    Args:
        trace: the trace.
        number: index of the allocation in the unrolled events.
    """
    total = len(trace.allocations)
    if number < total:
        return trace.allocations[number]
    repetition = trace.repetition
    assert isinstance(repetition, Repetition)
    period = repetition.num_allocations
    return trace.allocations[total - period + (number - total) % period]


def _without_small(
    template: Sequence[int], sizes: Sequence[int], growth: Sequence[int], *, first: int
) -> Sequence[int]:
    """Events of a pass without the small blocks that are allocated and freed within the pass.

    Args:
        template: events of the pass.
        sizes, growth: bytes of each of the pass's allocations, and by how much it grows from pass to pass.
        first: index of the pass's first allocation.
    """
    freed = {~event for event in template if event < 0}
    left_out = {
        number + first
        for number, (size, more) in enumerate(zip(sizes, growth, strict=True))
        if not more and size <= SMALL_REQUEST_BYTES and number + first in freed
    }
    return [event for event in template if max(event, ~event) not in left_out]
