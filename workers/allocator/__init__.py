"""A model of PyTorch's CUDA caching allocator, in Python alone.

`settings` says what PYTORCH_ALLOC_CONF may change, `pools` holds the rules, `expandable` those of
segments that grow, `addresses` where segments lie; `caching` is the allocator with its statistics,
`replay` runs a stream of events through it, fast, and `history` tells all that it does on the way.
"""

from workers.allocator.caching import CachingAllocator, Segment, SegmentBlock
from workers.allocator.history import Action, History, given_blocks, record_history
from workers.allocator.pools import ActionKind, AllocatorOutOfMemory, Block
from workers.allocator.replay import Choice, Choices, Replay, live_peak_bytes, peak_of_blocks, replay
from workers.allocator.settings import AllocatorSettings

__all__ = [
    "Action",
    "ActionKind",
    "AllocatorOutOfMemory",
    "AllocatorSettings",
    "Block",
    "CachingAllocator",
    "Choice",
    "Choices",
    "History",
    "Replay",
    "Segment",
    "SegmentBlock",
    "given_blocks",
    "live_peak_bytes",
    "peak_of_blocks",
    "record_history",
    "replay",
]
