from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import (
    ONE_STREAM,
    AllocatorOutOfMemory,
    AllocatorSettings,
    Block,
    CachingAllocator,
    EventClock,
    Replay,
    Streams,
    given_blocks,
    keeps_up,
    lags,
    live_peak_bytes,
    peak_of_blocks,
    replay,
)
from tests.workers.replay.allocator.streams import SETTINGS, on_streams, streams

MIB = 1 << 20
CLOCKS = st.sampled_from([keeps_up, lags])
LIMITS = st.none() | st.integers(MIB, 200 * MIB)


def replay_by_hand(
    events: list[int],
    sizes: list[int],
    settings: AllocatorSettings,
    limit_bytes: int | None,
    *,
    streams: Streams = ONE_STREAM,
    clock: EventClock = keeps_up,
) -> Replay:
    allocator = CachingAllocator(settings, limit_bytes=limit_bytes, clock=clock)
    blocks: dict[int, Block] = {}
    peak_position, failed_position = 0, None
    num_stream_events = []
    for position, event in enumerate(events):
        num_stream_events.append(allocator.pending.num_events)
        for wait in streams.host_waits:
            if wait.position == position:
                allocator.pending.wait(wait.stream, up_to=num_stream_events[wait.up_to])
        peak_bytes = allocator.peak_allocated_bytes
        if event >= 0 and sizes[event]:
            try:
                blocks[event] = allocator.malloc(sizes[event], stream=streams.of_requests.get(event, 0))
            except AllocatorOutOfMemory:
                failed_position = position
                break
            for stream in streams.uses.get(event, ()):
                allocator.record_stream(blocks[event], stream)
        elif event < 0 and sizes[~event]:
            allocator.free(blocks.pop(~event))
        if allocator.peak_allocated_bytes > peak_bytes:
            peak_position = position
    return Replay(
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_allocated_position=peak_position,
        num_alloc_retries=allocator.num_alloc_retries,
        completed=failed_position is None,
        failed_position=failed_position,
    )


@given(streams(), SETTINGS, LIMITS)
def test_a_replay_equals_driving_the_allocator_by_hand(
    stream: tuple[list[int], list[int]], settings: AllocatorSettings, limit_bytes: int | None
) -> None:
    assert replay(*stream, settings=settings, limit_bytes=limit_bytes) == replay_by_hand(
        *stream, settings, limit_bytes
    )


@given(on_streams(), SETTINGS, LIMITS, CLOCKS)
def test_a_replay_on_streams_equals_driving_the_allocator_by_hand(
    stream: tuple[list[int], list[int], Streams],
    settings: AllocatorSettings,
    limit_bytes: int | None,
    clock: EventClock,
) -> None:
    events, sizes, streams = stream
    found = replay(events, sizes, settings=settings, limit_bytes=limit_bytes, streams=streams, clock=clock)
    assert found == replay_by_hand(events, sizes, settings, limit_bytes, streams=streams, clock=clock)


@given(streams(), SETTINGS, LIMITS, st.integers(0, 3))
def test_any_one_stream_gives_what_the_default_one_gives(
    stream: tuple[list[int], list[int]], settings: AllocatorSettings, limit_bytes: int | None, number: int
) -> None:
    events, sizes = stream
    requests = range(len(sizes))
    all_on_one = Streams(of_requests=dict.fromkeys(requests, number), uses=dict.fromkeys(requests, (number,)))
    found = replay(events, sizes, settings=settings, limit_bytes=limit_bytes, streams=all_on_one, clock=lags)
    assert found == replay(events, sizes, settings=settings, limit_bytes=limit_bytes)


@given(on_streams(), SETTINGS, LIMITS)
def test_what_other_streams_use_changes_nothing_where_the_device_keeps_up(
    stream: tuple[list[int], list[int], Streams], settings: AllocatorSettings, limit_bytes: int | None
) -> None:
    events, sizes, streams = stream
    unused = Streams(of_requests=streams.of_requests)
    found = [
        replay(events, sizes, settings=settings, limit_bytes=limit_bytes, streams=each, clock=keeps_up)
        for each in (streams, unused)
    ]
    assert found[0] == found[1]


