"""Model of PyTorch's CUDA caching allocator, in Python alone.

settings     reads `PYTORCH_ALLOC_CONF`
pools        rules for splitting, merging, caching and releasing blocks
expandable   what differs in these rules with expandable segments
pending      freed blocks that other streams still use
addresses    addresses of segments
streams      the stream of each request, other streams that use its block, and the host's waits
caching      the allocator with PyTorch's statistics and snapshot
replay       peaks of a sequence of allocations and frees, fast
history      record of each action of the allocator
"""

from autofit_workers.replay.allocator.caching import CachingAllocator, Segment, SegmentBlock
from autofit_workers.replay.allocator.compiled_replay import is_compiled
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
    "is_compiled",
    "keeps_up",
    "lags",
    "live_peak_bytes",
    "peak_of_blocks",
    "record_history",
    "replay",
]
