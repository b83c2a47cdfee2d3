"""Real allocators' streams through the simulated one: `python tests/bench/streams.py [NAME …]`.

Reads the snapshots of real runs (`--snapshots`, default `snapshots` in the folder of ground truth), makes the
state that each begins with, and replays its requests three times:

- with addresses that the simulated allocator chooses: what it does to its segments, in order, and the peak;
- by the compiled replay, after what is released at first: for which request each segment is made, the peak;
- with the addresses that the driver chose: where each block lies.

Ends with 1 where a stream with a full or emptied cache is not the same to the byte, or the peak of one with a
warm cache is more than 1 % off.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `tests` is no package that could be installed

from autofit_workers.replay.allocator import (  # noqa: E402
    Action,
    ActionKind,
    AllocatorSettings,
    Block,
    History,
    is_compiled,
    record_history,
    replay,
)
from autofit_workers.replay.allocator.caching import make_pools  # noqa: E402
from autofit_workers.replay.allocator.settings import MIB, SMALL_REQUEST_BYTES  # noqa: E402
from tests.bench.snapshots import (  # noqa: E402
    Stream,
    names_in,
    read_snapshot,
    stream_of,
    without_first_releases,
)
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402

_WARM_SHARE = 0.01
_SETTINGS = AllocatorSettings()
_OF_SEGMENTS = (ActionKind.SEGMENT_ALLOC, ActionKind.SEGMENT_FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A real allocator's stream beside the simulated one's.

    Attributes:
        num_segments, num_released: segments that the real one made, and that it released.
        first_difference: number of the first change of a segment that is another; None if all are the same.
        num_requests, num_alike: requests of the stream, and those whose block lies where the real one lay if
            the simulated allocator gets the driver's addresses.
        is_same_compiled: whether the compiled replay makes each segment for the same request as the real one,
            and has its peak; None where it was not built, or leaves the stream to Python.
    """

    stream: Stream
    num_segments: int
    num_released: int
    first_difference: int | None
    peak_reserved_bytes: int
    num_requests: int
    num_alike: int
    is_same_compiled: bool | None = None

    @property
    def is_exact(self) -> bool:
        real_bytes = self.stream.peak_reserved_bytes
        return (
            self.first_difference is None
            and self.peak_reserved_bytes == real_bytes
            and self.is_same_compiled is not False
            and self.num_alike == self.num_requests
        )

    @property
    def error(self) -> float:
        """Distance of the peak from the real one, as a share of it."""
        return self.peak_reserved_bytes / self.stream.peak_reserved_bytes - 1

    @property
    def is_good(self) -> bool:
        return abs(self.error) <= _WARM_SHARE if self.stream.has_warm_cache else self.is_exact


def compare(stream: Stream) -> Compared:
    """Compares what the simulated allocator does with a stream's requests with what the real one did."""
    history = record_history(stream.events, stream.sizes, streams=stream.streams)
    real = [(kind, size) for kind, size, _ in stream.changes]
    simulated = [(each.kind, each.num_bytes) for each in _changes(history)[len(stream.start) :]]
    differences = (n for n, pair in enumerate(zip(real, simulated, strict=False)) if pair[0] != pair[1])
    shorter = min(len(real), len(simulated))
    first_difference = next(differences, None if len(real) == len(simulated) else shorter)
    placed = list(_placed(stream))
    return Compared(
        stream=stream,
        num_segments=sum(kind is ActionKind.SEGMENT_ALLOC for kind, _ in real),
        num_released=sum(kind is ActionKind.SEGMENT_FREE for kind, _ in real),
        first_difference=first_difference,
        peak_reserved_bytes=history.peak_reserved_bytes,
        num_requests=len(placed),
        num_alike=sum(placed),
    )


def _changes(history: History) -> list[Action]:
    return [each for each in history.actions if each.kind in _OF_SEGMENTS]