@given(streams(), SETTINGS)
def test_live_bytes_bound_the_allocated_peak_and_that_the_reserved_peak(
    stream: tuple[list[int], list[int]], settings: AllocatorSettings
) -> None:
    outcome = replay(*stream, settings=settings)

    assert live_peak_bytes(*stream) <= outcome.peak_allocated_bytes <= outcome.peak_reserved_bytes


@given(streams(), st.data())
def test_the_live_peak_never_falls_when_a_size_grows(
    stream: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    events, sizes = stream
    larger = [size + data.draw(st.sampled_from([0, 1, 512, 5000])) for size in sizes]

    assert live_peak_bytes(events, sizes) <= live_peak_bytes(events, larger)


@given(streams(), st.integers(0, 200 * MIB))
def test_stopping_above_a_bound_tells_whether_the_reserved_peak_is_above_it(
    stream: tuple[list[int], list[int]], bound_bytes: int
) -> None:
    whole = replay(*stream)
    stopped = replay(*stream, stop_above_bytes=bound_bytes)

    assert stopped.completed == (whole.peak_reserved_bytes <= bound_bytes)
    if stopped.completed:
        assert stopped == whole
    else:
        assert stopped.failed_position is not None
        up_to_failure = stream[0][: stopped.failed_position]
        assert replay(up_to_failure, stream[1]).peak_reserved_bytes <= bound_bytes
        assert stopped.peak_reserved_bytes > bound_bytes


def test_reserving_exactly_the_bound_does_not_stop_a_replay() -> None:
    assert replay([0], [10 * MIB], stop_above_bytes=10 * MIB).completed
    assert not replay([0], [10 * MIB], stop_above_bytes=10 * MIB - 1).completed


def test_an_empty_stream_reserves_nothing() -> None:
    assert replay([], []) == Replay(
        peak_allocated_bytes=0,
        peak_reserved_bytes=0,
        peak_allocated_position=0,
        num_alloc_retries=0,
        completed=True,
        failed_position=None,
    )
    assert live_peak_bytes([], []) == 0


def test_the_peak_position_is_where_the_peak_was_first_reached() -> None:
    # 4 MiB, 4 + 6, back to 4, 4 + 6 again
    outcome = replay([0, 1, ~1, 2], [4 * MIB, 6 * MIB, 6 * MIB])

    assert outcome.peak_allocated_bytes == 10 * MIB
    assert outcome.peak_allocated_position == 1


@given(on_streams(), SETTINGS, CLOCKS)
def test_given_blocks_add_up_to_what_is_allocated(
    stream: tuple[list[int], list[int], Streams], settings: AllocatorSettings, clock: EventClock
) -> None:
    events, sizes, streams = stream
    blocks = given_blocks(events, sizes, settings=settings, streams=streams, clock=clock)
    outcome = replay(events, sizes, settings=settings, streams=streams, clock=clock)
    assert peak_of_blocks(events, blocks) == outcome.peak_allocated_bytes
    assert all(block >= size for block, size in zip(blocks, sizes, strict=True))


def test_allocated_counts_blocks_that_were_not_split_at_their_whole_size() -> None:
    assert replay([0], [11 * MIB]).peak_allocated_bytes == 12 * MIB
    assert live_peak_bytes([0], [11 * MIB]) == 11 * MIB


def test_empty_requests_are_skipped() -> None:
    outcome = replay([0, 1, ~0, ~1], [0, 1])

    assert outcome.completed
    assert outcome.peak_allocated_bytes == 512


def test_a_replay_that_runs_out_of_memory_says_where() -> None:
    outcome = replay([0, 1, 2], [30 * MIB, 20 * MIB, 1], limit_bytes=40 * MIB)

    assert not outcome.completed
    assert outcome.failed_position == 1
    assert outcome.num_alloc_retries == 1
    assert outcome.peak_reserved_bytes == 30 * MIB


def test_a_retry_that_succeeds_completes_and_is_counted() -> None:
    outcome = replay([0, ~0, 1], [30 * MIB, 36 * MIB], limit_bytes=40 * MIB)

    assert outcome.completed
    assert outcome.num_alloc_retries == 1
    assert outcome.peak_reserved_bytes == 36 * MIB


@pytest.mark.parametrize(
    ("events", "match"),
    [([~0], "event 0 frees request 0"), ([0, ~0, ~0], "freed before")],
    ids=["never allocated", "freed twice"],
)
def test_a_stream_that_frees_what_is_not_allocated_is_refused(events: list[int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replay(events, [4096])
