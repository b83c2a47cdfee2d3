"""Segments and the blocks in them by address, where a snapshot's events are followed or undone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from autofit_workers.replay.snapshots.snapshot import Segment


class Layout:
    """Segments in the order of addresses, and their blocks that are not free.

    Args:
        segments: what there is at first; they are copied.
    """

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = {
            each.address: Segment(each.address, each.size, each.is_small, each.stream, dict(each.live))
            for each in segments
        }
        self._order = sorted(self.segments)
        self._blocks = {each.address: sorted(each.live) for each in self.segments.values()}

    def in_order(self) -> list[Segment]:
        return [self.segments[address] for address in self._order]

    def at(self, address: int) -> Segment:
        """Segment that an address lies in; raises `ValueError` if there is none."""
        place = bisect_right(self._order, address) - 1
        segment = self.segments[self._order[place]] if place >= 0 else None
        if segment is None or address >= segment.address + segment.size:
            raise ValueError(f"no segment has the address {address}")
        return segment

    def add(self, segment: Segment) -> None:
        """Adds a free segment; raises `ValueError` if one is there."""
        if segment.address in self.segments:
            raise ValueError(f"a segment is at {segment.address}")
        self.segments[segment.address] = segment
        insort(self._order, segment.address)
        self._blocks[segment.address] = []

    def remove(self, address: int, size: int) -> None:
        """Removes a segment; raises `ValueError` unless there is one of that size, and it is free."""
        segment = self.segments.get(address)
        if segment is None or segment.size != size or segment.live:
            raise ValueError(f"no free segment of {size} bytes is at {address}")
        del self.segments[address], self._blocks[address]
        del self._order[bisect_left(self._order, address)]

    def put(self, segment: Segment, address: int, size: int) -> None:
        """Makes a block; raises `ValueError` if one is there."""
        if address in segment.live:
            raise ValueError(f"a block is at {address}")
        segment.live[address] = size
        insort(self._blocks[segment.address], address)

    def take(self, segment: Segment, address: int) -> int:
        """Removes a block and returns its bytes; raises `ValueError` if there is none."""
        if address not in segment.live:
            raise ValueError(f"no block is at {address}")
        blocks = self._blocks[segment.address]
        del blocks[bisect_left(blocks, address)]
        return segment.live.pop(address)

    def before(self, segment: Segment, address: int) -> int | None:
        """Address of the block before an address; None if none is."""
        blocks = self._blocks[segment.address]
        place = bisect_left(blocks, address)
        return blocks[place - 1] if place else None

    def after(self, segment: Segment, address: int) -> int:
        """Address of the block after an address, or the segment's end if none is."""
        blocks = self._blocks[segment.address]
        place = bisect_right(blocks, address)
        return blocks[place] if place < len(blocks) else segment.address + segment.size
