"""Follows the events of a snapshot block by block, at their real addresses.

Requests are numbered: first the blocks that were there before the first event, then each allocation.

    requests    0 … m-1 from before | m, m+1, …        events    0, 1, …, m-1 | m, ~3, m+1, …

A block is as large as its request rounded up, and the rest of the free block that it is cut from if that
is too small to be split off (`should_split` of c10/cuda/CUDACachingAllocator.cpp). Where events cannot be
undone, as with expandable segments, a block counts as its rounded request; expandable segments split off all
of the rest, so that this is the same there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from autofit_workers.replay.allocator.history import Action
from autofit_workers.replay.allocator.pools import ActionKind
from autofit_workers.replay.allocator.settings import (
    BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)
from autofit_workers.replay.snapshots.layout import Layout
from autofit_workers.replay.snapshots.snapshot import Event, Segment, Snapshot
from autofit_workers.replay.snapshots.start import start_of

_DEFAULT = AllocatorSettings()
_MADE = ActionKind.SEGMENT_ALLOC


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMade:
    """Segment that was made although at least as much of its pool was free, in smaller pieces.

    Attributes:
        event: number of the followed event for which it was made.
        num_bytes: bytes of the segment.
        free_bytes: bytes that were free in the pool.
    """

    event: int
    num_bytes: int
    free_bytes: int


@dataclass(slots=True, kw_only=True)
class Followed:
    """Requests and frees of a snapshot, with the memory that they leave.

    Attributes:
        events: `i` allocates request `i`, `~i` frees it; those from before come first.
        requested_bytes, block_bytes: of each request.
        sources: the event that made each request; of one from before what the snapshot says, or nothing.
        actions: all that the allocator did, by the number of the followed event.
        num_before: requests from before the first event.
        start_reserved_bytes: reserved before the first event.
        is_exact: whether all blocks were followed at their addresses.
        knows_reserved: whether what was reserved is known, and not only that it is at least as much.
        start: segments before the first event; empty unless `is_exact`.
        allocated, reserved: bytes after each followed event.
        positions: number of followed events before each event of the snapshot.
        made_beside_free: segments that were made although as much was free.
    """

    events: list[int] = field(default_factory=list)
    requested_bytes: list[int] = field(default_factory=list)
    block_bytes: list[int] = field(default_factory=list)
    sources: list[Event] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    num_before: int = 0
    start_reserved_bytes: int = 0
    is_exact: bool = False
    knows_reserved: bool = True
    start: list[Segment] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    made_beside_free: list[SegmentMade] = field(default_factory=list)

    @property
    def peak_allocated_bytes(self) -> int:
        """Most bytes of blocks at once, from the first event on."""
        return max(self.allocated[max(self.num_before - 1, 0) :], default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes of segments at once, from the first event on."""
        return max(self.reserved[max(self.num_before - 1, 0) :], default=self.start_reserved_bytes)


def follow(snapshot: Snapshot) -> Followed:
    """Follows all events of a snapshot.

    Raises:
        ValueError: events contradict each other, such as by a block that is freed twice.
    """
    follower = _Follower(snapshot)
    for event in snapshot.events:
        follower.step(event)
    return follower.ended()


