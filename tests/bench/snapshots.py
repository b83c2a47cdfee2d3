"""Streams of real allocators, from `torch.cuda.memory` snapshots, as requests for the simulated allocator.

What lay in the cache before the first event is found by `autofit_workers.replay.snapshots.start`. It is made
anew by requests alone, so that an allocator needs no way in for it: each segment is requested whole, freed,
and cut into its blocks while nothing else is free; the free blocks are given back at last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit_workers.replay.allocator import ActionKind, Streams
from autofit_workers.replay.allocator.settings import SMALL_REQUEST_BYTES
from autofit_workers.replay.snapshots import Segment, Snapshot
from autofit_workers.replay.snapshots.files import open_snapshot, read_snapshots
from autofit_workers.replay.snapshots.start import start_of
from autofit_workers.replay.snapshots.tables import EVENTS
from autofit_workers.spec.trace import HostWait

_EVENTS = f"{EVENTS}.gz"
_RELEASE = ActionKind.SEGMENT_FREE
_OF_SEGMENTS = (ActionKind.SEGMENT_ALLOC, _RELEASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of a snapshot, after those that make the state that it begins with.

    Attributes:
        events, sizes: as `replay` takes them.
        streams: streams of the requests, and a wait that releases wherever the real allocator released.
        num_before: number of events that make the start.
        places: address of each block of the start and of the snapshot's requests, by the request's index.
        start: segments before the first event, in the order of addresses.
        changes: what the real allocator did to its segments, in order: their kind, bytes and address.
        made_at: position in `events` of the request for which each segment was made.
        has_warm_cache: whether a whole segment was free before the first request, so that the cache was
            neither full nor emptied.
        num_unknown: number of frees of blocks that were made before the first event.
    """

    name: str
    events: tuple[int, ...]
    sizes: tuple[int, ...]
    streams: Streams
    num_before: int
    places: dict[int, int]
    start: tuple[Segment, ...]
    changes: tuple[tuple[ActionKind, int, int], ...]
    made_at: tuple[int, ...]
    has_warm_cache: bool
    num_unknown: int

    @property
    def start_bytes(self) -> int:
        """Bytes that were reserved before the first event."""
        return sum(segment.size for segment in self.start)

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes that were reserved, from the first event on."""
        reserved = peak = self.start_bytes
        for kind, size, _ in self.changes:
            reserved += -size if kind is _RELEASE else size
            peak = max(peak, reserved)
        return peak

    @property
    def releases(self) -> bool:
        return bool(self.streams.host_waits)


def names_in(folder: Path) -> list[str]:
    """Names of the snapshots of a folder."""
    return sorted(path.name.removesuffix(_EVENTS) for path in folder.glob(f"*{_EVENTS}"))


def read_snapshot(folder: Path, name: str) -> Snapshot:
    """Reads a snapshot from its two files.

    Args:
        folder: has `NAME.events.csv.gz` and `NAME.segments.csv.gz`.
        name: of the run.
    """
    return read_snapshots(open_snapshot(folder / f"{name}{_EVENTS}"))[0]


class _Requests:
    """Requests and frees, as `replay` takes them, with the place of each block."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.sizes: list[int] = []
        self.places: dict[int, int] = {}
        self.of_streams: dict[int, int] = {}
        self.request_at: dict[int, int] = {}

    def allocate(self, size: int, address: int, stream: int) -> int:
        request = len(self.sizes)
        self.sizes.append(size)
        self.events.append(request)
        self.places[request] = address
        if stream:
            self.of_streams[request] = stream
        return request

    def hold(self, size: int, address: int, stream: int) -> None:
        """Allocates a block that is freed by its address."""
        self.request_at[address] = self.allocate(size, address, stream)

    def free(self, request: int) -> None:
        self.events.append(~request)

    def make(self, segments: Sequence[Segment]) -> None:
        """Makes segments with their blocks, where nothing is free."""
        free = []
        for each in segments:
            parts = [SMALL_REQUEST_BYTES] * 2 if each.is_small else [each.size]
            places = [each.address + sum(parts[:number]) for number in range(len(parts))]
            for request in [self.allocate(*part, each.stream) for part in zip(parts, places, strict=True)]:
                self.free(request)
            for address, size, is_free in each.blocks():
                for offset in range(0, size, SMALL_REQUEST_BYTES if each.is_small else size):
                    piece = min(SMALL_REQUEST_BYTES, size - offset) if each.is_small else size
                    if is_free:
                        free.append(self.allocate(piece, address + offset, each.stream))
                    else:
                        self.hold(piece, address + offset, each.stream)
        for request in free:
            self.free(request)


def stream_of(snapshot: Snapshot, *, after: int = 0) -> Stream:
    """Makes the requests of a snapshot.

    A block comes back when its free completed. The real allocator's releases stand where they were: which
    segments they release is the simulated one's own answer.

    Args:
        snapshot: what the allocator did.
        after: number of events that are part of the start, and left out.

    Raises:
        ValueError: events are missing or out of order.
    """
    start = start_of(snapshot, after=after)
    requests = _Requests()
    requests.make(start)
    num_before, num_unknown = len(requests.events), 0
    known = set(requests.request_at)
    changes, waits, made_at = [], [], []
    was_released = False
    for event in snapshot.events[after:]:
        if event.kind in _OF_SEGMENTS:
            changes.append((event.kind, event.size, event.address))
            if event.kind is ActionKind.SEGMENT_ALLOC:
                made_at.append(len(requests.events))
            if event.kind is _RELEASE and not was_released:
                position = len(requests.events)
                waits.append(HostWait(position=position, stream=None, up_to=position, releases=True))
        elif event.kind is ActionKind.ALLOC:
            requests.hold(event.size, event.address, event.stream)
            known.discard(event.address)
        elif event.kind is ActionKind.FREE_COMPLETED:
            num_unknown += event.address in known
            requests.free(requests.request_at.pop(event.address))
        was_released = event.kind is _RELEASE
    return Stream(
        name=snapshot.name,
        events=tuple(requests.events),
        sizes=tuple(requests.sizes),
        streams=Streams(of_requests=requests.of_streams, host_waits=waits),
        num_before=num_before,
        places=requests.places,
        start=tuple(start),
        changes=tuple(changes),
        made_at=tuple(made_at),
        has_warm_cache=any(not each.live for each in start_of(snapshot, after=_first_request(snapshot))),
        num_unknown=num_unknown,
    )


def _first_request(snapshot: Snapshot) -> int:
    """Number of events before the first request, but for the segment that is made for it."""
    for number, event in enumerate(snapshot.events):
        if event.kind is ActionKind.ALLOC:
            made_for_it = number > 0 and snapshot.events[number - 1].kind is ActionKind.SEGMENT_ALLOC
            return number - made_for_it
    return len(snapshot.events)


def without_first_releases(snapshot: Snapshot) -> int:
    """Number of events up to the last release before the first request: what `after` leaves out."""
    first = _first_request(snapshot)
    return max(
        (n + 1 for n, event in enumerate(snapshot.events[:first]) if event.kind is _RELEASE), default=0
    )
