"""Hypothesis strategies of allocation events and allocator settings, for tests of properties."""

from __future__ import annotations

from hypothesis import strategies as st

from autofit_workers.replay.allocator import AllocatorSettings, Streams
from autofit_workers.spec.trace import HostWait

MIB = 1 << 20

SETTINGS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.sampled_from([None, 32 * MIB]),
    roundup_power2_divisions=st.sampled_from([0, 8]),
    garbage_collection_threshold=st.sampled_from([None, 0.3]),
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Strategy of events and sizes: requests in order, each freed at some later point or never."""
    sizes = draw(
        st.lists(
            st.one_of(st.integers(0, 4096), st.integers(0, 3 * MIB), st.integers(0, 50 * MIB)), max_size=40
        )
    )
    events: list[int] = []
    live: list[int] = []
    for index in range(len(sizes)):
        events.append(index)
        live.append(index)
        num_freed = draw(st.integers(0, min(2, len(live))))
        events.extend(~live.pop(draw(st.integers(0, len(live) - 1))) for _ in range(num_freed))
    return events, sizes


@st.composite
def on_streams(draw: st.DrawFn) -> tuple[list[int], list[int], Streams]:
    """Strategy of `streams` with requests on several CUDA streams, uses by others, and host waits."""
    events, sizes = draw(streams())
    numbers = st.integers(0, 2)
    requests = range(len(sizes))
    own = {request: stream for request in requests if (stream := draw(numbers))}
    uses = {request: draw(st.sets(numbers, max_size=2)) for request in requests}
    positions = sorted(draw(st.lists(st.integers(0, len(events)), max_size=6)))
    waits = [
        HostWait(position=each, stream=draw(st.none() | numbers), up_to=draw(st.integers(0, each)))
        for each in positions
    ]
    used = {request: tuple(sorted(streams)) for request, streams in uses.items() if streams}
    return events, sizes, Streams(of_requests=own, uses=used, host_waits=waits)
