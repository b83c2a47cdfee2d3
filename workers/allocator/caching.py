"""The caching allocator as a program sees it: blocks, statistics and a snapshot of the segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workers.allocator.expandable import ExpandableBlockPools
from workers.allocator.pools import ALLOCATED, UNMAPPED, Block, BlockPools, SegmentWatcher
from workers.allocator.settings import DEFAULT_SETTINGS, SMALL_REQUEST_BYTES, AllocatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBlock:
    """A block of a snapshot; `offset` is its distance in bytes from the segment's start."""

    offset: int
    size: int
    is_allocated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A contiguous piece of device memory, of an expandable segment each contiguous mapped part.

    Attributes:
        pool: `small` or `large`.
        blocks: its tiling, in the order of addresses.
    """

    address: int
    size: int
    stream: int
    pool: str
    blocks: tuple[SegmentBlock, ...]


def make_pools(settings: AllocatorSettings, *, limit_bytes: int | None) -> BlockPools:
    """The pools for these settings; `limit_bytes` bounds what they reserve."""
    kind = ExpandableBlockPools if settings.expandable_segments else BlockPools
    return kind(settings, limit_bytes=limit_bytes)


class CachingAllocator:
    """A model of PyTorch's CUDA caching allocator on one device.

    `limit_bytes` acts as `torch.cuda.set_per_process_memory_fraction` does, and as the end of the
    device's memory: at it, cached memory is released before a request fails. `watcher` is told of
    every change of the segments.

    Attributes:
        allocated_bytes, peak_allocated_bytes: sum of the blocks handed out, which is what
            `torch.cuda.memory_allocated` and `max_memory_allocated` report.
    """

    def __init__(
        self,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        *,
        limit_bytes: int | None = None,
        watcher: SegmentWatcher | None = None,
    ) -> None:
        self.settings = settings
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self._pools = make_pools(settings, limit_bytes=limit_bytes)
        self._pools.watcher = watcher

    @property
    def reserved_bytes(self) -> int:
        """Sum of the segments, which is what `torch.cuda.memory_reserved` reports."""
        return self._pools.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self._pools.peak_reserved_bytes

    @property
    def num_alloc_retries(self) -> int:
        """How often everything cached was released for a request, successfully or not."""
        return self._pools.num_alloc_retries

    @property
    def num_ooms(self) -> int:
        return self._pools.num_ooms

    def malloc(self, num_bytes: int, *, stream: int = 0) -> Block:
        """Allocates for a tensor of `num_bytes`.

        Raises:
            AllocatorOutOfMemory: if the limit leaves no room.
            ValueError: for an empty request, which PyTorch never brings before the allocator.
        """
        if num_bytes < 1:
            raise ValueError(f"a request of {num_bytes} bytes makes no block: skip it")
        size = self.settings.round_size(num_bytes)
        pool = self._pools.pool(is_small=size <= SMALL_REQUEST_BYTES, stream=stream)
        block = self._pools.take(size, pool)
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Frees an allocation; raises `ValueError` if it was freed before."""
        size = block.size  # merging changes it
        self._pools.give(block)
        self.allocated_bytes -= size

    def empty_cache(self) -> int:
        """Releases what is cached, as `torch.cuda.empty_cache` does; returns the bytes."""
        return self._pools.release_cached()

    def segments(self) -> tuple[Segment, ...]:
        """A snapshot of all memory that is reserved, in the order of addresses."""
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
    first = blocks[0]
    return Segment(
        address=first.address,
        size=sum(block.size for block in blocks),
        stream=first.pool.stream,
        pool="small" if first.pool.is_small else "large",
        blocks=tuple(
            SegmentBlock(
                offset=block.address - first.address, size=block.size, is_allocated=block.state == ALLOCATED
            )
            for block in blocks
        ),
    )
