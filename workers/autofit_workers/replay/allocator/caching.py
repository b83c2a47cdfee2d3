"""Caching allocator with the interface of PyTorch's: blocks, statistics and a snapshot of the segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autofit_workers.replay.allocator.expandable import ExpandableBlockPools
from autofit_workers.replay.allocator.pending import EventClock, PendingFrees, keeps_up
from autofit_workers.replay.allocator.pools import ALLOCATED, PENDING, UNMAPPED, Block, BlockPools, Watcher
from autofit_workers.replay.allocator.settings import DEFAULT_SETTINGS, SMALL_REQUEST_BYTES, AllocatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBlock:
    """Block of a segment in a snapshot of the allocator's memory.

    Attributes:
        offset: distance in bytes from the segment's start to the block's.
        is_pending: whether it was freed and waits for other streams.
    """

    offset: int
    size: int
    is_allocated: bool
    is_pending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Contiguous device memory in a snapshot: a segment, or a mapped part of an expandable segment.

    Attributes:
        pool: `small` or `large`.
        blocks: its blocks in the order of addresses, without gaps.
    """

    address: int
    size: int
    stream: int
    pool: str
    blocks: tuple[SegmentBlock, ...]


def make_pools(
    settings: AllocatorSettings, *, limit_bytes: int | None, clock: EventClock = keeps_up
) -> BlockPools:
    """Makes empty block pools, with expandable segments if `settings` say so.

    Args:
        settings: settings of the allocator, as in `PYTORCH_ALLOC_CONF`.
        limit_bytes: most bytes that the pools may reserve; None for no limit.
        clock: decides when the CUDA event of a block that another stream uses is complete.
    """
    kind = ExpandableBlockPools if settings.expandable_segments else BlockPools
    pools = kind(settings, limit_bytes=limit_bytes)
    pools.pending.clock = clock
    return pools


class CachingAllocator:
    """Model of PyTorch's CUDA caching allocator on one device.

    Args:
        settings: settings of the allocator, as in `PYTORCH_ALLOC_CONF`.
        limit_bytes: most bytes that may be reserved, as `torch.cuda.set_per_process_memory_fraction` sets
            them: at the limit, cached memory is released before a request fails. None for no limit.
        clock: decides when the CUDA event of a block that another stream uses is complete.
        watcher: called for every change of the segments and for every block that is freed.

    Attributes:
        allocated_bytes, peak_allocated_bytes: sum of the blocks that are allocated, as
            `torch.cuda.memory_allocated` and `max_memory_allocated` report it; a block that was freed does
            not count, even if it waits for other streams.
    """

    def __init__(
        self,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        *,
        limit_bytes: int | None = None,
        clock: EventClock = keeps_up,
        watcher: Watcher | None = None,
    ) -> None:
        self.settings = settings
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self._pools = make_pools(settings, limit_bytes=limit_bytes, clock=clock)
        self._pools.watcher = watcher

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments, which `torch.cuda.memory_reserved` reports."""
        return self._pools.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self._pools.peak_reserved_bytes

    @property
    def active_bytes(self) -> int:
        """Bytes of all blocks that are allocated, or freed but still used by other streams ("active")."""
        return self._pools.active_bytes

    @property
    def num_alloc_retries(self) -> int:
        """Number of requests for which all cached memory was released, whether they then succeeded or not."""
        return self._pools.num_alloc_retries

    @property
    def num_ooms(self) -> int:
        return self._pools.num_ooms

    def malloc(self, num_bytes: int, *, stream: int = 0) -> Block:
        """Allocates a block for a tensor of `num_bytes`.

        Raises:
            AllocatorOutOfMemory: if the limit leaves no room.
            ValueError: for 0 bytes, a request that PyTorch never passes to its allocator.
        """
        if num_bytes < 1:
            raise ValueError(f"a request of {num_bytes} bytes makes no block: skip it")
        size = self.settings.round_size(num_bytes)
        pool = self._pools.pool(is_small=size <= SMALL_REQUEST_BYTES, stream=stream)
        block = self._pools.take_after_events(size, pool)
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Frees an allocation; raises `ValueError` if it was freed before.

        The block can be reused once the streams that were recorded for it are done.
        """
        size = block.size  # merging changes it
        self._pools.free(block)
        self.allocated_bytes -= size

    def record_stream(self, block: Block, stream: int) -> None:
        """Notes that a stream uses an allocation, as `Tensor.record_stream` does."""
        self._pools.record_stream(block, stream)

    @property
    def pending(self) -> PendingFrees[Block]:
        """Freed blocks that wait until other streams have done their work on them.

        The caller reports each wait of the host for a stream with `PendingFrees.wait`.
        """
        return self._pools.pending

    def empty_cache(self) -> int:
        """Waits for all streams and releases cached memory, as `torch.cuda.empty_cache` does.

        Returns:
            The bytes released.
        """
        return self._pools.release_cached()

    def segments(self) -> tuple[Segment, ...]:
        """Snapshot of all reserved memory as segments, in the order of addresses."""
        parts = (part for _, front in sorted(self._pools.fronts.items()) for part in _mapped_parts(front))
        return tuple(_segment(part) for part in parts)


def _mapped_parts(front: Block) -> Iterator[list[Block]]:
    part: list[Block] = []
    block: Block | None = front
    while block is not None:
        if block.state != UNMAPPED:
            part.append(block)
        elif part:
            yield part
            part = []
        block = block.next
    if part:
        yield part


def _segment(blocks: list[Block]) -> Segment:
    """Snapshot of a segment, made of its blocks."""
    first = blocks[0]
    return Segment(
        address=first.address,
        size=sum(block.size for block in blocks),
        stream=first.pool.stream,
        pool="small" if first.pool.is_small else "large",
        blocks=tuple(
            SegmentBlock(
                offset=block.address - first.address,
                size=block.size,
                is_allocated=block.state == ALLOCATED,
                is_pending=block.state == PENDING,
            )
            for block in blocks
        ),
    )
