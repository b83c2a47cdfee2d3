"""Model of PyTorch's CUDA caching allocator, in Python alone.

`settings` reads PYTORCH_ALLOC_CONF; `pools` has the rules, `expandable` those of expandable segments,
`pending` those of blocks that other streams use; `addresses` places segments; `streams` lists the streams
of requests; `caching` is the allocator with its statistics; `replay` runs events through it, fast; and
`history` records each action of the allocator.
"""

from autofit_workers.replay.allocator.caching import CachingAllocator, Segment, SegmentBlock
from autofit_workers.replay.allocator.history import Action, History, given_blocks, record_history
from autofit_workers.replay.allocator.pending import EventClock, StreamEvent, keeps_up, lags
from autofit_workers.replay.allocator.pools import ActionKind, AllocatorOutOfMemory, Block
from autofit_workers.replay.allocator.replay import (
    Choice,
    Choices,
    Replay,
    live_peak_bytes,
    peak_of_blocks,
    replay,
)
from autofit_workers.replay.allocator.settings import AllocatorSettings
from autofit_workers.replay.allocator.streams import ONE_STREAM, Streams

__all__ = [
    "ONE_STREAM",
    "Action",
    "ActionKind",
    "AllocatorOutOfMemory",
    "AllocatorSettings",
    "Block",
    "CachingAllocator",
    "Choice",
    "Choices",
    "EventClock",
    "History",
    "Replay",
    "Segment",
    "SegmentBlock",
    "StreamEvent",
    "Streams",
    "given_blocks",
    "keeps_up",
    "lags",
    "live_peak_bytes",
    "peak_of_blocks",
    "record_history",
    "replay",
]
