"""CUDA streams of a replay's requests, the other streams that use their blocks, and the host's waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from autofit_workers.replay.allocator.pending import PendingFrees
from autofit_workers.replay.allocator.pools import Block
from autofit_workers.spec.trace import Allocation, HostWait


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """CUDA streams of requests, the other streams that use their blocks, and the host's waits for streams.

    Attributes:
        of_requests: stream of each request that is not on the default stream, by the request's index.
        uses: other streams that were recorded for a request's block, by the request's index.
        host_waits: the host's waits, in the order of their positions.
    """

    of_requests: Mapping[int, int] = field(default_factory=dict)
    uses: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    host_waits: Sequence[HostWait] = ()

    @classmethod
    def of(cls, allocations: Sequence[Allocation], host_waits: Sequence[HostWait] = ()) -> Self:
        """Makes the streams of a trace's allocations and host waits."""
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
    """Yields start and stop position of each run of events that no wait of the host interrupts.

    Each wait is passed to `pending` before the events that follow it.

    Args:
        release: releases cached memory; called at waits that do so.
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
