"""Addresses of segments in a device's address space.

The allocator takes the best-fitting free block, and of several equally large ones that with the lowest
address; nothing else depends on addresses.
The driver does not document how it chooses them; this model takes the lowest free range that is
large enough, so segments ascend in the order of their creation and released ranges are used
again first.
"""

from __future__ import annotations

from bisect import bisect_left

from autofit_workers.replay.allocator.settings import SEGMENT_STEP_BYTES

_END = 1 << 62


class AddressSpace:
    """Free ranges of a device's address space."""

    def __init__(self) -> None:
        self._holes = [(0, _END)]

    def reserve(self, num_bytes: int, *, alignment: int = SEGMENT_STEP_BYTES) -> int:
        """Takes the lowest free range of `num_bytes`; returns its address, a multiple of `alignment`."""
        for index, (start, end) in enumerate(self._holes):
            address = -(-start // alignment) * alignment
            if address + num_bytes <= end:
                pieces = ((start, address), (address + num_bytes, end))
                self._holes[index : index + 1] = [piece for piece in pieces if piece[0] < piece[1]]
                return address
        raise AssertionError("the address space is larger than any sum of requests")

    def release(self, address: int, num_bytes: int) -> None:
        """Frees a range of addresses, and merges it with adjacent free ranges."""
        holes, start, end = self._holes, address, address + num_bytes
        first = last = bisect_left(holes, (address, 0))
        if first > 0 and holes[first - 1][1] == start:
            first -= 1
            start = holes[first][0]
        if last < len(holes) and holes[last][0] == end:
            end = holes[last][1]
            last += 1
        holes[first:last] = [(start, end)]