class _Follower:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._found = Followed()
        self._live: dict[int, int] = {}  # request by address
        self._layout: Layout | None = None
        self._free: dict[tuple[bool, int], int] = {}  # bytes by size class and stream
        for one, other in itertools.pairwise(snapshot.segments):
            if other.address < one.address + one.size:
                raise ValueError(f"two segments have the address {other.address}")
        if snapshot.has_segments:
            try:
                self._found.start = start_of(snapshot)
                self._layout = Layout(self._found.start)
            except ValueError:  # expandable segments, or events are missing: sums are followed then
                self._layout = None
        self._begin()

    def _begin(self) -> None:
        """Allocates what was there before the first event."""
        found, before = self._found, _from_before(self._snapshot)
        made = sum(each.kind.reserves * each.size for each in self._snapshot.events)
        reserved_bytes = sum(each.size for each in self._snapshot.segments) - made
        found.is_exact = self._layout is not None
        found.knows_reserved = self._snapshot.has_segments and reserved_bytes >= 0
        found.start_reserved_bytes = reserved_bytes if found.knows_reserved else 0
        self._reserved_bytes, self._allocated_bytes = found.start_reserved_bytes, 0
        for each in found.start:
            found.actions.append(Action(_MADE, 0, each.address, each.size, None, each.stream))
            self._free[each.is_small, each.stream] = (
                self._free.get((each.is_small, each.stream), 0) + each.size
            )
        if not found.start and found.start_reserved_bytes:
            found.actions.append(Action(ActionKind.SEGMENT_ALLOC, 0, 0, found.start_reserved_bytes))
        for address, (event, known_bytes) in sorted(before.items()):
            block_bytes = known_bytes
            if self._layout is not None:
                segment = self._layout.at(address)
                if address not in segment.live:
                    raise ValueError(f"a block at {address} was freed that was not there")
                block_bytes = segment.live[address]
                self._free[segment.is_small, segment.stream] -= block_bytes
            self._allocate(event, block_bytes)
        found.num_before = len(found.events)

    def step(self, event: Event) -> None:
        found = self._found
        found.positions.append(len(found.events))
        if event.kind is ActionKind.ALLOC:
            if event.address in self._live:
                raise ValueError(f"a block at {event.address} is allocated twice")
            self._allocate(event, self._placed(event))
        elif event.kind is ActionKind.FREE_COMPLETED:
            request = self._live.pop(event.address, None)
            if request is None:
                raise ValueError(f"a block at {event.address} is freed twice")
            self._allocated_bytes -= found.block_bytes[request]
            self._taken_back(event)
            self._add(event, found.block_bytes[request], request)
            self._append(~request)
        elif event.kind is ActionKind.FREE_REQUESTED:
            request = self._live.get(event.address)
            self._add(event, event.size if request is None else found.block_bytes[request], request)
        else:
            self._segment(event)

    def _placed(self, event: Event) -> int:
        """Bytes of the block that a request gets."""
        rounded = _DEFAULT.round_size(event.size)
        layout = self._layout
        if layout is None:
            return rounded
        segment = layout.at(event.address)
        rest = layout.after(segment, event.address) - event.address - rounded
        if rest < 0:
            raise ValueError(f"a block at {event.address} reaches into the next one")
        splits = rest >= BLOCK_BYTES if segment.is_small else rest > SMALL_REQUEST_BYTES
        num_bytes = rounded if splits else rounded + rest
        layout.put(segment, event.address, num_bytes)
        self._free[segment.is_small, segment.stream] -= num_bytes
        return num_bytes

    def _taken_back(self, event: Event) -> None:
        if self._layout is not None:
            segment = self._layout.at(event.address)
            self._free[segment.is_small, segment.stream] += self._layout.take(segment, event.address)

    def _segment(self, event: Event) -> None:
        gain = event.kind.reserves * event.size
        self._reserved_bytes += gain
        self._add(event, event.size, None)
        layout = self._layout
        if layout is None:
            return
        if event.kind is ActionKind.SEGMENT_FREE:
            segment = layout.at(event.address)
            layout.remove(event.address, event.size)
            self._free[segment.is_small, segment.stream] -= event.size
            return
        is_small = event.size <= SMALL_SEGMENT_BYTES  # a large one has 10 MiB or more
        free_bytes = self._free.get((is_small, event.stream), 0)
        if free_bytes >= event.size and not is_small:
            self._found.made_beside_free.append(
                SegmentMade(event=len(self._found.events), num_bytes=event.size, free_bytes=free_bytes)
            )
        layout.add(Segment(event.address, event.size, is_small, event.stream))
        self._free[is_small, event.stream] = free_bytes + event.size

    def _allocate(self, event: Event, num_bytes: int) -> None:
        found, request = self._found, len(self._found.sources)
        found.requested_bytes.append(event.size)
        found.block_bytes.append(num_bytes)
        found.sources.append(event)
        self._live[event.address] = request
        self._allocated_bytes += num_bytes
        self._add(event, num_bytes, request)
        self._append(request)

    def _add(self, event: Event, num_bytes: int, request: int | None) -> None:
        found = self._found
        found.actions.append(
            Action(event.kind, len(found.events), event.address, num_bytes, request, event.stream)
        )

    def _append(self, event: int) -> None:
        found = self._found
        found.events.append(event)
        found.allocated.append(self._allocated_bytes)
        found.reserved.append(self._reserved_bytes)

    def ended(self) -> Followed:
        """All that was followed; where what is reserved is not known, it is at least what is allocated."""
        found = self._found
        if found.reserved:
            found.reserved[-1] = max(found.reserved[-1], self._reserved_bytes)
        last = max(len(found.events) - 1, 0)
        late = next((n for n, each in enumerate(reversed(found.actions)) if each.position <= last), None)
        if late:
            ended = (replace(each, position=last) for each in found.actions[-late:])
            found.actions[-late:] = list(ended)
        missing = max((a - r for a, r in zip(found.allocated, found.reserved, strict=True)), default=0)
        if not found.knows_reserved and missing > 0:
            found.is_exact = False
            found.start_reserved_bytes += missing
            found.reserved = [each + missing for each in found.reserved]
            found.actions.insert(0, Action(ActionKind.SEGMENT_ALLOC, 0, 0, missing))
        return found


def _from_before(snapshot: Snapshot) -> dict[int, tuple[Event, int]]:
    """Blocks that were there before the first event, by address: what is known of them, and their bytes."""
    live: set[int] = set()
    found: dict[int, tuple[Event, int]] = {}
    for event in snapshot.events:
        if event.kind is ActionKind.ALLOC:
            live.add(event.address)
        elif event.kind is ActionKind.FREE_COMPLETED:
            if event.address not in live:
                if event.address in found:
                    raise ValueError(f"a block at {event.address} is freed twice")
                made = Event(ActionKind.ALLOC, event.address, event.size, event.stream)
                found[event.address] = made, _DEFAULT.round_size(event.size)
            live.discard(event.address)
    for segment in snapshot.segments:
        for address, num_bytes in segment.live.items():
            if address not in live and address not in found:
                requested = segment.requested.get(address, num_bytes)
                known = segment.events.get(address)
                made = known or Event(ActionKind.ALLOC, address, requested, segment.stream)
                found[address] = made, num_bytes
    return found
