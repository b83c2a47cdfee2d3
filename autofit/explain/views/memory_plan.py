"""Static memory plans: offsets in one arena for buffers whose lifetimes are known.

Buffers are rectangles, fixed in time and as high as their bytes, of which no two may overlap:

    offset │        ┌───────┐
           │  ┌──┐  │   C   │          B reuses A's place, C lies on top of both
           │┌─┴──┴──┴──┬────┴─┐
           ││    A     │  B   │
           └┴──────────┴──────┴── time

The smallest arena is hard to find, but cannot be smaller than the most bytes that live at any moment. Two
heuristics run and the smaller plan is taken:

- by size: the largest buffer first, each into the smallest gap that fits among the buffers that
  live at the same time (greedy by size with best fit: Pisarchyk and Lee, "Efficient Memory Management for
  Deep Neural Net Inference", 2020; XLA's `GlobalDecreasingSizeBestFitHeap`). Each buffer is compared with
  all before it, so only the largest are placed in this way; the rest is small, and gets an arena on top;
- by time: each buffer at its start, into the smallest gap that is free then, as an allocator would.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

# Number of buffers that are placed by size, which takes two million comparisons, or a fifth of a second.
MAX_PLACED_BY_SIZE = 2000


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of `num_bytes` bytes that is needed from time `start` up to but not including `stop`.

    Times are in any unit, such as the number of memory events before them.
    """

    start: int
    stop: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Static memory plan: a fixed offset in one block of memory (arena) for every buffer.

    Attributes:
        buffers: buffers to place.
        offsets: first byte of each buffer in the arena.
        num_bytes: size of the arena.
        lower_bound_bytes: the most bytes that are needed at any moment; no plan can take less.
    """

    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    num_bytes: int
    lower_bound_bytes: int


def plan_memory(buffers: Sequence[Buffer], *, max_by_size: int = MAX_PLACED_BY_SIZE) -> MemoryPlan:
    """Plan that places buffers in one arena so that none overlap in memory while both are needed.

    It is the smaller of two greedy plans: the largest buffers first, or in order of time. Buffers of no bytes
    or no duration get offset 0.

    Args:
        max_by_size: number of buffers that the first plan places by size, which takes quadratic time; it
            places the others by time, above them.
    """
    placed = [index for index, each in enumerate(buffers) if each.num_bytes and each.start < each.stop]
    subset = [buffers[index] for index in placed]
    plans = [_by_size(subset, max_by_size), _by_time(subset)]
    offsets, num_bytes = min(plans, key=lambda plan: plan[1])
    everywhere = [0] * len(buffers)
    for index, offset in zip(placed, offsets, strict=True):
        everywhere[index] = offset
    plan = MemoryPlan(
        buffers=tuple(buffers),
        offsets=tuple(everywhere),
        num_bytes=num_bytes,
        lower_bound_bytes=max_live_bytes(buffers),
    )
    assert find_overlap(plan) is None
    return plan


def max_live_bytes(buffers: Sequence[Buffer]) -> int:
    """Most bytes that buffers need at the same time."""
    changes: defaultdict[int, int] = defaultdict(int)
    for each in buffers:
        changes[each.start] += each.num_bytes
        changes[each.stop] -= each.num_bytes
    return max(itertools.accumulate(changes[time] for time in sorted(changes)), default=0)


def find_overlap(plan: MemoryPlan) -> tuple[int, int] | None:
    """Indices of two buffers that a plan places in the same memory at the same time; else None."""
    buffers, offsets = plan.buffers, plan.offsets
    order = sorted(
        (i for i, each in enumerate(buffers) if each.num_bytes and each.start < each.stop),
        key=lambda i: buffers[i].start,
    )
    living: list[tuple[int, int]] = []  # offset and index of the buffers that are alive, ascending
    ends: list[tuple[int, int]] = []  # heap of end time and index of these buffers
    for index in order:
        buffer = buffers[index]
        while ends and ends[0][0] <= buffer.start:
            _, over = heapq.heappop(ends)
            del living[bisect_left(living, (offsets[over], over))]
        entry = (offsets[index], index)
        place = bisect_left(living, entry)
        for offset, other in living[max(place - 1, 0) : place + 1]:
            if offset < entry[0] + buffer.num_bytes and entry[0] < offset + buffers[other].num_bytes:
                return min(index, other), max(index, other)
        living.insert(place, entry)
        heapq.heappush(ends, (buffer.stop, index))
    return None


def _by_size(buffers: Sequence[Buffer], most: int) -> tuple[list[int], int]:
    """Plan that places the largest buffers first, each in the smallest gap of memory free in its lifetime.

    Args:
        most: number of buffers that are placed so; the others are placed above them, in order of time.

    Returns:
        Offset of each buffer, and size of the arena in bytes.
    """
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].num_bytes, buffers[i].start))
    largest, rest = order[:most], order[most:]
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, int, int]] = []  # offset, its end, start, stop: ascending
    arena_bytes = 0
    for index in largest:
        each = buffers[index]
        offset = _best_gap(placed, each)
        offsets[index] = offset
        insort(placed, (offset, offset + each.num_bytes, each.start, each.stop))
        arena_bytes = max(arena_bytes, offset + each.num_bytes)
    rest_offsets, rest_bytes = _by_time([buffers[index] for index in rest])
    for index, offset in zip(rest, rest_offsets, strict=True):
        offsets[index] = arena_bytes + offset
    return offsets, arena_bytes + rest_bytes


def _best_gap(placed: Sequence[tuple[int, int, int, int]], buffer: Buffer) -> int:
    """Offset at which a buffer fits best among those placed: in the smallest gap, else above them.

    Args:
        placed: offset, end, start time and stop time of each placed buffer, ascending. Only those that are
            needed at the same time as `buffer` are in its way.
    """
    start, stop, num_bytes = buffer.start, buffer.stop, buffer.num_bytes
    free_from = best = best_bytes = 0
    for offset, end, other_start, other_stop in placed:
        if other_start < stop and start < other_stop:
            gap_bytes = offset - free_from
            if gap_bytes >= num_bytes and (not best_bytes or gap_bytes < best_bytes):
                best, best_bytes = free_from, gap_bytes
            free_from = max(free_from, end)
    return best if best_bytes else free_from


def _by_time(buffers: Sequence[Buffer]) -> tuple[list[int], int]:
    """Plan that places buffers in order of time, each in the smallest gap that is free when it begins.

    Returns:
        Offset of each buffer, and size of the arena in bytes.
    """
    offsets = [0] * len(buffers)
    arena = _Arena()
    ends: list[tuple[int, int]] = []
    for index in sorted(range(len(buffers)), key=lambda i: buffers[i].start):
        each = buffers[index]
        while ends and ends[0][0] <= each.start:
            _, over = heapq.heappop(ends)
            arena.give(offsets[over], buffers[over].num_bytes)
        offsets[index] = arena.take(each.num_bytes)
        heapq.heappush(ends, (each.stop, index))
    return offsets, arena.num_bytes


class _Arena:
    """Block of memory that grows as needed, and gives each request the smallest free gap that fits.

    Attributes:
        num_bytes: size of the block so far.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._gaps: list[tuple[int, int]] = []  # size and offset, ascending
        self._size_at: dict[int, int] = {}  # size of a gap by its offset …
        self._offset_before: dict[int, int] = {}  # … and its offset by its end

    def take(self, num_bytes: int) -> int:
        """Takes the smallest free gap that fits, or grows the arena; returns the first byte."""
        place = bisect_left(self._gaps, (num_bytes, 0))
        if place < len(self._gaps):
            size, offset = self._gaps[place]
        else:
            # The gap at the end, if there is one, grows with the arena.
            offset = self._offset_before.get(self.num_bytes, self.num_bytes)
            size = self._size_at.get(offset, 0)
        if size:
            self._forget(offset, size)
        if size > num_bytes:
            self._add(offset + num_bytes, size - num_bytes)
        self.num_bytes = max(self.num_bytes, offset + num_bytes)
        return offset

    def give(self, offset: int, num_bytes: int) -> None:
        """Frees memory of the arena, and merges it with the free gaps beside it.

        Args:
            offset: first byte of the freed memory.
        """
        before = self._offset_before.get(offset)
        if before is not None:
            self._forget(before, offset - before)
            offset, num_bytes = before, num_bytes + offset - before
        following = self._size_at.get(offset + num_bytes)
        if following is not None:
            self._forget(offset + num_bytes, following)
            num_bytes += following
        self._add(offset, num_bytes)

    def _add(self, offset: int, num_bytes: int) -> None:
        insort(self._gaps, (num_bytes, offset))
        self._size_at[offset] = num_bytes
        self._offset_before[offset + num_bytes] = offset

    def _forget(self, offset: int, num_bytes: int) -> None:
        del self._gaps[bisect_left(self._gaps, (num_bytes, offset))]
        del self._size_at[offset]
        del self._offset_before[offset + num_bytes]
