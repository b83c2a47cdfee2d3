"""Replays the memory events of a training step through the allocator model, to find their peaks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import neg
from typing import NamedTuple

from autofit_workers.replay.allocator.caching import make_pools
from autofit_workers.replay.allocator.compiled_replay import is_covered, replayed
from autofit_workers.replay.allocator.pending import EventClock, keeps_up
from autofit_workers.replay.allocator.pools import AllocatorOutOfMemory, Block, BlockPools, Pool
from autofit_workers.replay.allocator.settings import (
    BLOCK_BYTES,
    DEFAULT_SETTINGS,
    SMALL_REQUEST_BYTES,
    AllocatorSettings,
)
from autofit_workers.replay.allocator.streams import ONE_STREAM, Streams, between_waits


class Choice(NamedTuple):
    """Smaller sizes that a request falls back to when memory is short, as for convolution workspaces.

    PyTorch tries cuDNN's plans in turn until a workspace can be allocated. In cuDNN's benchmark mode it first
    times all plans in one large allocation.

    Attributes:
        asker: number of the operator call that makes the request. After a refusal, the same call does not
            request that size again.
        sizes: bytes that the request tries in turn; none is larger than the first.
        found: empty unless plans are timed in the memory of this request; then the workspace bytes that the
            plan found fastest tries in turn, none larger than that memory. Such a request skips sizes
            larger than any block that can be had without releasing cached memory. When its memory is freed,
            all cached memory is released and the found plan runs: `run_single_conv` of
            aten/src/ATen/native/cudnn/Conv_v8.cpp.
    """

    asker: int
    sizes: tuple[int, ...]
    found: tuple[int, ...] = ()


Choices = Mapping[int, Choice]  # by index of the request


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of a replay: its peaks, and whether it completed.

    Attributes:
        peak_allocated_bytes, peak_reserved_bytes: peaks over the events that were replayed.
        peak_allocated_position: index in the events of the allocation that first reached the
            allocated peak.
        num_alloc_retries: number of requests for which all cached memory was released.
        completed: False if the memory ran out, or if the replay was ended early by `stop_above_bytes`.
        failed_position: index of the event that ran out of memory or exceeded `stop_above_bytes`: an
            allocation, or the free of memory in which cuDNN's plans were timed; None if completed.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_allocated_position: int
    num_alloc_retries: int
    completed: bool
    failed_position: int | None


def replay(
    events: Sequence[int],
    sizes: Sequence[int],
    *,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    limit_bytes: int | None = None,
    stop_above_bytes: int | None = None,
    choices: Choices | None = None,
    streams: Streams = ONE_STREAM,
    clock: EventClock = keeps_up,
) -> Replay:
    """Replays events through an empty allocator and returns the peaks.

    Args:
        events: `i` allocates `sizes[i]` bytes, `~i` frees them (the events of a `Trace`); an
            allocation of 0 bytes makes no block.
        sizes: bytes of each request.
        settings: settings of the allocator.
        limit_bytes: most bytes that may be reserved; at the limit, cached memory is released and the request
            is tried again. None for no limit.
        stop_above_bytes: ends the replay at the first request that makes reserved bytes exceed this, which
            saves time if the caller only asks whether the step fits. None to replay all events.
        choices: for requests that accept smaller sizes, or in whose memory cuDNN's plans are timed, these
            sizes, by the request's index; None if there are no such requests.
        streams: streams of the requests, and the host's waits for streams.
        clock: decides when CUDA events are complete, for blocks that other streams use.

    Raises:
        ValueError: an event frees a block that is not allocated.
    """
    size_of = {num_bytes: settings.round_size(num_bytes) if num_bytes else 0 for num_bytes in set(sizes)}
    rounded = [size_of[num_bytes] for num_bytes in sizes]
    is_plain = not (choices or streams.of_requests or streams.uses or streams.host_waits)
    if is_plain and is_covered(settings, limit_bytes=limit_bytes):
        found = replayed(
            events, rounded, settings, limit_bytes=limit_bytes, stop_above_bytes=stop_above_bytes
        )
        if found is not None:
            return Replay(**found._asdict(), completed=found.failed_position is None)
    pools = make_pools(settings, limit_bytes=limit_bytes, clock=clock)
    return _replayed_through(
        pools, events, rounded, stop_above_bytes=stop_above_bytes, choices=choices or {}, streams=streams
    )


def _replayed_through(
    pools: BlockPools,
    events: Sequence[int],
    rounded: list[int],
    *,
    stop_above_bytes: int | None,
    choices: Choices,
    streams: Streams,
) -> Replay:
    """Replays events through empty pools; the arguments are those of `replay`, with rounded sizes."""
    # Blocks that no other stream uses come back when they are freed, without a check of CUDA events.
    take, give = (pools.take_after_events, pools.free) if streams.uses else (pools.take, pools.give)
    small, large = pools.pool(is_small=True), pools.pool(is_small=False)
    stop_bytes = sys.maxsize if stop_above_bytes is None else stop_above_bytes
    blocks: list[Block | None] = [None] * len(rounded)
    allocated_bytes = peak_bytes = peak_position = 0
    failed_position = None
    position = 0
    special = _SpecialRequests(pools, pools.settings, choices, streams, take)
    unusual, finding = special.numbers, special.finding
    # The loop runs ten thousand times per predicted batch size: it keeps the allocated bytes itself
    # and looks at as few attributes as it can.
    try:
        for position, event in _numbered(events, streams, pools):
            if event >= 0:
                size = rounded[event]
                if unusual and event in unusual:
                    block = special.take(event, size)
                    rounded[event] = 0 if block is None else block.size
                else:
                    block = take(size, small if size <= SMALL_REQUEST_BYTES else large) if size else None
                if block is not None:
                    blocks[event] = block
                    allocated_bytes += block.size
                    if allocated_bytes > peak_bytes:
                        peak_bytes = allocated_bytes
                        peak_position = position
                    if pools.reserved_bytes > stop_bytes:
                        failed_position = position
                        break
            else:
                freed = blocks[~event]
                if freed is not None:
                    allocated_bytes -= freed.size
                    give(freed)
                elif rounded[~event]:
                    raise ValueError(f"event {position} frees request {~event}, which was not allocated")
                if finding and ~event in finding:
                    special.run_found(~event)
    except AllocatorOutOfMemory:
        failed_position = position
    return Replay(
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=pools.peak_reserved_bytes,
        peak_allocated_position=peak_position,
        num_alloc_retries=pools.num_alloc_retries,
        completed=failed_position is None,
        failed_position=failed_position,
    )


def _numbered(events: Sequence[int], streams: Streams, pools: BlockPools) -> Iterable[tuple[int, int]]:
    """Events with their positions, as an iterator that applies the host's waits for streams on the way.

    Args:
        events: as in `replay`.
        streams: has the host's waits and their positions.
        pools: told of each wait before the events after it are yielded.
    """
    if not streams.host_waits:
        return enumerate(events)
    stretches = between_waits(streams, len(events), pools.pending, pools.release_cached)
    return chain.from_iterable(enumerate(events[start:stop], start) for start, stop in stretches)


class _SpecialRequests:
    """Requests that try several sizes, run on another stream than the default, or are used by other streams.

    Attributes:
        numbers: indices of these requests.
        finding: indices of the requests in whose memory cuDNN's benchmark mode times its plans.
    """

    def __init__(
        self,
        pools: BlockPools,
        settings: AllocatorSettings,
        choices: Choices,
        streams: Streams,
        take: Callable[[int, Pool], Block],
    ) -> None:
        self.numbers = choices.keys() | streams.of_requests.keys() | streams.uses.keys()
        self.finding = {number for number, choice in choices.items() if choice.found}
        self._pools = pools
        self._settings = settings
        self._choices = choices
        self._streams = streams
        self._take = take
        self._refused: dict[int, int] = {}  # by asker, the smallest size refused to it

    def take(self, request: int, size: int) -> Block | None:
        """Allocates a block for one of the special requests, at the first of its sizes that fits.

        Args:
            request: index of the request.
            size: rounded size in bytes, used if the request has only one.

        Returns:
            The block; None if the size is 0 bytes.

        Raises:
            AllocatorOutOfMemory: none of the sizes fits.
        """
        choice = self._choices.get(request)
        if choice is not None:
            if choice.found:
                self._refuse(choice.asker, self._pools.obtainable_bytes() + 1)
            block = self._first_of(request, choice.sizes)
        else:
            block = self._take(size, self._pool(request, size)) if size else None
        if block is not None:
            for stream in self._streams.uses.get(request, ()):
                self._pools.record_stream(block, stream)
        return block

    def run_found(self, request: int) -> None:
        """Empties the cache, then allocates and frees the workspace of the plan that benchmark mode found.

        The block counts in the reserved bytes. The allocated bytes leave it out, as it is no larger than the
        memory in which the plans were timed, apart from the rounding of blocks.

        Args:
            request: index of the request in whose memory the plans were timed.
        """
        self._pools.release_cached()
        block = self._first_of(request, self._choices[request].found)
        if block is not None:
            self._pools.give(block)

    def _first_of(self, request: int, sizes: Sequence[int]) -> Block | None:
        """Block of the first of `sizes` that fits, without sizes that the same call was refused."""
        asker = self._choices[request].asker
        refused_bytes = self._refused.get(asker, sys.maxsize)
        for asked_bytes in [size for size in sizes if size < refused_bytes] or sizes[-1:]:
            if not asked_bytes:
                return None
            size = self._settings.round_size(asked_bytes)
            try:
                return self._take(size, self._pool(request, size))
            except AllocatorOutOfMemory:
                self._refuse(asker, asked_bytes)
                if asked_bytes == sizes[-1]:
                    raise
        return None

    def _pool(self, request: int, size: int) -> Pool:
        stream = self._streams.of_requests.get(request, 0)
        return self._pools.pool(is_small=size <= SMALL_REQUEST_BYTES, stream=stream)

    def _refuse(self, asker: int, size: int) -> None:
        self._refused[asker] = min(size, self._refused.get(asker, sys.maxsize))


def live_peak_bytes(events: Sequence[int], sizes: Sequence[int]) -> int:
    """Largest sum of requests that are alive at the same time, each rounded up to the allocator's 512 B.

    This is a lower bound of the allocated and so of the reserved peak under all settings. It never falls
    when a size grows, whereas the reserved peak may.

    Args:
        events: `i` allocates `sizes[i]` bytes, `~i` frees them.
        sizes: bytes of each request.
    """
    return peak_of_blocks(events, [-(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES for num_bytes in sizes])


def peak_of_blocks(events: Sequence[int], blocks: Sequence[int]) -> int:
    """Largest sum of the sizes of blocks that are alive at the same time, in bytes.

    Args:
        events: `i` allocates block `i`, `~i` frees it.
        blocks: bytes of each block, as they are counted: nothing is rounded.
    """
    # A free is `~i`; as an index from the end, it finds the negated size of request `i`.
    changes = [*blocks, *map(neg, reversed(blocks))]
    return max(accumulate(map(changes.__getitem__, events)), default=0)
