"""Limit to how far the host runs ahead of the card: it waits after about 1,000 queued launches of a stream.

The driver has room for 1,024 launches of a stream that the card has not begun. The host's next launch waits
until the card begins the first of them, and so has done all earlier work of the stream. NVIDIA documents such
queues (with the variable `CUDA_SCALE_LAUNCH_QUEUES`, which makes them up to four times as long), but not
their length; others measured about a thousand kernels for each stream
(https://forums.developer.nvidia.com/t/68937). Streams that share one of the driver's queues have less room.

No limit is assumed for queues of unknown length, such as AMD's.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from autofit_workers.replay.allocator import Streams
from autofit_workers.spec.trace import Allocation, HostWait, Trace

_STEP = 64  # launches between two of the waits that are noted; each wait interrupts a replay
# Operators that allocate without launching a kernel.
_WITHOUT_LAUNCH = ("aten.empty", "aten.new_empty", "aten.resize_")


def with_queue(streams: Streams, trace: Trace, room: int) -> Streams:
    """Returns `streams` with waits of the host added wherever a stream's launch queue is full.

    Args:
        streams: streams of the step, and the waits that the step itself makes.
        trace: the step.
        room: number of launches that a stream's queue has room for.
    """
    waits = sorted((*streams.host_waits, *_waits_for_room(trace, room)), key=lambda wait: wait.position)
    return dataclasses.replace(streams, host_waits=tuple(waits))


def _waits_for_room(trace: Trace, room: int) -> Iterator[HostWait]:
    """Yields the waits of the host for room in the launch queues, for every 64th launch of each stream."""
    launched = collections.defaultdict[int, list[int]](list)
    for position, stream in _launches(trace):
        positions = launched[stream]
        positions.append(position)
        number = len(positions) - 1 - room
        if number >= 0 and number % _STEP == 0:
            yield HostWait(position=position, stream=stream, up_to=positions[number])


def _launches(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yields, for each certain kernel launch, its position in the events and its stream.

    Each operator call that allocates counts as one launch, however often it allocates. Calls that work in
    place are missing from the events, so the real queue fills up at least as early.
    """
    before = ""
    for position, event in enumerate(trace.events):
        operator = ""
        if event >= 0:
            allocation = trace.allocations[event]
            operator = allocation.operator
            if operator != before and _needs_kernel(allocation):
                yield position, allocation.stream
        before = operator


def _needs_kernel(allocation: Allocation) -> bool:
    """Whether an allocation is written by an ATen kernel; False for `aten.empty` and for scratch memory."""
    name = allocation.operator
    writes = name.startswith("aten.") and not name.startswith(_WITHOUT_LAUNCH)
    return writes and not allocation.correction and 0 not in allocation.shape
