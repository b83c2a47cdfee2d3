"""Order of work on CUDA streams: how far each stream is done after a wait of the host.

Streams run beside each other; an event that one records and another waits for puts what came before the one
before what comes after the other. So a wait of the host for a stream is one for others too, up to where that
stream had waited for them. The trace has one `HostWait` for each.

PyTorch makes its streams with `cudaStreamNonBlocking` (c10/cuda/CUDAStream.cpp): the default stream waits for
none of them by itself, nor they for it. No torch is needed here.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping

from autofit_workers.spec.trace import HostWait

# By stream, how many events of the trace came before what is done on it.
Progress = Mapping[int, int]


class StreamOrder:
    """Order of work among streams, as it follows from a program's events and waits.

    Args:
        position: tells the number of events of the trace so far.

    Attributes:
        host_waits: waits of the host, in the order of their positions.
    """

    def __init__(self, position: Callable[[], int]) -> None:
        self.host_waits: list[HostWait] = []
        self._position = position
        self._before: collections.defaultdict[int, dict[int, int]] = collections.defaultdict(dict)

    def record(self, stream: int) -> Progress:
        """Progress of each stream once the event is over that `stream` records now: `Event.record`."""
        return {**self._before[stream], stream: self._position()}

    def wait(self, stream: int, done: Progress) -> None:
        """Makes the later work of `stream` wait for an event: `Stream.wait_event`."""
        before = self._before[stream]
        for other, up_to in done.items():
            before[other] = max(up_to, before.get(other, 0))

    def host_wait(self, done: Progress) -> None:
        """Notes that the host waits for an event: `Event.synchronize`.

        For a stream, the event is one recorded now: `Stream.synchronize`; `Tensor.item` for the current.
        """
        position = self._position()
        self.host_waits += [
            HostWait(position=position, stream=stream, up_to=up_to) for stream, up_to in sorted(done.items())
        ]

    def host_wait_for_all(self) -> None:
        """Notes that the host waits for the device: `torch.cuda.synchronize`."""
        self._wait_for_all()

    def release(self) -> None:
        """Notes that the host waits for the device and empties the cache: `torch.cuda.empty_cache`."""
        self._wait_for_all(releases=True)

    def _wait_for_all(self, *, releases: bool = False) -> None:
        position = self._position()
        wait = HostWait(position=position, stream=None, up_to=position, releases=releases)
        if wait not in self.host_waits[-1:]:
            self.host_waits.append(wait)
