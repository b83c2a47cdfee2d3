from __future__ import annotations

import pytest

from autofit_workers.replay.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator
from autofit_workers.replay.allocator.caching import make_pools
from autofit_workers.spec.trace import GRAPHS_POOL

MIB = 1 << 20


def test_peaks_stay_when_memory_is_given_back() -> None:
    allocator = CachingAllocator()
    kept = allocator.malloc(4 * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (34 * MIB, 50 * MIB)

    allocator.empty_cache()
    allocator.free(kept)
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (34 * MIB, 50 * MIB)


def test_empty_cache_returns_what_it_released() -> None:
    allocator = CachingAllocator()
    allocator.malloc(4 * MIB)
    allocator.free(allocator.malloc(30 * MIB))

    assert allocator.empty_cache() == 30 * MIB
    assert allocator.empty_cache() == 0


def test_the_pool_of_cuda_graphs_keeps_what_it_has() -> None:
    pools = make_pools(AllocatorSettings(), limit_bytes=40 * MIB)
    size = 30 * MIB
    graphs = pools.pool(is_small=False, stream=GRAPHS_POOL)
    pools.free(pools.take(size, graphs))
    assert pools.release_cached() == 0
    with pytest.raises(AllocatorOutOfMemory):
        pools.take(size, pools.pool(is_small=False))
    assert pools.take(size, graphs).pool is graphs


def test_running_out_of_memory_says_what_was_held() -> None:
    allocator = CachingAllocator(limit_bytes=30 * MIB)
    allocator.malloc(4 * MIB)

    with pytest.raises(AllocatorOutOfMemory, match="out of memory") as caught:
        allocator.malloc(25 * MIB - 1)

    error = caught.value
    assert (error.requested_bytes, error.limit_bytes) == (25 * MIB, 30 * MIB)
    assert (error.reserved_bytes, error.allocated_bytes) == (20 * MIB, 4 * MIB)
    assert (allocator.num_ooms, allocator.num_alloc_retries) == (1, 1)
    assert allocator.malloc(5 * MIB).size == 5 * MIB, "the allocator goes on after a failure"


@pytest.mark.parametrize("num_bytes", [0, -1])
def test_an_empty_request_is_refused(num_bytes: int) -> None:
    with pytest.raises(ValueError, match="makes no block"):
        CachingAllocator().malloc(num_bytes)


def test_freeing_a_block_twice_is_refused() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(1)
    allocator.free(block)

    with pytest.raises(ValueError, match="freed before"):
        allocator.free(block)
    assert allocator.allocated_bytes == 0


def test_a_block_that_was_merged_with_its_neighbour_is_not_freed_again() -> None:
    allocator = CachingAllocator()
    first, second, _ = (allocator.malloc(4 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(second)

    with pytest.raises(ValueError, match=r"^the block at address \d+ is not allocated: it was freed before"):
        allocator.free(second)
    assert allocator.allocated_bytes == 4 * MIB


def test_a_freed_block_has_no_streams() -> None:
    pools = make_pools(AllocatorSettings(), limit_bytes=None)
    block = pools.take(4 * MIB, pools.pool(is_small=False))
    pools.free(block)

    with pytest.raises(ValueError, match="the block at address 0 is not allocated: no stream can use it"):
        pools.record_stream(block, 1)


def test_the_most_that_can_be_had_is_the_largest_cached_block_or_the_room_below_the_limit() -> None:
    pools = make_pools(AllocatorSettings(), limit_bytes=100 * MIB)
    assert pools.obtainable_bytes() == 100 * MIB
    block = pools.take(30 * MIB, pools.pool(is_small=False))
    assert pools.obtainable_bytes() == 70 * MIB
    pools.free(block)
    assert pools.obtainable_bytes() == 70 * MIB
    pools.take(60 * MIB, pools.pool(is_small=False))
    assert pools.obtainable_bytes() == 30 * MIB
    pools.take(30 * MIB, pools.pool(is_small=False))
    pools.take(10 * MIB, pools.pool(is_small=False, stream=1))
    assert pools.obtainable_bytes() == 0


def test_the_smallest_oversize_block_that_is_large_enough_is_given_back_first() -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=32 * MIB), limit_bytes=140 * MIB)
    for block in [allocator.malloc(60 * MIB), allocator.malloc(76 * MIB)]:
        allocator.free(block)

    allocator.malloc(34 * MIB)  # too little for either of the two
    assert (allocator.reserved_bytes, allocator.num_alloc_retries) == ((76 + 34) * MIB, 0)


def test_segments_of_one_age_are_collected_together_and_once() -> None:
    settings = AllocatorSettings(garbage_collection_threshold=0.1)
    allocator = CachingAllocator(settings, limit_bytes=400 * MIB)
    kept = allocator.malloc(200 * MIB)
    for block in [allocator.malloc(30 * MIB), allocator.malloc(40 * MIB)]:
        allocator.free(block)

    allocator.malloc(50 * MIB)  # 230 MiB above the threshold, of which 70 can be given back
    assert allocator.reserved_bytes == (200 + 50) * MIB
    allocator.free(kept)


def test_the_growing_end_of_an_expandable_segment_is_used_last() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    holes = [(allocator.malloc(size * MIB), allocator.malloc(2 * MIB))[0] for size in (16, 16, 18)]
    allocator.malloc(10 * MIB)  # to 66 MiB of the 80 that are mapped: 14 are left at the end
    for hole in holes:
        allocator.free(hole)

    # The end fits best all along. Of holes that are as large the one at the lower address is taken.
    taken = [allocator.malloc(12 * MIB).address // MIB for _ in range(4)]
    assert taken == [0, 18, 36, 66]


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit_bytes is -1: give 0 or more, or None for no limit"):
        CachingAllocator(limit_bytes=-1)


def test_an_expandable_segment_without_pages_gives_its_addresses_back() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    allocator.free(allocator.malloc(30 * MIB))
    allocator.empty_cache()

    assert allocator.malloc(1).address == 0


def test_snapshots_name_pool_and_stream() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1, stream=7)
    allocator.malloc(30 * MIB)

    assert [(s.pool, s.stream, s.address) for s in allocator.segments()] == [
        ("small", 7, 0),
        ("large", 0, 2 * MIB),
    ]
