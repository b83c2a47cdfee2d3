"""Order in which kernels of several streams run: the calls of other streams that a call waits for.

Calls of one stream run one after the other. An event that one stream records and another waits for puts the
calls that came before the one before those that come after the other.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

Done = Mapping[int, int]  # by stream, the number of the last call that is done


class CallOrder:
    """Follows the events between streams that order calls, which have consecutive numbers."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        # By stream, what its next call has to wait for: by another stream, the number of a call.
        self._pending: collections.defaultdict[int, dict[int, int]] = collections.defaultdict(dict)

    def record(self, stream: int) -> Done:
        """Calls that are done once the event is over that `stream` records now."""
        own = {stream: self._last[stream]} if stream in self._last else {}
        return {**self._pending[stream], **own}

    def wait(self, stream: int, done: Done) -> None:
        """Makes a stream wait for an event before the calls that it is given from now on."""
        pending = self._pending[stream]
        for other, number in done.items():
            if other != stream:
                pending[other] = max(number, pending.get(other, number))

    def add(self, stream: int, number: int) -> tuple[int, ...]:
        """Gives a call to a stream; returns how many calls back those are that the call waits for."""
        self._last[stream] = number
        return tuple(sorted(number - other for other in self._pending.pop(stream, {}).values()))
