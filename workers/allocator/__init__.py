"""A model of PyTorch's CUDA caching allocator, in Python alone.

`settings` says what PYTORCH_ALLOC_CONF may change, `pools` holds the rules, `expandable` those of
segments that grow, `addresses` where segments lie; `caching` is the allocator with its statistics,
`replay` runs a stream of events through it, fast.
"""

from workers.allocator.caching import CachingAllocator, Segment, SegmentBlock
from workers.allocator.pools import AllocatorOutOfMemory, Block
from workers.allocator.replay import Choices, Replay, given_blocks, live_peak_bytes, peak_of_blocks, replay
from workers.allocator.settings import AllocatorSettings

__all__ = [
    "AllocatorOutOfMemory",
    "AllocatorSettings",
    "Block",
    "CachingAllocator",
    "Choices",
    "Replay",
    "Segment",
    "SegmentBlock",
    "given_blocks",
    "live_peak_bytes",
    "peak_of_blocks",
    "replay",
]
