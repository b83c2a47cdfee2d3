from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import (
    ActionKind,
    AllocatorSettings,
    CachingAllocator,
    Choice,
    EventClock,
    History,
    Streams,
    keeps_up,
    lags,
    record_history,
    replay,
)
from autofit_workers.spec.trace import HostWait
from tests.workers.replay.allocator.streams import SETTINGS, on_streams, streams

MIB = 1 << 20
BLOCKS = {ActionKind.ALLOC: 1, ActionKind.FREE_REQUESTED: -1}
SEGMENTS = {
    ActionKind.SEGMENT_ALLOC: 1,
    ActionKind.SEGMENT_FREE: -1,
    ActionKind.SEGMENT_MAP: 1,
    ActionKind.SEGMENT_UNMAP: -1,
}


def running_bytes(history: History, signs: dict[ActionKind, int]) -> list[int]:
    sums = [0]
    for action in history.actions:
        sums.append(sums[-1] + signs.get(action.kind, 0) * action.num_bytes)
    return sums


def test_actions_have_the_names_of_pytorch_s_memory_snapshots():
    blocks = {"alloc", "free_requested", "free_completed"}
    assert set(ActionKind) == blocks | {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}


@given(on_streams(), SETTINGS, st.sampled_from([keeps_up, lags]))
def test_the_actions_add_up_to_the_peaks_of_a_replay(
    stream: tuple[list[int], list[int], Streams], settings: AllocatorSettings, clock: EventClock
) -> None:
    events, sizes, streams = stream
    history = record_history(events, sizes, settings=settings, streams=streams, clock=clock)
    outcome = replay(events, sizes, settings=settings, streams=streams, clock=clock)

    assert max(running_bytes(history, BLOCKS)) == outcome.peak_allocated_bytes
    assert max(running_bytes(history, SEGMENTS)) == outcome.peak_reserved_bytes
    assert (history.peak_allocated_bytes, history.peak_reserved_bytes) == (
        outcome.peak_allocated_bytes,
        outcome.peak_reserved_bytes,
    )


@given(streams(), SETTINGS, st.data())
def test_plans_are_found_in_the_history_as_they_are_in_a_replay(
    stream: tuple[list[int], list[int]], settings: AllocatorSettings, data: st.DataObject
) -> None:
    sizes = stream[1]
    rooms = data.draw(st.sets(st.integers(0, len(sizes) - 1))) if sizes else set()
    found = {request: data.draw(st.integers(0, sizes[request])) for request in sorted(rooms)}
    history = record_history(*stream, settings=settings, found=found)
    choices = {request: Choice(request, (sizes[request],), (size,)) for request, size in found.items()}
    outcome = replay(*stream, settings=settings, choices=choices)

    of_requests = dataclasses.replace(
        history,
        actions=tuple(a for a in history.actions if a.kind not in BLOCKS or a.request is not None),
    )
    assert max(running_bytes(of_requests, BLOCKS)) == outcome.peak_allocated_bytes
    assert max(running_bytes(history, SEGMENTS)) == outcome.peak_reserved_bytes


@given(streams(), SETTINGS)
def test_the_final_segments_are_what_the_actions_left(
    stream: tuple[list[int], list[int]], settings: AllocatorSettings
) -> None:
    history = record_history(*stream, settings=settings)
    live: Counter[tuple[int, int]] = Counter()
    for action in history.actions:
        live[action.address, action.num_bytes] += BLOCKS.get(action.kind, 0)

    allocated = {
        (segment.address + block.offset, block.size)
        for segment in history.segments
        for block in segment.blocks
        if block.is_allocated
    }
    assert allocated == {block for block, count in live.items() if count}
    assert {address for address, _ in allocated} == set(history.requests)
    assert sum(segment.size for segment in history.segments) == running_bytes(history, SEGMENTS)[-1]


@given(streams(), SETTINGS)
def test_blocks_lie_within_memory_that_is_mapped_and_never_overlap(
    stream: tuple[list[int], list[int]], settings: AllocatorSettings
) -> None:
    mapped: set[tuple[int, int]] = set()
    blocks: dict[int, int] = {}
    for action in record_history(*stream, settings=settings).actions:
        first, end = action.address, action.address + action.num_bytes
        if action.kind in (ActionKind.SEGMENT_ALLOC, ActionKind.SEGMENT_MAP):
            mapped.add((first, end))
        elif action.kind is ActionKind.ALLOC:
            assert all(first >= start + size or end <= start for start, size in blocks.items())
            covered = sum(max(0, min(end, stop) - max(first, start)) for start, stop in mapped)
            assert covered == action.num_bytes
            blocks[first] = action.num_bytes
        elif action.kind is ActionKind.FREE_COMPLETED:
            assert blocks.pop(first) == action.num_bytes


