from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from tests.workers.allocator.streams import SETTINGS, streams
from workers.allocator import (
    ActionKind,
    AllocatorSettings,
    CachingAllocator,
    Choice,
    History,
    record_history,
    replay,
)

untimed = run_settings(deadline=None)  # a busy machine is no failure

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


@untimed
@given(streams(), SETTINGS)
def test_the_actions_add_up_to_the_peaks_of_a_replay(
    stream: tuple[list[int], list[int]], settings: AllocatorSettings
) -> None:
    history = record_history(*stream, settings=settings)
    outcome = replay(*stream, settings=settings)

    assert max(running_bytes(history, BLOCKS)) == outcome.peak_allocated_bytes
    assert max(running_bytes(history, SEGMENTS)) == outcome.peak_reserved_bytes
    assert (history.peak_allocated_bytes, history.peak_reserved_bytes) == (
        outcome.peak_allocated_bytes,
        outcome.peak_reserved_bytes,
    )


@untimed
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


@untimed
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


@untimed
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