class _DriverAddresses:
    """Addresses that the driver chose for segments, in the order in which it was asked for them."""

    def __init__(self, stream: Stream) -> None:
        given = [(each.size, each.address) for each in stream.start]
        given += [(size, place) for kind, size, place in stream.changes if kind is ActionKind.SEGMENT_ALLOC]
        self._given = iter(given)
        self._below = 0

    def reserve(self, num_bytes: int, *, alignment: int = 1) -> int:
        """Address of the next segment; below all of the driver's where that was asked for another one."""
        size, address = next(self._given, (0, 0))
        if size == num_bytes:
            return address
        self._below -= num_bytes
        return self._below

    def release(self, address: int, num_bytes: int) -> None:
        """Does nothing: the driver's choice is known whatever is free."""


def _placed(stream: Stream) -> Iterator[bool]:
    """Whether the block of each request lies where the real one lay, given the driver's addresses."""
    pools = make_pools(_SETTINGS, limit_bytes=None)
    pools.addresses = _DriverAddresses(stream)  # type: ignore[assignment]
    released_at = {wait.position for wait in stream.streams.host_waits}
    blocks: dict[int, Block] = {}
    for position, event in enumerate(stream.events):
        if position in released_at:
            pools.release_cached()
        if event < 0:
            pools.give(blocks.pop(~event))
            continue
        size = _SETTINGS.round_size(stream.sizes[event])
        number = stream.streams.of_requests.get(event, 0)
        block = pools.take(size, pools.pool(is_small=size <= SMALL_REQUEST_BYTES, stream=number))
        blocks[event] = block
        if position >= stream.num_before:
            yield block.address == stream.places[event]


def is_same_compiled(stream: Stream) -> bool | None:
    """Whether the compiled replay makes each segment for the same request as the real one, and has its peak.

    A replay says where it first holds more than it is told to, so it is asked once for each segment. None
    where the compiled one was not built, or leaves a stream that releases, or has several, to Python.
    """
    if not is_compiled() or stream.releases or stream.streams.of_requests:
        return None
    events, sizes = list(stream.events), list(stream.sizes)
    reserved_bytes = stream.start_bytes
    for position, (_, size, _) in zip(stream.made_at, stream.changes, strict=True):
        if replay(events, sizes, stop_above_bytes=reserved_bytes).failed_position != position:
            return False
        reserved_bytes += size
    return replay(events, sizes).peak_reserved_bytes == stream.peak_reserved_bytes


def compare_snapshot(folder: Path, name: str) -> Compared:
    """Compares a snapshot of a folder; the compiled replay begins after what is released at first."""
    snapshot = read_snapshot(folder, name)
    compared = compare(stream_of(snapshot))
    rest = stream_of(snapshot, after=without_first_releases(snapshot))
    return replace(compared, is_same_compiled=is_same_compiled(rest))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these snapshots")
    parser.add_argument("--snapshots", type=Path, default=DEFAULT_TABLES / "snapshots")
    options = parser.parse_args()
    names = options.names or names_in(options.snapshots)
    if not names:
        parser.error(f"no snapshots in {options.snapshots}: name their folder by --snapshots")
    print(
        "| stream | requests | at the start, MiB (free) | segments made, released | the same "
        "| peak, bytes | simulated | compiled | blocks at the real place |\n" + "|---" * 9 + "|"
    )
    bad = []
    for name in names:
        compared = compare_snapshot(options.snapshots, name)
        print(_row(compared), flush=True)
        if not compared.is_good:
            bad.append(name)
    print(f"not the same: {', '.join(bad)}" if bad else "all are the same")
    sys.exit(bool(bad))


def _row(compared: Compared) -> str:
    stream = compared.stream
    free_bytes = sum(size for each in stream.start for _, size, is_free in each.blocks() if is_free)
    differs = compared.first_difference
    compiled = {None: "–", True: "the same", False: "differs"}[compared.is_same_compiled]
    cells = (
        f"{stream.name}{' (warm)' if stream.has_warm_cache else ''}",
        f"{compared.num_requests:,}",
        f"{stream.start_bytes / MIB:,.0f} ({free_bytes / MIB:,.1f})",
        f"{compared.num_segments}, {compared.num_released}",
        "all" if differs is None else f"up to {differs}",
        f"{stream.peak_reserved_bytes:,}",
        f"{compared.error:+.2%}" if compared.error else "the same",
        compiled,
        f"{compared.num_alike:,}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
