"""File object that counts the bytes of a checkpoint, and discards them."""

from __future__ import annotations


class CountingSink:
    """File object that discards written bytes, so that a save takes no more memory than one to disk.

    Attributes:
        num_bytes: number of bytes written.
    """

    def __init__(self) -> None:
        self.num_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        num_bytes = memoryview(data).nbytes
        self.num_bytes += num_bytes
        return num_bytes

    def flush(self) -> None:
        """Does nothing, as the sink keeps no data to write out."""
