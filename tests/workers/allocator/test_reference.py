"""The allocator against a reference that scans all blocks and keeps no lists or links."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from workers.allocator import AllocatorOutOfMemory, AllocatorSettings, Block, CachingAllocator

untimed = run_settings(deadline=None)  # a busy machine is no failure

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


class ScanningAllocator:
    """PyTorch's rules without expandable segments and garbage collection, as literally as they go."""

    def __init__(self, max_split: int, limit: int) -> None:
        self.max_split = max_split
        self.limit = limit
        self.pieces: list[Piece] = []

    @property
    def reserved(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def malloc(self, num_bytes: int, stream: int) -> Piece | None:
        size = (num_bytes + 511) // 512 * 512
        is_small = size <= MIB
        pool = [p for p in self.pieces if (p.is_allocated, p.stream, p.is_small) == (False, stream, is_small)]
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

    def free(self, piece: Piece) -> None:
        piece.is_allocated = False
        tiles = sorted((p for p in self.pieces if p.segment == piece.segment), key=lambda p: p.address)
        for left, right in zip(tiles[-2::-1], tiles[:0:-1], strict=True):  # from the end to the front
            if not left.is_allocated and not right.is_allocated:
                left.size += right.size
                self.pieces.remove(right)

    def whole(self, piece: Piece) -> bool:
        return not piece.is_allocated and sum(p.segment == piece.segment for p in self.pieces) == 1

    def release(self) -> None:
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


REQUESTS = st.tuples(
    st.one_of(st.integers(1, 3 * MIB), st.integers(1, 60 * MIB), st.sampled_from([MIB, 10 * MIB, 19 * MIB])),
    st.sampled_from([0, 0, 1]),
)


@untimed
@given(
    st.sampled_from([None, 20 * MIB, 30 * MIB]),
    st.none() | st.integers(20 * MIB, 250 * MIB),
    st.lists(st.one_of(REQUESTS, st.integers(0, 1 << 16), st.just("release")), max_size=60),
)
def test_every_step_agrees_with_the_scanning_reference(
    max_split: int | None, limit: int | None, actions: list[tuple[int, int] | int | str]
) -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=max_split), limit_bytes=limit)
    reference = ScanningAllocator(max_split or UNBOUNDED, limit or UNBOUNDED)
    live: list[tuple[Block, int]] = []  # the reference's piece by its address: merging replaces pieces
    for action in actions:
        if action == "release":
            allocator.empty_cache()
            reference.release()
        elif isinstance(action, tuple):
            piece = reference.malloc(*action)
            try:
                block = allocator.malloc(action[0], stream=action[1])
            except AllocatorOutOfMemory:
                assert piece is None
            else:
                assert piece is not None
                live.append((block, piece.address))
        elif isinstance(action, int) and live:
            block, address = live.pop(action % len(live))
            allocator.free(block)
            reference.free(next(p for p in reference.pieces if p.address == address))

        assert [
            (s.address + b.offset, b.size, s.stream, s.pool == "small", b.is_allocated)
            for s in allocator.segments()
            for b in s.blocks
        ] == [
            (p.address, p.size, p.stream, p.is_small, p.is_allocated)
            for p in sorted(reference.pieces, key=lambda p: p.address)
        ]
