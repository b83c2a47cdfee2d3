"""Start of a snapshot: what was reserved and allocated before the first event.

A snapshot holds the last events of a run and the segments at its end. Undone from the last to the first,
the events say what lay in the cache before them:

    start                          events                            end
    segments, blocks, free blocks  <- undone one by one, backwards - segments and blocks of the snapshot
"""

from __future__ import annotations

from autofit_workers.replay.allocator.pools import ActionKind
from autofit_workers.replay.allocator.settings import (
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)
from autofit_workers.replay.snapshots.layout import Layout
from autofit_workers.replay.snapshots.snapshot import Event, Segment, Snapshot

_DEFAULT = AllocatorSettings()


def start_of(snapshot: Snapshot, *, after: int = 0) -> list[Segment]:
    """Segments and blocks before an event, by undoing it and all events after it.

    Args:
        snapshot: events and the segments at their end.
        after: number of events that are not undone.

    Raises:
        ValueError: an event cannot be undone, so that events are missing or out of order.
    """
    layout = Layout(snapshot.segments)
    for event in reversed(snapshot.events[after:]):
        try:
            _undo(event, layout)
        except ValueError as error:
            raise ValueError(f"{snapshot.name}: {event} cannot be undone: {error}") from error
    return layout.in_order()


def _undo(event: Event, layout: Layout) -> None:
    if event.kind is ActionKind.SEGMENT_ALLOC:
        layout.remove(event.address, event.size)
    elif event.kind is ActionKind.SEGMENT_FREE:
        is_small = event.size == SMALL_SEGMENT_BYTES  # a large one has 10 MiB or more
        layout.add(Segment(event.address, event.size, is_small, event.stream))
    elif event.kind is ActionKind.ALLOC:
        segment = layout.at(event.address)
        _give_rest(layout, segment, event.address)
        layout.take(segment, event.address)
    elif event.kind is ActionKind.FREE_COMPLETED:
        segment = layout.at(event.address)
        layout.put(segment, event.address, _DEFAULT.round_size(event.size))
        _give_rest(layout, segment, layout.after(segment, event.address))
    elif event.kind is not ActionKind.FREE_REQUESTED:
        raise ValueError("expandable segments are not followed here")


def _give_rest(layout: Layout, segment: Segment, address: int) -> None:
    """Gives the block before an address what lies between, where that is too little to have been split off.

    Frees name the size of a request, and not the block's.
    """
    if segment.is_small:
        return
    before = layout.before(segment, address)
    if before is not None and address - before - segment.live[before] <= SMALL_REQUEST_BYTES:
        segment.live[before] = address - before
