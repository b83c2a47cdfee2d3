"""Order of kernels on several CUDA streams: which calls of other streams each call waits for.

Calls of one stream run one after the other. An event that one stream records and another waits for puts the
calls that came before the one before those that come after the other.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

Done = Mapping[int, int]  # by stream, the number of the last call that is done


class CallOrder:
    """Works out from stream events which calls of other streams a call waits for."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        # By stream, what its next call has to wait for: by another stream, the number of a call.
        self._pending: collections.defaultdict[int, dict[int, int]] = collections.defaultdict(dict)

    def record(self, stream: int) -> Done:
        """Last finished call of each stream, once the event is over that `stream` records now."""
        own = {stream: self._last[stream]} if stream in self._last else {}
        return {**self._pending[stream], **own}

    def wait(self, stream: int, done: Done) -> None:
        """Makes the next call of `stream` wait for the calls `done`, those that an event covers."""
        pending = self._pending[stream]
        for other, number in done.items():
            if other != stream:
                pending[other] = max(number, pending.get(other, number))

    def add(self, stream: int, number: int) -> tuple[int, ...]:
        """Adds a call to a stream; returns how many calls back each call is that it waits for."""
        self._last[stream] = number
        return tuple(sorted(number - other for other in self._pending.pop(stream, {}).values()))
