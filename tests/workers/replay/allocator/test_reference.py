"""The allocator against a reference that scans all blocks and keeps no lists or links."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import (
    AllocatorOutOfMemory,
    AllocatorSettings,
    Block,
    CachingAllocator,
    StreamEvent,
)

MIB = 1 << 20
UNBOUNDED = 1 << 60


@dataclass
class Piece:
    segment: int  # the segment's address
    address: int
    size: int
    stream: int
    is_small: bool
    is_allocated: bool = False
    stream_uses: set[int] = field(default_factory=set)
    event_count: int = 0

    @property
    def is_free(self) -> bool:
        return not self.is_allocated and not self.stream_uses and not self.event_count


@dataclass
class Event:
    piece: Piece
    is_over: bool = False


class ScanningAllocator:
    """PyTorch's rules without expandable segments and garbage collection, as literally as they go."""

    def __init__(self, max_split: int, limit: int) -> None:
        self.max_split = max_split
        self.limit = limit
        self.pieces: list[Piece] = []
        self.events: dict[int, list[Event]] = {}

    @property
    def reserved(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def malloc(self, num_bytes: int, stream: int) -> Piece | None:
        size = (num_bytes + 511) // 512 * 512
        is_small = size <= MIB
        self.process_events()
        pool = [p for p in self.pieces if (p.is_free, p.stream, p.is_small) == (True, stream, is_small)]
        piece = min((p for p in pool if p.size >= size), key=lambda p: (p.size, p.address), default=None)
        if piece is not None and (
            size < self.max_split <= piece.size or self.max_split <= size <= piece.size - 20 * MIB
        ):
            piece = None
        piece = piece or self.new_segment(size, stream, is_small)
        if piece is None and self.release_oversize(max(size, self.max_split), pool):
            piece = self.new_segment(size, stream, is_small)
        if piece is None:
            self.release()
            piece = self.new_segment(size, stream, is_small)
        if piece is None:
            return None
        rest = piece.size - size
        if rest >= 512 if is_small else (rest > MIB and size < self.max_split):
            self.pieces.append(Piece(piece.segment, piece.address + size, rest, stream, is_small))
            piece.size = size
        piece.is_allocated = True
        return piece

    def new_segment(self, size: int, stream: int, is_small: bool) -> Piece | None:
        shared = 2 * MIB if is_small else 20 * MIB
        segment = shared if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
        if self.reserved + segment > self.limit:
            return None
        taken = [(p.address, p.address + p.size) for p in self.pieces]
        starts = sorted([0, *(end for _, end in taken)])
        address = next(s for s in starts if all(end <= s or s + segment <= start for start, end in taken))
        piece = Piece(address, address, segment, stream, is_small)
        self.pieces.append(piece)
        return piece

    def record_stream(self, piece: Piece, stream: int) -> None:
        if stream != piece.stream:
            piece.stream_uses.add(stream)

    def free(self, piece: Piece) -> None:
        piece.is_allocated = False
        for stream in piece.stream_uses:
            self.events.setdefault(stream, []).append(Event(piece))
            piece.event_count += 1
        piece.stream_uses = set()
        if not piece.event_count:
            self.merge(piece)

    def process_events(self) -> None:
        for events in self.events.values():
            while events and events[0].is_over:
                piece = events.pop(0).piece
                piece.event_count -= 1
                if not piece.event_count:
                    self.merge(piece)

    def work(self, stream: int | None) -> None:
        """A stream, or all, comes to the end of what it was given."""
        for number, events in self.events.items():
            for event in events:
                event.is_over |= stream in (None, number)

    def merge(self, piece: Piece) -> None:
        tiles = sorted((p for p in self.pieces if p.segment == piece.segment), key=lambda p: p.address)
        for left, right in zip(tiles[-2::-1], tiles[:0:-1], strict=True):  # from the end to the front
            if left.is_free and right.is_free:
                left.size += right.size
                self.pieces.remove(right)

    def whole(self, piece: Piece) -> bool:
        return piece.is_free and sum(p.segment == piece.segment for p in self.pieces) == 1

    def release(self) -> None:
        self.work(None)
        self.process_events()
        self.pieces = [p for p in self.pieces if not self.whole(p)]

    def release_oversize(self, wanted: int, pool: list[Piece]) -> bool:
        enough = [p for p in pool if p.size >= wanted]
        if enough:
            self.pieces.remove(min(enough, key=lambda p: (p.size, p.address)))
            return True
        released = 0
        for piece in sorted(pool, key=lambda p: (p.size, p.address), reverse=True):
            if released < wanted and piece.size >= self.max_split:
                self.pieces.remove(piece)
                released += piece.size
        return released >= wanted


class Device:
    """How far the streams of a device have come, as a clock of the allocator."""

    def __init__(self) -> None:
        self.done: dict[int, int] = {}

    def __call__(self, event: StreamEvent) -> bool:
        return event.number < self.done.get(event.stream, 0)


REQUESTS = st.builds(
    lambda num_bytes, stream: ("malloc", num_bytes, stream),
    st.one_of(st.integers(1, 3 * MIB), st.integers(1, 60 * MIB), st.sampled_from([MIB, 10 * MIB, 19 * MIB])),
    st.sampled_from([0, 0, 1]),
)
ACTIONS = st.one_of(
    REQUESTS,
    st.tuples(st.just("free"), st.integers(0, 1 << 16), st.just(0)),
    st.tuples(st.just("use"), st.integers(0, 1 << 16), st.integers(0, 2)),
    st.tuples(st.sampled_from(["work", "wait"]), st.integers(0, 2), st.just(0)),
    st.just(("release", 0, 0)),
)


class Pair:
    """Drives the allocator and the reference alike."""

    def __init__(self, max_split: int | None, limit: int | None) -> None:
        self.device = Device()
        self.allocator = CachingAllocator(
            AllocatorSettings(max_split_size_bytes=max_split), limit_bytes=limit, clock=self.device
        )
        self.reference = ScanningAllocator(max_split or UNBOUNDED, limit or UNBOUNDED)
        self.live: list[
            tuple[Block, int]
        ] = []  # the reference's piece by its address: merging replaces pieces

    def act(self, kind: str, first: int, second: int) -> None:
        match kind:
            case "malloc":
                self.malloc(first, second)
            case "free" if self.live:
                block, address = self.live.pop(first % len(self.live))
                self.allocator.free(block)
                self.reference.free(self.piece(address))
            case "use" if self.live:
                block, address = self.live[first % len(self.live)]
                self.allocator.record_stream(block, second)
                self.reference.record_stream(self.piece(address), second)
            case "work":
                self.device.done[first] = self.allocator.pending.num_events
                self.reference.work(first)
            case "wait":
                self.allocator.pending.wait(first)
                self.reference.work(first)
            case "release":
                self.allocator.empty_cache()
                self.reference.release()

    def malloc(self, num_bytes: int, stream: int) -> None:
        piece = self.reference.malloc(num_bytes, stream)
        try:
            block = self.allocator.malloc(num_bytes, stream=stream)
        except AllocatorOutOfMemory:
            assert piece is None
        else:
            assert piece is not None
            self.live.append((block, piece.address))

    def piece(self, address: int) -> Piece:
        return next(p for p in self.reference.pieces if p.address == address)


@given(
    st.sampled_from([None, 20 * MIB, 30 * MIB]),
    st.none() | st.integers(20 * MIB, 250 * MIB),
    st.lists(ACTIONS, max_size=60),
)
def test_every_step_agrees_with_the_scanning_reference(
    max_split: int | None, limit: int | None, actions: list[tuple[str, int, int]]
) -> None:
    pair = Pair(max_split, limit)
    for action in actions:
        pair.act(*action)

        pieces = sorted(pair.reference.pieces, key=lambda p: p.address)
        assert [
            (s.address + b.offset, b.size, s.stream, s.pool == "small", b.is_allocated, b.is_pending)
            for s in pair.allocator.segments()
            for b in s.blocks
        ] == [
            (p.address, p.size, p.stream, p.is_small, p.is_allocated, not p.is_allocated and not p.is_free)
            for p in pieces
        ]
        assert pair.allocator.active_bytes == sum(p.size for p in pieces if not p.is_free)
        assert pair.allocator.allocated_bytes == sum(p.size for p in pieces if p.is_allocated)
