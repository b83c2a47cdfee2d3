"""Block pools with expandable segments: a range of addresses for each stream and pool, mapped in pages.

    range   |  cached  |  allocated  |  cached  |       unmapped ...       |
    memory  |       page       |       page     |

Splitting, merging and best fit work as in `pools`; what differs is how a segment gets more memory
(`_grow`) and how memory is released (`_release_pool`).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from autofit_workers.replay.allocator.pools import (
    ALLOCATED,
    CACHED,
    UNMAPPED,
    ActionKind,
    Block,
    BlockPools,
    Pool,
    cut_block,
    segment_block,
)

# PyTorch reserves 9/8 of the device's memory per range and opens another range when holes have used
# that up; here a range is never used up.
_RANGE_BYTES = 1 << 43


class ExpandableBlockPools(BlockPools):
    """Block pools of one device with `expandable_segments:True`.

    A request fails in either of two cases. The first is PyTorch's own check: the segment that would be made
    without `expandable_segments` would exceed the limit. The second is of this model: the pages to be mapped,
    which may be larger than that segment, would exceed the limit. It treats the limit as the end of the
    device's memory.
    """

    is_expandable = True

    def _grow(self, size: int, pool: Pool) -> Block | None:
        """Block of `size` bytes made by mapping pages; None if that would exceed the memory limit."""
        if self.reserved_bytes + self.settings.segment_bytes(size) > self.limit_bytes:
            return None
        candidate = self._lowest_extensible(size, pool)
        block: Block | None = candidate
        if candidate.state == UNMAPPED:
            block = self._map(candidate, min(size, candidate.size))
        while block is not None and block.size < size:
            following = block.next
            assert following is not None  # unmapped: `_lowest_extensible` counted it
            block = self._map(following, min(size - block.size, following.size))
        if block is not None:
            _forget_cached(block)
        return block

    def _release_oversize(self, size: int, pool: Pool) -> bool:  # noqa: ARG002 (the base class's signature)
        return False  # PyTorch passes over blocks of expandable segments here

    def _lowest_extensible(self, size: int, pool: Pool) -> Block:
        """First block of the lowest run of cached and unmapped neighbours that add up to `size` bytes.

        At least one block of the run is unmapped. A new range of addresses is reserved if there is no such
        run.
        """
        for _, unmapped in pool.unmapped:
            previous = unmapped.prev
            start = previous if previous is not None and previous.state == CACHED else unmapped
            room_bytes = 0
            block: Block | None = start
            while block is not None and block.state in (CACHED, UNMAPPED) and room_bytes < size:
                room_bytes += block.size
                block = block.next
            if room_bytes >= size:
                return start
        page_bytes = pool.page_bytes
        range_bytes = -(-max(size, _RANGE_BYTES) // page_bytes) * page_bytes
        address = self.addresses.reserve(range_bytes, alignment=page_bytes)
        block = segment_block(address, range_bytes, pool, UNMAPPED)
        self.fronts[address] = block
        insort(pool.unmapped, (address, block))
        return block

    def _map(self, block: Block, size: int) -> Block | None:
        """Maps pages for the first `size` bytes of an unmapped block, and caches them as a block.

        Returns:
            The cached block that the pages have become part of; None if they would exceed the limit.
        """
        page_bytes = block.pool.page_bytes
        mapped_bytes = -(-size // page_bytes) * page_bytes
        if self.reserved_bytes + mapped_bytes > self.limit_bytes:
            return None
        _forget_unmapped(block)
        if mapped_bytes < block.size:
            rest = cut_block(block, mapped_bytes)
            rest.state = UNMAPPED
            insort(block.pool.unmapped, (rest.address, rest))
        self._count_gained(ActionKind.SEGMENT_MAP, block.address, mapped_bytes, block.pool)
        previous = block.prev
        joins_previous = previous is not None and previous.state == CACHED
        block.state = ALLOCATED
        self.give(block)
        return previous if joins_previous else block

    def _release_pool(self, pool: Pool) -> None:
        for _, _, block in tuple(pool.cached):
            self._unmap(block)

    def _unmap(self, block: Block) -> None:
        """Unmaps the pages that a cached block covers completely."""
        pool = block.pool
        page_bytes = pool.page_bytes
        start = -(-block.address // page_bytes) * page_bytes
        end = (block.address + block.size) // page_bytes * page_bytes
        if start >= end:
            return
        _forget_cached(block)
        if block.address < start:
            front = block
            block = cut_block(front, start - front.address)
            insort(pool.cached, (front.size, front.address, front))
        if block.size > end - start:
            rest = cut_block(block, end - start)
            insort(pool.cached, (rest.size, rest.address, rest))
        self._count_lost(ActionKind.SEGMENT_UNMAP, block.address, block.size, pool)
        block.state = UNMAPPED
        previous, following = block.prev, block.next
        if previous is not None and previous.state == UNMAPPED:
            _forget_unmapped(previous)
            _join(previous, block)
            block = previous
        if following is not None and following.state == UNMAPPED:
            _forget_unmapped(following)
            _join(block, following)
        if block.prev is None and block.next is None:
            del self.fronts[block.address]
            self.addresses.release(block.address, block.size)
        else:
            insort(pool.unmapped, (block.address, block))


def _join(left: Block, right: Block) -> None:
    left.size += right.size
    left.next = following = right.next
    if following is not None:
        following.prev = left


def _forget_cached(block: Block) -> None:
    cached = block.pool.cached
    del cached[bisect_left(cached, (block.size, block.address))]


def _forget_unmapped(block: Block) -> None:
    unmapped = block.pool.unmapped
    del unmapped[bisect_left(unmapped, (block.address,))]
