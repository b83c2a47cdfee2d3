"""A file that takes what a checkpoint writes, and only counts it."""

from __future__ import annotations


class CountingSink:
    """A file that is written to and keeps nothing: what a save to disk needs of memory, no more.

    Attributes:
        num_bytes: how much was written.
    """

    def __init__(self) -> None:
        self.num_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        num_bytes = memoryview(data).nbytes
        self.num_bytes += num_bytes
        return num_bytes

    def flush(self) -> None:
        """Nothing is kept, so there is nothing to write out."""
