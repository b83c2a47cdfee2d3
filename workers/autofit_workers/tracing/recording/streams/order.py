"""Order of work on CUDA streams: how far each stream has come when the host waits.

Streams run concurrently. If one stream records an event and another waits for it, work before the event is
done before work after the wait. So if the host waits for a stream, it also waits for the work of other
streams for which that stream has waited. The trace has a `HostWait` for each of these streams.

PyTorch creates streams with `cudaStreamNonBlocking` (c10/cuda/CUDAStream.cpp): they and the default stream do
not wait for each other implicitly. No torch is needed here.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping

from autofit_workers.spec.trace import HostWait

# By stream, a number of events of the trace: the stream's work before that position is done.
Progress = Mapping[int, int]


class StreamOrder:
    """Order of work among CUDA streams, given by number, by a program's events and waits.

    Args:
        position: returns the number of allocations and frees in the trace so far.

    Attributes:
        host_waits: waits of the host, in the order of their positions in the trace.
    """

    def __init__(self, position: Callable[[], int]) -> None:
        self.host_waits: list[HostWait] = []
        self._position = position
        self._before: collections.defaultdict[int, dict[int, int]] = collections.defaultdict(dict)

    def record(self, stream: int) -> Progress:
        """Progress of each stream once an event that `stream` records now is over (`Event.record`)."""
        return {**self._before[stream], stream: self._position()}

    def wait(self, stream: int, done: Progress) -> None:
        """Makes later work of `stream` wait for the event with progress `done` (`Stream.wait_event`)."""
        before = self._before[stream]
        for other, up_to in done.items():
            before[other] = max(up_to, before.get(other, 0))

    def host_wait(self, done: Progress) -> None:
        """Records that the host waits for the event with progress `done` (`Event.synchronize`).

        `Stream.synchronize` is a wait for an event recorded now; `Tensor.item` is one on the current stream.
        """
        position = self._position()
        self.host_waits += [
            HostWait(position=position, stream=stream, up_to=up_to) for stream, up_to in sorted(done.items())
        ]

    def host_wait_for_all(self) -> None:
        """Records that the host waits for all streams (`torch.cuda.synchronize`)."""
        self._wait_for_all()

    def release(self) -> None:
        """Records that the host waits for all streams and empties the cache (`torch.cuda.empty_cache`)."""
        self._wait_for_all(releases=True)

    def _wait_for_all(self, *, releases: bool = False) -> None:
        position = self._position()
        wait = HostWait(position=position, stream=None, up_to=position, releases=releases)
        if wait not in self.host_waits[-1:]:
            self.host_waits.append(wait)
