"""Records the allocator's actions over a sequence of events, as PyTorch's memory snapshots do.

`replay` only finds the peaks, fast; this module drives the same allocator and records where each block
lay, when segments came and went, and what is left at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autofit_workers.replay.allocator.caching import CachingAllocator, Segment
from autofit_workers.replay.allocator.pending import EventClock, keeps_up
from autofit_workers.replay.allocator.pools import ActionKind, Block
from autofit_workers.replay.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings
from autofit_workers.replay.allocator.streams import ONE_STREAM, Streams, between_waits


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of the allocator's history, such as an allocation, a free or a new segment.

    Attributes:
        position: index, in the replayed events, of the event during which the action happened.
        num_bytes: size of the block, or of the part of the segment that changed.
        request: index of the allocation that the block serves; None for an action on a segment, and for the
            workspace with which cuDNN runs the plan that its benchmark mode found fastest.
        stream: stream of the block's pool.
    """

    kind: ActionKind
    position: int
    address: int
    num_bytes: int
    request: int | None = None
    stream: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Actions of the allocator over a sequence of events, and the state at the end.

    Attributes:
        segments: the reserved memory after the last event, in the order of addresses.
        requests: index of the request of each block that is allocated or pending at the end, by address.
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
    streams: Streams = ONE_STREAM,
    clock: EventClock = keeps_up,
) -> History:
    """Replays events without a memory limit, and returns the history of the allocator's actions.

    Args:
        events: `i` allocates `sizes[i]` bytes, `~i` frees them.
        sizes: bytes of each request.
        settings: settings of the allocator.
        found: workspace bytes of the plan that cuDNN's benchmark mode finds fastest, by the index of the
            request in whose memory the plans are timed (see `autofit_workers.replay.allocator.Choice`);
            None if no plans are timed.
        streams: streams of the requests, and the host's waits for streams.
        clock: decides when CUDA events are complete, for blocks that other streams use.

    Raises:
        ValueError: an event frees a block that is not allocated.
    """
    recorder = _Recorder(settings, streams, clock)
    plans = found or {}
    blocks: dict[int, Block] = {}
    allocator = recorder.allocator
    for start, stop in between_waits(streams, len(events), allocator.pending, allocator.empty_cache):
        for position, event in enumerate(events[start:stop], start):
            recorder.position = position
            if event >= 0:
                if sizes[event]:
                    blocks[event] = recorder.allocate(sizes[event], event, streams.of_requests.get(event, 0))
                continue
            request = ~event
            if sizes[request]:
                if request not in blocks:
                    raise ValueError(f"event {position} frees request {request}, which was not allocated")
                recorder.free(blocks.pop(request), request)
            if request in plans:
                recorder.run_found(plans[request], streams.of_requests.get(request, 0))
    return recorder.history({block.address: request for request, block in blocks.items()})


class _Recorder:
    """Recorder that passes allocations and frees to an allocator, and lists its actions.

    Attributes:
        allocator: the allocator.
        position: index of the event that is being replayed; the caller sets it.
    """

    def __init__(self, settings: AllocatorSettings, streams: Streams, clock: EventClock) -> None:
        self.allocator = CachingAllocator(settings, clock=clock, watcher=self._watch)
        self.position = 0
        self._uses = streams.uses
        self._actions: list[Action] = []
        self._freed: dict[int, int | None] = {}  # by address of a freed block, its request

    def allocate(self, num_bytes: int, request: int | None, stream: int) -> Block:
        block = self.allocator.malloc(num_bytes, stream=stream)
        self._add(ActionKind.ALLOC, block.address, block.size, request, stream)
        if request is not None:
            for other in self._uses.get(request, ()):
                self.allocator.record_stream(block, other)
        return block

    def free(self, block: Block, request: int | None) -> None:
        self._add(ActionKind.FREE_REQUESTED, block.address, block.size, request, block.pool.stream)
        self._freed[block.address] = request
        self.allocator.free(block)

    def run_found(self, num_bytes: int, stream: int) -> None:
        """Empties the cache, then allocates and frees the workspace of the plan that benchmark mode found.

        The caller has freed the block in which cuDNN timed its plans.

        Args:
            num_bytes: workspace of the plan; for 0 only the cache is emptied.
            stream: stream that the convolution runs on.
        """
        self.allocator.empty_cache()
        if num_bytes:
            self.free(self.allocate(num_bytes, None, stream), None)

    def history(self, allocated: Mapping[int, int]) -> History:
        """Returns the recorded actions, with the allocator's state at the end.

        Args:
            allocated: index of the request of each block that is still allocated, by the block's address.
        """
        pending = {address: request for address, request in self._freed.items() if request is not None}
        return History(
            actions=tuple(self._actions),
            segments=self.allocator.segments(),
            requests={**allocated, **pending},
            peak_allocated_bytes=self.allocator.peak_allocated_bytes,
            peak_reserved_bytes=self.allocator.peak_reserved_bytes,
        )

    def _watch(self, kind: ActionKind, address: int, num_bytes: int, stream: int) -> None:
        request = self._freed.pop(address) if kind is ActionKind.FREE_COMPLETED else None
        self._add(kind, address, num_bytes, request, stream)

    def _add(self, kind: ActionKind, address: int, num_bytes: int, request: int | None, stream: int) -> None:
        self._actions.append(Action(kind, self.position, address, num_bytes, request, stream))


def given_blocks(
    events: Sequence[int],
    sizes: Sequence[int],
    *,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    found: Mapping[int, int] | None = None,
    streams: Streams = ONE_STREAM,
    clock: EventClock = keeps_up,
) -> list[int]:
    """Sizes in bytes of the blocks that requests get in a replay without a memory limit.

    A block is the request rounded up, plus the rest of a free block if that rest is too small to be
    split off. The sum over live blocks is PyTorch's `memory_allocated`.

    Args:
        events, sizes, found, streams, clock: as in `record_history`.
        settings: settings of the allocator.

    Returns:
        The block's bytes for each of `sizes`; 0 for a request of 0 bytes.
    """
    given = [0] * len(sizes)
    history = record_history(events, sizes, settings=settings, found=found, streams=streams, clock=clock)
    for action in history.actions:
        if action.kind is ActionKind.ALLOC and action.request is not None:
            given[action.request] = action.num_bytes
    return given
