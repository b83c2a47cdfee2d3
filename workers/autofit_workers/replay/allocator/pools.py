"""Rules by which PyTorch's CUDA caching allocator hands out, splits, merges and releases blocks.

Modelled on `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.11–2.15, for one device. Of private pools it
has that of CUDA graphs, as a stream. This is the one implementation of the rules: `CachingAllocator` adds
statistics to it, `replay` a loop.

A segment is one piece of device memory, and its blocks tile it:

    segment   |  A: allocated  |  B: cached  |  C: allocated  |
    links     None <- A <----------> B <----------> C -> None

The block at a segment's front stays the same object for as long as the segment lives: splits cut the
rest off, merges extend the left block.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from autofit_workers.replay.allocator.addresses import AddressSpace
from autofit_workers.replay.allocator.pending import PendingFrees, keeps_up
from autofit_workers.replay.allocator.settings import (
    BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)
from autofit_workers.spec.pythons import StrEnum
from autofit_workers.spec.trace import GRAPHS_POOL

CACHED = 0
ALLOCATED = 1
UNMAPPED = 2  # address space without memory: expandable segments only
PENDING = 3  # freed, but other streams may still be using it

_UNBOUNDED = sys.maxsize


class ActionKind(StrEnum):
    """Kind of an allocator's action, by its name in PyTorch's memory snapshots."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"

    @property
    def reserves(self) -> int:
        """1 if the action adds to reserved memory, -1 if it takes from it, else 0."""
        if self in (ActionKind.SEGMENT_ALLOC, ActionKind.SEGMENT_MAP):
            return 1
        return -1 if self in (ActionKind.SEGMENT_FREE, ActionKind.SEGMENT_UNMAP) else 0


# Called for every change of the segments and every freed block, with the kind, first address, bytes, and the
# stream of the pool.
Watcher = Callable[[ActionKind, int, int, int], None]


class AllocatorOutOfMemory(Exception):  # noqa: N818 (an answer of the model rather than a mistake)
    """A request does not fit under the memory limit, even after all cached memory was released.

    Attributes:
        requested_bytes: size of the block that was requested, rounded up.
        reserved_bytes, allocated_bytes: bytes reserved and allocated when the request failed.
        limit_bytes: the most bytes that the allocator may reserve.
    """

    def __init__(
        self, *, requested_bytes: int, reserved_bytes: int, allocated_bytes: int, limit_bytes: int
    ) -> None:
        super().__init__(
            f"out of memory: {requested_bytes} B were requested while {reserved_bytes} B were reserved, "
            f"{allocated_bytes} B of them allocated, of the {limit_bytes} B allowed"
        )
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes
        self.allocated_bytes = allocated_bytes
        self.limit_bytes = limit_bytes


class Block:
    """Contiguous part of a segment, and the handle of an allocation until that is freed.

    Attributes:
        state: `ALLOCATED`, `CACHED`, `UNMAPPED` or `PENDING`.
        prev, next: the neighbours in the segment.
        cached_at: number of searches of the large pool up to the moment the block was last freed. Garbage
            collection (`garbage_collection_threshold`) computes the age of a segment from it. The rest of a
            block that was split has no such number: only blocks that are whole segments are collected.
    """

    # No __init__: calling one would double the cost of a split (all fields are set by `cut_block`
    # and `segment_block`).
    __slots__ = ("address", "cached_at", "next", "pool", "prev", "size", "state")

    address: int
    size: int
    state: int
    prev: Block | None
    next: Block | None
    pool: Pool
    cached_at: int


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """Pool of the blocks of one stream and one size class.

    Attributes:
        cached: the free blocks as (size, address, block), ascending.
        unmapped: expandable segments' stretches without memory as (address, block), ascending.
        min_remainder_bytes, max_split_request_bytes: a block is split if at least `min_remainder_bytes` would
            be left of it, and if the request is smaller than `max_split_request_bytes`.
        page_bytes: granularity at which expandable segments grow.
    """

    stream: int
    is_small: bool
    min_remainder_bytes: int
    max_split_request_bytes: int
    page_bytes: int
    cached: list[tuple[int, int, Block]] = field(default_factory=list)
    unmapped: list[tuple[int, Block]] = field(default_factory=list)


