from __future__ import annotations

import pytest

from autofit_workers.replay.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator

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


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="None for no limit"):
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
