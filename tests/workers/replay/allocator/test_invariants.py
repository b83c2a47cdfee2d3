"""What holds after every step of any program, under all settings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import (
    AllocatorOutOfMemory,
    AllocatorSettings,
    Block,
    CachingAllocator,
    Segment,
    SegmentBlock,
    lags,
)

MIB = 1 << 20

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(1, 64 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 11 * MIB, 20 * MIB, 31 * MIB, 40 * MIB]),
)
LIMITS = st.none() | st.integers(2 * MIB, 200 * MIB)
SETTINGS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.sampled_from([None, 32 * MIB, 50 * MIB]),
    roundup_power2_divisions=st.sampled_from([0, 4, (0, 2) * 8]),
    garbage_collection_threshold=st.none() | st.floats(0.05, 0.95),
    large_segment_size_bytes=st.sampled_from([20 * MIB, 31 * MIB]),
)
# ("malloc", bytes, stream), ("free", which of the live blocks), ("use", which of them, stream),
# ("wait", stream) or ("release",)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.sampled_from([0, 0, 0, 1])),
        st.tuples(st.just("free"), st.integers(0, 1 << 16)),
        st.tuples(st.just("use"), st.integers(0, 1 << 16), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.integers(0, 2)),
        st.tuples(st.just("release")),
    ),
    min_size=10,
    max_size=60,
)
Actions = list[tuple[str, int, int] | tuple[str, int] | tuple[str]]


class Program:
    """Drives an allocator by actions, and knows which blocks are live."""

    def __init__(self, settings: AllocatorSettings, limit_bytes: int | None) -> None:
        self.allocator = CachingAllocator(settings, limit_bytes=limit_bytes, clock=lags)
        self.limit_bytes = limit_bytes
        self.live: list[tuple[Block, int, int]] = []  # with the bytes requested and the stream

    def act(self, action: tuple[str, int, int] | tuple[str, int] | tuple[str]) -> None:
        match action:
            case ("malloc", num_bytes, stream):
                try:
                    block = self.allocator.malloc(num_bytes, stream=stream)
                except AllocatorOutOfMemory:
                    assert self.limit_bytes is not None
                else:
                    self.live.append((block, num_bytes, stream))
            case ("free", which):
                if self.live:
                    self.allocator.free(self.live.pop(which % len(self.live))[0])
            case ("use", which, stream):
                if self.live:
                    self.allocator.record_stream(self.live[which % len(self.live)][0], stream)
            case ("wait", stream):
                self.allocator.pending.wait(stream)
            case _:
                self.allocator.empty_cache()

    def check(self) -> None:
        allocator = self.allocator
        segments = allocator.segments()
        for segment in segments:
            check_tiling(segment)
        assert all(a.address + a.size <= b.address for a, b in pairwise(segments)), "segments overlap"
        allocated = {
            (segment.address + block.offset, block.size, segment.stream)
            for segment in segments
            for block in segment.blocks
            if block.is_allocated
        }
        assert allocated == {(block.address, block.size, stream) for block, _, stream in self.live}
        assert all(block.size >= num_bytes for block, num_bytes, _ in self.live)
        assert allocator.allocated_bytes == sum(block.size for block, _, _ in self.live)
        assert allocator.reserved_bytes == sum(segment.size for segment in segments)
        pending_bytes = sum(b.size for segment in segments for b in segment.blocks if b.is_pending)
        assert allocator.active_bytes == allocator.allocated_bytes + pending_bytes, (
            "a cached block is in no list"
        )
        assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes
        assert allocator.allocated_bytes <= allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes
        if self.limit_bytes is not None:
            assert allocator.peak_reserved_bytes <= self.limit_bytes


def check_tiling(segment: Segment) -> None:
    end = 0
    for block in segment.blocks:
        assert block.offset == end
        assert block.size > 0
        assert block.size % 512 == 0
        end += block.size
    assert end == segment.size
    assert all(is_active(a) or is_active(b) for a, b in pairwise(segment.blocks)), "cached side by side"


def is_active(block: SegmentBlock) -> bool:
    return block.is_allocated or block.is_pending


@given(SETTINGS, LIMITS, ACTIONS)
def test_blocks_tile_their_segments_and_no_byte_is_lost(
    settings: AllocatorSettings, limit_bytes: int | None, actions: Actions
) -> None:
    program = Program(settings, limit_bytes)
    for action in actions:
        program.act(action)
        program.check()


@given(SETTINGS, LIMITS, ACTIONS)
def test_freeing_everything_and_releasing_returns_to_zero(
    settings: AllocatorSettings, limit_bytes: int | None, actions: Actions
) -> None:
    program = Program(settings, limit_bytes)
    for action in actions:
        program.act(action)
    allocator = program.allocator
    for block, _, _ in program.live:
        allocator.free(block)
    reserved_bytes = allocator.reserved_bytes

    assert allocator.empty_cache() == reserved_bytes
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator.segments()) == (0, 0, ())
    # An expandable segment whose first page did not fit under the limit is an empty range of addresses.
    assert all(front.next is None for front in allocator._pools.fronts.values()), "the range is in pieces"


@given(SETTINGS, LIMITS, ACTIONS)
def test_the_same_program_gives_the_same_segments(
    settings: AllocatorSettings, limit_bytes: int | None, actions: Actions
) -> None:
    programs = [Program(settings, limit_bytes) for _ in range(2)]
    for program in programs:
        for action in actions:
            program.act(action)

    first, second = (program.allocator for program in programs)
    assert first.segments() == second.segments()
    assert first.peak_reserved_bytes == second.peak_reserved_bytes
    assert first.num_alloc_retries == second.num_alloc_retries


@given(SETTINGS, ACTIONS)
def test_without_a_limit_nothing_is_retried(settings: AllocatorSettings, actions: Actions) -> None:
    program = Program(settings, None)
    for action in actions:
        program.act(action)

    assert (program.allocator.num_alloc_retries, program.allocator.num_ooms) == (0, 0)


def test_a_block_is_freed_once_and_used_no_more_though_it_waits() -> None:
    allocator = CachingAllocator(clock=lags)
    block = allocator.malloc(4 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)

    with pytest.raises(ValueError, match="was freed before"):
        allocator.free(block)
    with pytest.raises(ValueError, match="no stream can use it"):
        allocator.record_stream(block, 2)
    assert (allocator.allocated_bytes, allocator.active_bytes) == (0, 4 * MIB)
