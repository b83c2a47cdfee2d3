"""What holds of every stream of events that is replayed where no more than a limit can be reserved."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import (
    AllocatorOutOfMemory,
    AllocatorSettings,
    CachingAllocator,
    Segment,
    Streams,
    keeps_up,
    lags,
    replay,
)
from tests.workers.replay.allocator.streams import MIB, SETTINGS, on_streams, streams

CLOCKS = st.sampled_from([keeps_up, lags])
LIMITS = st.integers(0, 300 * MIB)
Events = tuple[list[int], list[int]]


@given(on_streams(), SETTINGS, LIMITS, CLOCKS)
def test_no_more_than_the_limit_is_ever_reserved(
    step: tuple[list[int], list[int], Streams], settings: AllocatorSettings, limit_bytes: int, clock
) -> None:
    events, sizes, on = step
    result = replay(events, sizes, settings=settings, limit_bytes=limit_bytes, streams=on, clock=clock)
    assert result.peak_allocated_bytes <= result.peak_reserved_bytes <= limit_bytes


@given(on_streams(), SETTINGS, st.integers(0, 300 * MIB), CLOCKS)
def test_where_the_limit_is_not_reached_the_replay_is_that_without_one(
    step: tuple[list[int], list[int], Streams], settings: AllocatorSettings, spare_bytes: int, clock
) -> None:
    # What goes long unused is given back early under a limit. And an expandable segment is refused where the
    # segment that is made in other cases would not fit, see `ExpandableBlockPools`.
    assume(settings.garbage_collection_threshold is None and not settings.expandable_segments)
    events, sizes, on = step
    without = replay(events, sizes, settings=settings, streams=on, clock=clock)
    limit_bytes = without.peak_reserved_bytes + spare_bytes
    assert (
        replay(events, sizes, settings=settings, limit_bytes=limit_bytes, streams=on, clock=clock) == without
    )


@given(streams(), LIMITS, st.sampled_from([None, 32 * MIB]))
def test_memory_runs_out_only_where_segments_of_live_blocks_leave_no_room(
    step: Events, limit_bytes: int, max_split_size_bytes: int | None
) -> None:
    events, sizes = step
    settings = AllocatorSettings(max_split_size_bytes=max_split_size_bytes)
    allocator, blocks = CachingAllocator(settings, limit_bytes=limit_bytes), {}
    for event in events:
        if event < 0:
            if sizes[~event]:
                allocator.free(blocks.pop(~event))
        elif sizes[event]:
            try:
                blocks[event] = allocator.malloc(sizes[event])
            except AllocatorOutOfMemory:
                in_use = [segment for segment in allocator.segments() if holds_something(segment)]
                assert allocator.reserved_bytes == sum(segment.size for segment in in_use)
                segment_bytes = settings.segment_bytes(settings.round_size(sizes[event]))
                assert allocator.reserved_bytes + segment_bytes > limit_bytes
                return


def holds_something(segment: Segment) -> bool:
    return any(block.is_allocated for block in segment.blocks)


def test_a_result_that_grows_runs_in_little_more_than_is_alive() -> None:
    """Each concatenation needs a larger block than any that is free: without a limit all of them stay."""
    sizes = [number * 12 * MIB for number in range(1, 60)]
    events = [0, *(event for number in range(1, len(sizes)) for event in (number, ~(number - 1)))]
    alive_bytes = sizes[-1] + sizes[-2]
    assert replay(events, sizes).peak_reserved_bytes > 10 * alive_bytes
    limited = replay(events, sizes, limit_bytes=2 * alive_bytes)
    assert limited.completed
    assert limited.num_alloc_retries > 1
    assert not replay(events, sizes, limit_bytes=alive_bytes - 1).completed
