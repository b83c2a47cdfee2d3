"""Order of kernels on several CUDA streams: which calls of other streams each call waits for.

Calls on one stream run one after the other. If one stream records an event and another waits for it, calls
before the event run before calls after the wait.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

Done = Mapping[int, int]  # by stream, the number of the stream's last finished call


class CallOrder:
    """Order of operator calls among CUDA streams: which calls of other streams each call waits for."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        # By stream, the calls that its next call has to wait for: by other stream, the call's number.
        self._pending: collections.defaultdict[int, dict[int, int]] = collections.defaultdict(dict)

    def record(self, stream: int) -> Done:
        """Last call of each stream that is finished once an event recorded now on `stream` is over."""
        own = {stream: self._last[stream]} if stream in self._last else {}
        return {**self._pending[stream], **own}

    def wait(self, stream: int, done: Done) -> None:
        """Makes the next call of `stream` wait for the calls `done`, as `record` returned them."""
        pending = self._pending[stream]
        for other, number in done.items():
            if other != stream:
                pending[other] = max(number, pending.get(other, number))

    def add(self, stream: int, number: int) -> tuple[int, ...]:
        """Adds a call to a stream, and tells which calls of other streams it has to wait for.

        Args:
            stream: number of the stream.
            number: index of the call in the log.

        Returns:
            Distances to the calls that it waits for: 1 for the call just before.
        """
        self._last[stream] = number
        return tuple(sorted(number - other for other in self._pending.pop(stream, {}).values()))
