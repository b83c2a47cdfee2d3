"""A memory snapshot of one device: what its allocator did, in order, and what it held at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autofit_workers.replay.allocator.pools import ActionKind

MOST_SIZE_BYTES = 1 << 42  # of a block or segment, so that sums of a million stay within 64 bits
MOST_EVENTS = 1_000_000
MOST_BLOCKS = 1_000_000
MOST_SEGMENTS = 100_000
MOST_BLOCKS_OF_A_SEGMENT = 200_000  # an expandable one holds all blocks of a pool


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a snapshot.

    Attributes:
        size: bytes of the segment, or of the request as it was made.
        where: innermost line of the user's own code, `file:line:function`, or empty.
        stack: lines of Python that led to it, outermost first, as in `autofit_workers.spec.trace.Allocation`.
        operator: the operator that asked, such as `aten.mm`; empty if no frame names one.
        module: path of the module that ran it; only snapshots that autofit wrote have it.
        category: what it holds, as far as the snapshot says; likewise.
        is_backward: whether autograd's engine asked.
        time_us: when, in microseconds since 1970; None in CSV.
    """

    kind: ActionKind
    address: int
    size: int
    stream: int
    where: str = ""
    stack: tuple[str, ...] = ()
    operator: str = ""
    module: str = ""
    category: str = ""
    is_backward: bool = False
    time_us: int | None = None


@dataclass(slots=True)
class Segment:
    """A segment of a snapshot.

    Attributes:
        live: bytes of the blocks that are not free, by address.
        requested: bytes that were asked for, of those blocks for which it is known.
        events: what the snapshot says of those blocks' allocations, by address.
        is_private: whether it belongs to a pool of its own, such as a CUDA graph's.
    """

    address: int
    size: int
    is_small: bool
    stream: int
    live: dict[int, int] = field(default_factory=dict)
    requested: dict[int, int] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    is_expandable: bool = False
    is_private: bool = False

    def blocks(self) -> Iterator[tuple[int, int, bool]]:
        """Address, bytes and whether it is free, of each block in the order of addresses."""
        position = self.address
        for address, size in sorted(self.live.items()):
            if position < address:
                yield position, address - position, True
            yield address, size, False
            position = address + size
        if position < self.address + self.size:
            yield position, self.address + self.size - position, True


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Request that failed, as a snapshot's event `oom` tells of it.

    Attributes:
        position: number of events before it.
        num_bytes: what was asked for.
        device_free_bytes: what the driver said was free on the device.
        where: innermost line of the user's own code, or empty.
    """

    position: int
    num_bytes: int
    device_free_bytes: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Record of what a run's allocator did on one device, and held at the end.

    Attributes:
        segments: those at the end, in the order of addresses; empty also where they are not known.
        has_segments: whether the segments at the end are known.
        device: number of the device.
        ooms: requests that failed.
        settings: settings of the allocator that the snapshot names.
        annotations: position in `events` and name of each part that the program named by `record_function`.
        other_devices: bytes reserved on other devices of the same process, by the device's number.
        num_entries: number of entries of the history, of all kinds.
    """

    name: str
    events: tuple[Event, ...]
    segments: tuple[Segment, ...]
    has_segments: bool = True
    device: int = 0
    ooms: tuple[OutOfMemory, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    annotations: tuple[tuple[int, str], ...] = ()
    other_devices: dict[int, int] = field(default_factory=dict)
    num_entries: int = 0