def segment_block(address: int, size: int, pool: Pool, state: int) -> Block:
    """Makes the block that covers a whole new segment."""
    block = Block()
    block.address = address
    block.size = size
    block.state = state
    block.prev = None
    block.next = None
    block.pool = pool
    return block


def cut_block(block: Block, size: int) -> Block:
    """Shortens `block` to `size`, and returns the rest as a cached block that is not in its pool yet."""
    rest = Block()
    rest.address = block.address + size
    rest.size = block.size - size
    rest.state = CACHED
    rest.prev = block
    rest.next = following = block.next
    rest.pool = block.pool
    if following is not None:
        following.prev = rest
    block.next = rest
    block.size = size
    return rest


class BlockPools:
    """Block pools of one device, with segments of fixed size.

    Attributes:
        fronts: the first block of every segment, by address.
        reserved_bytes, peak_reserved_bytes: sum of the segments, now and at its largest so far.
        num_alloc_retries: number of requests for which all cached memory had to be released; the
            failed request that ends in `AllocatorOutOfMemory` counts, as in PyTorch.
        num_ooms: number of requests that failed.
        pending: the freed blocks that wait for other streams.
        watcher: function called for changes of segments and for freed blocks; None for none.
    """

    is_expandable = False

    def __init__(self, settings: AllocatorSettings, *, limit_bytes: int | None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(f"limit_bytes is {limit_bytes}: give 0 or more, or None for no limit")
        self.settings = settings
        self.limit_bytes = _UNBOUNDED if limit_bytes is None else limit_bytes
        self.addresses = AddressSpace()
        self.fronts: dict[int, Block] = {}
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.pending = PendingFrees[Block](keeps_up)
        self.watcher: Watcher | None = None
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._max_split_bytes = settings.max_split_size_bytes or _UNBOUNDED
        self._rounding_bytes = settings.non_split_rounding_bytes
        self._num_large_searches = 0
        self._collects_garbage = limit_bytes is not None and settings.garbage_collection_threshold is not None

    @property
    def active_bytes(self) -> int:
        """Bytes of all blocks handed out or pending, summed over all blocks at each call: slow in a loop."""
        cached = sum(size for pool in self._pools.values() for size, _, _ in pool.cached)
        return self.reserved_bytes - cached

    def pool(self, *, is_small: bool, stream: int = 0) -> Pool:
        """Pool of a stream for requests of up to 1 MiB if `is_small`, else for larger requests."""
        pool = self._pools.get((stream, is_small))
        if pool is None:
            splits_all = is_small or self.is_expandable
            pool = self._pools[stream, is_small] = Pool(
                stream=stream,
                is_small=is_small,
                min_remainder_bytes=BLOCK_BYTES if splits_all else SMALL_REQUEST_BYTES + 1,
                max_split_request_bytes=_UNBOUNDED if splits_all else self._max_split_bytes,
                page_bytes=SMALL_SEGMENT_BYTES if is_small else self.settings.large_segment_size_bytes,
            )
        return pool

    def obtainable_bytes(self) -> int:
        """Largest block in bytes that can be had without a release: a cached one, or room under the limit.

        PyTorch computes it as `cacheInfo`, to skip cuDNN's plans whose workspace is larger.
        """
        cached = (pool.cached[-1][0] for pool in self._pools.values() if pool.cached)
        return max(self.limit_bytes - self.reserved_bytes, *cached, 0)

    def take(self, size: int, pool: Pool) -> Block:
        """Hands out the best-fitting block of `pool`, or of a new segment.

        Args:
            size: bytes of the request, rounded as the allocator rounds them.
            pool: pool of the request's stream and size class.

        Raises:
            AllocatorOutOfMemory: there is no such block, and no memory for a segment even after all cached
                memory was released.
        """
        cached = pool.cached
        index = bisect_left(cached, (size,))
        if self.is_expandable:
            index = _least_extensible(cached, index)
        if self._collects_garbage and not pool.is_small:
            self._num_large_searches += 1
        if index == len(cached):
            block = self._reserve(size, pool)
        else:
            block = cached[index][2]
            # A block of max_split_size or more would be wasted on a much smaller request.
            if block.size >= self._max_split_bytes and (
                size < self._max_split_bytes or block.size >= size + self._rounding_bytes
            ):
                block = self._reserve(size, pool)
            else:
                del cached[index]
        if block.size - size >= pool.min_remainder_bytes and size < pool.max_split_request_bytes:
            rest = cut_block(block, size)
            insort(cached, (rest.size, rest.address, rest))
        block.state = ALLOCATED
        return block

    def give(self, block: Block) -> None:
        """Frees an allocated block: merges it with its cached neighbours, and caches it."""
        if block.state != ALLOCATED:
            raise ValueError(f"the block at address {block.address} is not allocated: it was freed before")
        cached = block.pool.cached
        previous = block.prev
        if previous is None or previous.state != CACHED:
            block.state = CACHED
            following = block.next
        else:
            del cached[bisect_left(cached, (previous.size, previous.address))]
            previous.size += block.size
            previous.next = following = block.next
            if following is not None:
                following.prev = previous
            block.state = CACHED
            block = previous
        if following is not None and following.state == CACHED:
            del cached[bisect_left(cached, (following.size, following.address))]
            block.size += following.size
            block.next = following = following.next
            if following is not None:
                following.prev = block
        block.cached_at = self._num_large_searches
        insort(cached, (block.size, block.address, block))

    def record_stream(self, block: Block, stream: int) -> None:
        """Notes that another stream uses a block; ignores the block's own stream (`recordStream`)."""
        if block.state != ALLOCATED:
            raise ValueError(f"the block at address {block.address} is not allocated: no stream can use it")
        if stream != block.pool.stream:
            self.pending.use(block, stream)

    def take_after_events(self, size: int, pool: Pool) -> Block:
        """Allocates a block like `take`, after freeing the pending blocks whose CUDA events are complete."""
        self._take_back(self.pending.over())
        return self.take(size, pool)

    def free(self, block: Block) -> None:
        """Frees a block, which stays pending until the other streams recorded for it are done."""
        if block.state == ALLOCATED and self.pending.holds(block):
            block.state = PENDING
        else:
            self._complete(block)

    def _take_back(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.state = ALLOCATED
            self._complete(block)

    def _complete(self, block: Block) -> None:
        size = block.size  # merging changes it
        self.give(block)
        if self.watcher is not None:
            self.watcher(ActionKind.FREE_COMPLETED, block.address, size, block.pool.stream)

    def release_cached(self) -> int:
        """Releases every segment that is entirely cached; returns the bytes released.

        The host waits for all streams first, so that nothing is pending. The pool of CUDA graphs keeps its
        segments, as their kernels have the addresses (`release_cached_blocks`).
        """
        self._take_back(self.pending.all_over())
        before_bytes = self.reserved_bytes
        for pool in self._pools.values():
            if pool.stream != GRAPHS_POOL:
                self._release_pool(pool)
        return before_bytes - self.reserved_bytes

    def _reserve(self, size: int, pool: Pool) -> Block:
        """Block of a new segment; at the limit releases cached memory, and raises if that is not enough."""
        if self._collects_garbage:
            self._collect_garbage()
        block = self._grow(size, pool)
        if block is None and self._release_oversize(size, pool):
            block = self._grow(size, pool)
        if block is None:
            self.release_cached()
            # PyTorch does not search the pool again, though pending blocks have come back to it just now.
            self.num_alloc_retries += 1
            block = self._grow(size, pool)
        if block is None:
            self.num_ooms += 1
            raise AllocatorOutOfMemory(
                requested_bytes=size,
                reserved_bytes=self.reserved_bytes,
                allocated_bytes=self.active_bytes,  # nothing is pending by now
                limit_bytes=self.limit_bytes,
            )
        return block

    def _count_gained(self, kind: ActionKind, address: int, num_bytes: int, pool: Pool) -> None:
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        if self.watcher is not None:
            self.watcher(kind, address, num_bytes, pool.stream)

    def _count_lost(self, kind: ActionKind, address: int, num_bytes: int, pool: Pool) -> None:
        self.reserved_bytes -= num_bytes
        if self.watcher is not None:
            self.watcher(kind, address, num_bytes, pool.stream)

    def _grow(self, size: int, pool: Pool) -> Block | None:
        """Adds a segment for a block of `size` bytes; None if it would exceed the memory limit."""
        segment_bytes = self.settings.segment_bytes(size)
        if self.reserved_bytes + segment_bytes > self.limit_bytes:
            return None
        block = segment_block(self.addresses.reserve(segment_bytes), segment_bytes, pool, CACHED)
        self._count_gained(ActionKind.SEGMENT_ALLOC, block.address, segment_bytes, pool)
        self.fronts[block.address] = block
        return block

    def _release_segment(self, block: Block) -> None:
        """Releases the segment that a cached block covers whole; the caller drops the block from its pool."""
        del self.fronts[block.address]
        self.addresses.release(block.address, block.size)
        self._count_lost(ActionKind.SEGMENT_FREE, block.address, block.size, block.pool)

    def _release_pool(self, pool: Pool) -> None:
        kept = []
        for entry in pool.cached:
            if _is_whole_segment(entry[2]):
                self._release_segment(entry[2])
            else:
                kept.append(entry)
        pool.cached[:] = kept

    def _release_oversize(self, size: int, pool: Pool) -> bool:
        """Releases cached oversize blocks to make room for a segment of `size` bytes.

        It releases the smallest one that is at least `size`; if there is none, the largest ones until `size`
        bytes are released. Oversize blocks are those of `max_split_size` or more; they are never split, so
        each is a whole segment.

        Returns:
            Whether `size` bytes were released.
        """
        if self._max_split_bytes == _UNBOUNDED:
            return False
        cached = pool.cached
        index = bisect_left(cached, (size,))
        if index < len(cached):
            self._release_segment(cached.pop(index)[2])
            return True
        released_bytes = 0
        while released_bytes < size and cached and cached[-1][0] >= self._max_split_bytes:
            released_bytes += cached[-1][0]
            self._release_segment(cached.pop()[2])
        return released_bytes >= size

    def _collect_garbage(self) -> None:
        """Releases the large segments unused longest, while reserved memory exceeds a share of the limit.

        The share is `garbage_collection_threshold`. Each round releases all segments of at least average age,
        until enough is released; an age is the number of searches of the large pool since the block was
        cached.
        """
        threshold = self.settings.garbage_collection_threshold
        assert threshold is not None
        excess_bytes = self.reserved_bytes - int(threshold * self.limit_bytes)
        pools = [pool for pool in self._pools.values() if not pool.is_small]
        whole = [block for pool in pools for _, _, block in pool.cached if _is_whole_segment(block)]
        while excess_bytes > 0 and whole:
            now = self._num_large_searches
            average_age = sum(now - block.cached_at for block in whole) / len(whole)
            for block in [b for b in whole if now - b.cached_at >= average_age]:
                cached = block.pool.cached
                del cached[bisect_left(cached, (block.size, block.address))]
                self._release_segment(block)
                excess_bytes -= block.size
            whole = [b for b in whole if now - b.cached_at < average_age]


def _is_whole_segment(block: Block) -> bool:
    return block.prev is None and block.next is None


def _least_extensible(cached: list[tuple[int, int, Block]], index: int) -> int:
    """Index in `cached` of the block to hand out, where segments are expandable.

    A block's room is its size plus the unmapped address space after it, into which it could grow. From the
    best fit on, the next larger block is preferred as long as its room is smaller. So the growing end of a
    segment is used last, as in PyTorch.

    Args:
        cached: the pool's free blocks as (size, address, block), ascending.
        index: index of the best fit, the smallest block that is large enough.
    """
    while index + 1 < len(cached) and _room(cached[index + 1][2]) < _room(cached[index][2]):
        index += 1
    return index


def _room(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)
