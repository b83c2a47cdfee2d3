"""The simulated allocator beside streams of real ones, and beside made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit_workers.replay.allocator import ActionKind, is_compiled, replay
from autofit_workers.replay.allocator.settings import MIB
from autofit_workers.replay.snapshots import Event, Segment, Snapshot
from autofit_workers.replay.snapshots.start import start_of
from tests.bench.snapshot_runs import allocated_peak
from tests.bench.snapshots import read_snapshot, stream_of, without_first_releases
from tests.bench.streams import compare, compare_snapshot, is_same_compiled
from tests.bench.tables.folder import DEFAULT_TABLES

ALLOC, FREED = ActionKind.ALLOC, ActionKind.FREE_COMPLETED
MADE, RELEASED = ActionKind.SEGMENT_ALLOC, ActionKind.SEGMENT_FREE
SNAPSHOTS = DEFAULT_TABLES / "snapshots"
needs_snapshots = pytest.mark.skipif(not SNAPSHOTS.exists(), reason=f"no snapshots at {SNAPSHOTS}")
LOW, MIDDLE, HIGH = 0, 100 * MIB, 200 * MIB  # addresses of segments: a driver's often descend


def snapshot(*events: tuple[ActionKind, int, int], segments: tuple[Segment, ...]) -> Snapshot:
    """A snapshot of events, each its kind, address and bytes, and of the segments after them."""
    return Snapshot("made up", tuple(Event(*each, 0) for each in events), segments)


def large(address: int, size: int, live: dict[int, int]) -> Segment:
    """A segment of the large pool with its live blocks, by their offsets."""
    return Segment(address, size, False, 0, {address + offset: num for offset, num in live.items()})


# An emptied cache: what is left is a segment that is used in part, whose free rest serves the next request.
EMPTIED = snapshot(
    (RELEASED, MIDDLE, 30 * MIB),
    (ALLOC, HIGH + 4 * MIB, 8 * MIB),
    (MADE, LOW, 12 * MIB),
    (ALLOC, LOW, 12 * MIB),
    (FREED, HIGH + 4 * MIB, 8 * MIB),
    (ALLOC, HIGH + 4 * MIB, 6 * MIB),
    segments=(
        large(HIGH, 20 * MIB, {0: 4 * MIB, 4 * MIB: 6 * MIB}),
        large(LOW, 12 * MIB, {0: 12 * MIB}),
    ),
)


def test_a_stream_begins_with_what_an_emptied_cache_kept() -> None:
    stream = stream_of(EMPTIED)
    assert [(each.address, each.size, each.live) for each in stream.start] == [
        (MIDDLE, 30 * MIB, {}),
        (HIGH, 20 * MIB, {HIGH: 4 * MIB}),
    ]
    assert not stream.has_warm_cache
    compared = compare(stream)
    assert compared.is_exact
    assert (compared.peak_reserved_bytes, compared.num_segments, compared.num_released) == (50 * MIB, 1, 1)
    assert allocated_peak(stream) == 24 * MIB  # and not what makes the start


def test_a_start_that_is_left_out_makes_a_segment_too_many() -> None:
    rest = stream_of(EMPTIED, after=without_first_releases(EMPTIED))
    assert compare(rest).peak_reserved_bytes == 32 * MIB
    alone = replay([0, 1, ~0, 2], [8 * MIB, 12 * MIB, 6 * MIB]).peak_reserved_bytes
    assert rest.start_bytes + alone == 40 * MIB


@pytest.mark.skipif(not is_compiled(), reason="the compiled replay was not built")
def test_the_compiled_replay_makes_segments_for_the_same_requests() -> None:
    assert is_same_compiled(stream_of(EMPTIED)) is None  # it leaves releases to Python
    assert is_same_compiled(stream_of(EMPTIED, after=1))


def test_a_segment_that_only_the_real_allocator_made_is_found() -> None:
    events = list(EMPTIED.events)
    events[1:2] = [Event(MADE, MIDDLE, 20 * MIB, 0), Event(ALLOC, MIDDLE, 8 * MIB, 0)]
    events[4 + 1] = Event(FREED, MIDDLE, 8 * MIB, 0)
    segments = (*EMPTIED.segments, large(MIDDLE, 20 * MIB, {}))
    compared = compare(stream_of(Snapshot("made up", tuple(events), segments)))
    assert compared.first_difference == 1
    assert not compared.is_good


def test_a_block_that_lies_elsewhere_is_found() -> None:
    events = list(EMPTIED.events)
    events[5] = Event(ALLOC, HIGH + 12 * MIB, 6 * MIB, 0)
    segments = (large(HIGH, 20 * MIB, {0: 4 * MIB, 12 * MIB: 6 * MIB}), EMPTIED.segments[1])
    compared = compare(stream_of(Snapshot("made up", tuple(events), segments)))
    assert compared.first_difference is None
    assert (compared.num_alike, compared.num_requests) == (2, 3)
    assert not compared.is_good


def test_a_block_has_what_was_too_little_to_be_split_off() -> None:
    freed = snapshot(
        (ALLOC, HIGH + 8 * MIB, 12 * MIB),
        (FREED, HIGH, 7 * MIB + 512),  # names the request; the block before the other has 8 MiB
        segments=(large(HIGH, 20 * MIB, {8 * MIB: 12 * MIB}),),
    )
    assert start_of(freed)[0].live == {HIGH: 8 * MIB}
    assert stream_of(freed).num_unknown == 1
    assert compare(stream_of(freed)).is_exact


def test_small_blocks_of_the_start_lie_where_they_lay() -> None:
    live = {LOW: 512, LOW + 512: 1024, LOW + MIB: 512, LOW + MIB + 512: 512}
    given = snapshot(
        (ALLOC, LOW, 300),
        (ALLOC, LOW + MIB + 512, 1),  # where no best fit puts it: there is a smaller free block
        segments=(Segment(LOW, 2 * MIB, True, 0, live),),
    )
    assert list(start_of(given)[0].blocks()) == [
        (LOW, 512, True),
        (LOW + 512, 1024, False),
        (LOW + 1536, MIB - 1536, True),
        (LOW + MIB, 512, False),
        (LOW + MIB + 512, MIB - 512, True),
    ]
    assert compare(stream_of(given)).num_alike == 1


def test_a_cache_with_whole_free_segments_is_warm() -> None:
    warm = snapshot(
        (ALLOC, LOW, 12 * MIB), segments=(large(LOW, 12 * MIB, {0: 12 * MIB}), large(HIGH, 20 * MIB, {}))
    )
    assert stream_of(warm).has_warm_cache


@pytest.mark.parametrize(
    "events",
    [
        [(ALLOC, HIGH, MIB)],  # no such block at the end
        [(FREED, LOW, 12 * MIB)],  # still there
        [(MADE, HIGH, 20 * MIB)],  # no such segment
        [(ActionKind.SEGMENT_MAP, LOW, 20 * MIB)],  # an expandable one
        [(MADE, LOW, 12 * MIB)],  # blocks are in it that nobody requested
    ],
)
def test_events_that_cannot_be_undone_are_refused(events: list[tuple[ActionKind, int, int]]) -> None:
    given = snapshot(*events, segments=(large(LOW, 12 * MIB, {0: 12 * MIB}),))
    with pytest.raises(ValueError, match="made up"):
        stream_of(given)


# ── real ones ────────────────────────────────────────────────────────────────


@needs_snapshots
def test_a_short_run_from_an_empty_cache_is_the_same_to_the_byte() -> None:
    compared = compare_snapshot(SNAPSHOTS, "silmont2000-mem_snapshot")
    assert compared.is_exact
    assert compared.is_same_compiled in (True, None)
    assert compared.peak_reserved_bytes == 3_781_165_056


@needs_snapshots
@pytest.mark.parametrize("name", ["kkaitlyn111-ctx512_forward_mixed", "kkaitlyn111-ctx256_fullstep-emptied"])
def test_a_run_from_an_emptied_cache_is_the_same_block_by_block(name: str) -> None:
    stream = stream_of(read_snapshot(Path(SNAPSHOTS), name))
    compared = compare(stream)
    assert not stream.has_warm_cache
    assert compared.num_released > 500
    assert compared.is_exact