def test_a_segment_is_told_of_before_the_block_that_it_was_made_for() -> None:
    history = record_history([0, ~0, 1], [30 * MIB, 30 * MIB])

    assert [(action.kind, action.position, action.request) for action in history.actions] == [
        (ActionKind.SEGMENT_ALLOC, 0, None),
        (ActionKind.ALLOC, 0, 0),
        (ActionKind.FREE_REQUESTED, 1, 0),
        (ActionKind.FREE_COMPLETED, 1, 0),
        (ActionKind.ALLOC, 2, 1),
    ]


def test_requests_of_no_bytes_leave_no_trace() -> None:
    assert record_history([0, ~0], [0]).actions == ()


def test_freeing_what_is_not_allocated_is_refused() -> None:
    with pytest.raises(ValueError, match="event 0 frees request 0, which was not allocated"):
        record_history([~0], [512])


@pytest.mark.parametrize(
    ("expandable", "kinds"),
    [
        (False, [ActionKind.SEGMENT_ALLOC, ActionKind.FREE_COMPLETED, ActionKind.SEGMENT_FREE]),
        (True, [ActionKind.SEGMENT_MAP, ActionKind.FREE_COMPLETED, ActionKind.SEGMENT_UNMAP]),
    ],
)
def test_a_watcher_hears_of_memory_that_comes_and_goes(expandable: bool, kinds: list[ActionKind]) -> None:
    heard: list[tuple[ActionKind, int, int, int]] = []
    settings = AllocatorSettings(expandable_segments=expandable)
    allocator = CachingAllocator(settings, watcher=lambda *change: heard.append(change))

    allocator.free(allocator.malloc(40 * MIB, stream=2))
    allocator.empty_cache()

    assert heard == [(kind, 0, 40 * MIB, 2) for kind in kinds]


def test_a_free_that_waits_for_another_stream_is_completed_where_a_request_finds_it_done() -> None:
    used = Streams(of_requests={0: 2, 1: 2}, uses={0: (1,)})
    actions = record_history([0, ~0, 1], [30 * MIB, 30 * MIB], streams=used).actions

    assert [(action.kind, action.position, action.request, action.stream) for action in actions] == [
        (ActionKind.SEGMENT_ALLOC, 0, None, 2),
        (ActionKind.ALLOC, 0, 0, 2),
        (ActionKind.FREE_REQUESTED, 1, 0, 2),
        (ActionKind.FREE_COMPLETED, 2, 0, 2),
        (ActionKind.ALLOC, 2, 1, 2),
    ]


def test_what_waits_at_the_end_is_neither_allocated_nor_cached() -> None:
    history = record_history([0, ~0], [4 * MIB], streams=Streams(uses={0: (1,)}), clock=lags)

    (segment,) = history.segments
    assert [(each.is_allocated, each.is_pending) for each in segment.blocks] == [
        (False, True),
        (False, False),
    ]
    assert history.requests == {segment.address: 0}


@pytest.mark.parametrize(
    ("up_to", "stream", "reused"), [(2, 1, 0), (4, 1, 0), (4, 3, None), (1, 1, None), (4, None, 0)]
)
def test_a_wait_of_the_host_is_for_what_came_before(
    up_to: int, stream: int | None, reused: int | None
) -> None:
    # Blocks of the requests 0 and 1 are freed by the events 1 and 3; request 2 is made after the wait.
    waits = [HostWait(position=4, stream=stream, up_to=up_to)]
    used = Streams(uses={0: (1,), 1: (1,)}, host_waits=waits)
    actions = record_history([0, ~0, 1, ~1, 2], [12 * MIB] * 3, streams=used, clock=lags).actions

    address = {action.request: action.address for action in actions if action.kind is ActionKind.ALLOC}
    assert [request for request in (0, 1) if address[request] == address[2]] == (
        [] if reused is None else [reused]
    )
    completed = sum(action.kind is ActionKind.FREE_COMPLETED for action in actions)
    assert completed == (0 if reused is None else up_to // 2)
