"""Everything that the allocator does in a stream of events: what a memory snapshot shows.

`replay` only finds the peaks, fast; this drives the same allocator and writes down where each block
lay, when segments came and went, and what is left at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.allocator.caching import CachingAllocator, Segment
from workers.allocator.pools import ActionKind, Block
from workers.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that the allocator did.

    Attributes:
        position: index of the event during which it happened.
        num_bytes: of the block or of the segment's part.
        request: whose block it is; None where it is about a segment, or of a plan that was found in the
            room of a request.
    """

    kind: ActionKind
    position: int
    address: int
    num_bytes: int
    request: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The actions of a stream of events, and the state that they led to.

    Attributes:
        segments: what is reserved after the last event, in the order of addresses.
        requests: by the address of each block allocated then, whose it is.
    """

    actions: tuple[Action, ...]
    segments: tuple[Segment, ...]
    requests: dict[int, int]
    peak_allocated_bytes: int
    peak_reserved_bytes: int


def record_history(
    events: Sequence[int],
    sizes: Sequence[int],
    *,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    found: Mapping[int, int] | None = None,
) -> History:
    """Replays events as `replay` does, without a limit, and keeps what the allocator did.

    Args:
        events: `i` allocates `sizes[i]` bytes, `~i` frees them.
        sizes: bytes of each request.
        settings: of the allocator.
        found: by request that is room to time plans in, what the plan takes that is found there: see
            `workers.allocator.Choice`.

    Raises:
        ValueError: if the events free what is not allocated.
    """
    actions: list[Action] = []
    position = 0

    def watch(kind: ActionKind, address: int, num_bytes: int) -> None:
        actions.append(Action(kind, position, address, num_bytes))

    def allocate(num_bytes: int, request: int | None) -> Block:
        block = allocator.malloc(num_bytes)
        actions.append(Action(ActionKind.ALLOC, position, block.address, block.size, request))
        return block

    def free(block: Block, request: int | None) -> None:
        actions.append(Action(ActionKind.FREE, position, block.address, block.size, request))
        allocator.free(block)

    allocator = CachingAllocator(settings, watcher=watch)
    plans = found or {}
    blocks: dict[int, Block] = {}
    for position, event in enumerate(events):
        if event >= 0:
            if sizes[event]:
                blocks[event] = allocate(sizes[event], event)
            continue
        request = ~event
        if sizes[request]:
            if request not in blocks:
                raise ValueError(f"event {position} frees request {request}, which was not allocated")
            free(blocks.pop(request), request)
        if request in plans:
            allocator.empty_cache()
            if plans[request]:
                free(allocate(plans[request], None), None)
    return History(
        actions=tuple(actions),
        segments=allocator.segments(),
        requests={block.address: request for request, block in blocks.items()},
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
    )


def given_blocks(
    events: Sequence[int],
    sizes: Sequence[int],
    *,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    found: Mapping[int, int] | None = None,
) -> list[int]:
    """Bytes of the block that each request gets where nothing limits what is reserved.

    That is the request rounded up, with what is left of a free block where that is too little to be
    split off: the sum over those alive is what PyTorch calls allocated.

    Args:
        events, sizes, found: those of `record_history`.
        settings: of the allocator.

    Returns:
        One for each size; 0 for an empty request.
    """
    given = [0] * len(sizes)
    for action in record_history(events, sizes, settings=settings, found=found).actions:
        if action.kind is ActionKind.ALLOC and action.request is not None:
            given[action.request] = action.num_bytes
    return given
