"""CUDA streams of a replay's requests, the other streams that use their blocks, and the host's waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autofit_workers.replay.allocator.pending import PendingFrees
from autofit_workers.replay.allocator.pools import Block
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import Allocation, HostWait


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """CUDA streams of requests, the other streams that use their blocks, and the host's waits for streams.

    Attributes:
        of_requests: stream of each request that is not on the default stream, by the request's index.
        uses: other streams that `Tensor.record_stream` named for a request's block, by the request's index.
        host_waits: the host's waits for streams, in the order of their positions in the events.
    """

    of_requests: Mapping[int, int] = field(default_factory=dict)
    uses: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    host_waits: Sequence[HostWait] = ()

    @classmethod
    def of(cls, allocations: Sequence[Allocation], host_waits: Sequence[HostWait] = ()) -> Self:
        """Collects the streams and waits of a trace from its allocations and host waits."""
        numbered = list(enumerate(allocations))
        return cls(
            of_requests={number: each.stream for number, each in numbered if each.stream},
            uses={number: each.stream_uses for number, each in numbered if each.stream_uses},
            host_waits=host_waits,
        )


ONE_STREAM = Streams()


def between_waits(
    streams: Streams, num_events: int, pending: PendingFrees[Block], release: Callable[[], object]
) -> Iterator[tuple[int, int]]:
    """Yields the start and stop position of each run of events with no wait of the host inside it.

    Before a run is yielded, the waits at its start are applied.

    Args:
        streams: has the host's waits and their positions in the events.
        num_events: number of all events.
        pending: freed blocks in use by other streams; told of each wait.
        release: called at waits after which all cached memory is released, as by `torch.cuda.empty_cache`.
    """
    waits: dict[int, list[HostWait]] = {}
    for wait in streams.host_waits:
        waits.setdefault(wait.position, []).append(wait)
    told = {position for wait in streams.host_waits for position in (wait.position, wait.up_to)}
    num_recorded: dict[int, int] = {}
    for start, stop in itertools.pairwise(sorted({0, num_events, *(p for p in told if p < num_events)})):
        num_recorded[start] = pending.num_events
        for wait in waits.get(start, ()):
            pending.wait(wait.stream, up_to=num_recorded[wait.up_to])
            if wait.releases:
                release()
        yield start, stop
