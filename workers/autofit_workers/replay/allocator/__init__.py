"""Model of PyTorch's CUDA caching allocator, in Python alone.

`settings` has what PYTORCH_ALLOC_CONF may change, `pools` the rules, `expandable` those of segments that
grow, `pending` those of blocks that other streams use, `addresses` the places of segments; `streams` has
the streams of requests, `caching` the allocator with its statistics, `replay` runs events through it,
fast, and `history` records all that it does on the way.
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
