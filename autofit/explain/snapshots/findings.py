"""Findings that need no prediction: lines at the peak, growth, unused memory, wide copies."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from autofit.explain.recorded import layout_after
from autofit.explain.snapshots.as_profile import is_of_optimizer
from autofit.explain.snapshots.run import BEFORE, NO_LINE, Run
from autofit_workers.replay.snapshots.blocks import SegmentMade

_MOST_STARTS = 64  # last steps that growth is followed over
_SMALLEST_COPY_BYTES = 64 << 10
_MUCH_SHARE = 0.03  # of what is reserved
_COPYING = frozenset({"aten._to_copy", "aten.to", "aten.float", "aten.copy_", "aten.clone"})
_NEAR = 4  # requests before a copy among which the original is looked for
NUM_MOMENTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBytes:
    """Memory of one line of code.

    Attributes:
        line: `file:line:function` without folders; in brackets where there is none.
        operator: operators that asked there, joined by commas; empty where the frames name none.
        num_bytes: bytes as they were requested.
        count: number of allocations.
    """

    line: str
    operator: str
    num_bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that is kept longer than a step.

    Attributes:
        num_steps: steps over which it was followed; 1 if the record is not longer than a step.
        bytes_a_step: bytes by which it grew from step to step; over the whole record if that is one step.
        lines: lines that allocate what is kept, the most first, and of a record of one step those of backward
            and the optimizer last; bytes and counts are of one step.
        is_leak: whether it grew from one whole step to the next, so that it is no first step's state.
    """

    num_steps: int
    bytes_a_step: int
    lines: tuple[LineBytes, ...]
    is_leak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedMoment:
    """Reserved and allocated bytes after `position` events."""

    position: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """Memory that the allocator reserved and no tensor used: fragmentation, and what the cache keeps.

    Attributes:
        at_peak_bytes: unused bytes when the reserved memory first reached its peak.
        most_bytes: the most unused bytes at any moment.
        most_position: number of events up to that moment.
        num_made_beside_free: segments that were made although as much was free in smaller pieces.
        made_beside_free_bytes: bytes of those segments.
        lines: lines for whose requests they were made; bytes are those of the segments.
        pinned: lines whose blocks keep partly used segments from being released, when the most was unused;
            bytes are those that are free in the segments. Empty where segments are expandable.
        largest_free_bytes: largest piece that was free then; None where segments are expandable.
        moments: the memory over time, for at most 200 equal parts of the record the moment with the most
            reserved.
    """

    at_peak_bytes: int
    most_bytes: int
    most_position: int
    num_made_beside_free: int
    made_beside_free_bytes: int
    lines: tuple[LineBytes, ...] = ()
    pinned: tuple[LineBytes, ...] = ()
    largest_free_bytes: int | None = None
    moments: tuple[UnusedMoment, ...] = field(default=())


def lines_at_peak(run: Run) -> tuple[LineBytes, ...]:
    """Lines whose blocks are alive at the allocated peak, the most bytes first."""
    return by_line(run, run.alive_at(run.peak_position))


def by_line(run: Run, requests: Iterable[int], num_parts: int = 1) -> tuple[LineBytes, ...]:
    """Requests grouped by line, the most bytes first.

    Args:
        num_parts: number of steps that the requests are of, to state one step's.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for request in requests:
        groups[run.line(request)].append(request)
    sizes = run.followed.requested_bytes
    rows = [
        LineBytes(
            line=line,
            operator=_operators(run, members),
            num_bytes=sum(sizes[each] for each in members) // num_parts,
            count=max(1, len(members) // num_parts),
        )
        for line, members in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row.line)))


def _operators(run: Run, requests: Iterable[int]) -> str:
    named = Counter(run.followed.sources[each].operator for each in requests)
    del named[""]
    return ", ".join(name for name, _ in named.most_common(3))


# ── growth ──────────────────────────────────────────────────────────────────────────────────────


def growth_of(run: Run) -> Growth | None:
    """Memory that grew between steps, or from the record's begin to its end; None if nothing did."""
    # Where the record ends, another moment of a step may be reached than where steps begin.
    starts = [start for start in run.starts if start < run.num_events][-_MOST_STARTS:]
    return _over_steps(run, starts) if len(starts) > 2 else _over_record(run)


def _over_steps(run: Run, starts: list[int]) -> Growth | None:
    """Growth from each whole step to the next, after the first, whose blocks may replace unknown ones."""
    alive: dict[str, list[int]] = {}
    members: dict[str, list[int]] = defaultdict(list)
    for request in range(run.followed.num_before, len(run.followed.sources)):
        first = bisect.bisect_right(starts, run.births[request])
        last = bisect.bisect_right(starts, run.deaths[request]) - 1
        if first > last:
            continue
        key = _kind(run, request)
        counts = alive.setdefault(key, [0] * len(starts))
        for number in range(first, last + 1):
            counts[number] += run.followed.requested_bytes[request]
        if last == len(starts) - 1 and first > 1:
            members[key].append(request)
    num_steps = len(starts) - 2
    grown = [request for key, counts in alive.items() if _grows(counts) for request in members[key]]
    total = sum(counts[-1] - counts[1] for counts in alive.values() if _grows(counts))
    if not grown or total <= 0:
        return None
    lines = by_line(run, grown, num_steps)
    return Growth(num_steps=num_steps, bytes_a_step=total // num_steps, lines=lines, is_leak=True)


def _grows(counts: list[int]) -> bool:
    return counts[-1] > counts[1] and all(a <= b for a, b in itertools.pairwise(counts[1:]))


def _kind(run: Run, request: int) -> str:
    """Line of a request; without one its size, as many lines of backward have none."""
    where = run.followed.sources[request].where
    return where or f"{run.followed.requested_bytes[request]}"


def _over_record(run: Run) -> Growth | None:
    """Blocks that are there at the end, less those of equal size from before that have been freed."""
    end, followed = run.num_events, run.followed
    freed = Counter(
        followed.requested_bytes[request]
        for request in range(followed.num_before)
        if run.deaths[request] < end
    )
    kept = []
    for request in range(len(followed.sources) - 1, followed.num_before - 1, -1):
        if run.deaths[request] < end:
            continue
        where, size = followed.sources[request].where, followed.requested_bytes[request]
        # Gradients and the optimizer's state replace what was freed before anything else does.
        kept.append((bool(where) and not is_of_optimizer(where), request, size))
    grown = []
    for _, request, size in sorted(kept, key=lambda each: (each[0], each[1])):
        if freed[size]:
            freed[size] -= 1
        else:
            grown.append(request)
    total = sum(followed.requested_bytes[request] for request in grown)
    if not grown or not total:
        return None
    lines = sorted(by_line(run, grown), key=lambda row: row.line == NO_LINE or is_of_optimizer(row.line))
    return Growth(num_steps=1, bytes_a_step=total, lines=tuple(lines), is_leak=False)


# ── unused memory ───────────────────────────────────────────────────────────────────────────────


def unused_of(run: Run) -> Unused:
    """Memory that was reserved and not allocated, over the record, and what kept it so."""
    followed, first = run.followed, max(run.followed.num_before - 1, 0)
    reserved, allocated = followed.reserved, followed.allocated
    at_peak = first + reserved[first:].index(max(reserved[first:]))
    most = max(range(first, len(reserved)), key=lambda place: reserved[place] - allocated[place])
    pinned, largest = _pinned(run, most + 1) if followed.is_exact else ((), None)
    made = [each for each in followed.made_beside_free if _is_much(run, each)]
    groups: dict[str, list[int]] = defaultdict(list)
    for each in made:
        event = followed.events[min(each.event, len(followed.events) - 1)]
        groups[run.line(event if event >= 0 else ~event)].append(each.num_bytes)
    lines = [
        LineBytes(line=line, operator="", num_bytes=sum(sizes), count=len(sizes))
        for line, sizes in groups.items()
    ]
    return Unused(
        at_peak_bytes=reserved[at_peak] - allocated[at_peak],
        most_bytes=reserved[most] - allocated[most],
        most_position=most + 1,
        num_made_beside_free=len(made),
        made_beside_free_bytes=sum(each.num_bytes for each in made),
        lines=tuple(sorted(lines, key=lambda row: -row.num_bytes)),
        pinned=pinned,
        largest_free_bytes=largest,
        moments=tuple(_moments(run, first)),
    )


def _is_much(run: Run, made: SegmentMade) -> bool:
    """Whether more was free than segments usually have as remainders."""
    reserved = run.followed.reserved[min(made.event, run.num_events) - 1]
    return made.free_bytes >= _MUCH_SHARE * reserved


def _moments(run: Run, first: int) -> Iterator[UnusedMoment]:
    reserved, allocated = run.followed.reserved, run.followed.allocated
    size = max(1, -(-(len(reserved) - first) // NUM_MOMENTS))
    for start in range(first, len(reserved), size):
        place = max(range(start, min(start + size, len(reserved))), key=reserved.__getitem__)
        yield UnusedMoment(
            position=place + 1, allocated_bytes=allocated[place], reserved_bytes=reserved[place]
        )


def _pinned(run: Run, position: int) -> tuple[tuple[LineBytes, ...], int]:
    """Lines whose blocks keep free memory from being released, and the largest free piece, at a moment."""
    layout, requests = layout_after(run.followed.actions, position)
    free: Counter[str] = Counter()
    segments: Counter[str] = Counter()
    largest = 0
    for segment in layout.segments.values():
        pieces = [size for _, size, is_free in segment.blocks() if is_free]
        largest = max(largest, max(pieces, default=0))
        if not segment.live or not pieces:
            continue
        lines = Counter(run.line(requests[address]) for address in segment.live)
        named = [line for line, _ in lines.most_common() if line != BEFORE] or [BEFORE]
        free[named[0]] += sum(pieces)
        segments[named[0]] += 1
    rows = (
        LineBytes(line=line, operator="", num_bytes=size, count=segments[line])
        for line, size in free.most_common()
    )
    return tuple(rows), largest


# ── copies ──────────────────────────────────────────────────────────────────────────────────────


def wide_copies(run: Run) -> tuple[LineBytes, ...]:
    """Lines with blocks of twice the bytes of one that was requested just before and is still alive.

    So looks a 32-bit copy of a 16-bit tensor, such as `logits.float()`; not all that looks so is one. They
    are those at the peak; if there are none, of the whole record.
    """
    at_peak = list(_copies(run, run.alive_at(run.peak_position)))
    every = range(run.followed.num_before, len(run.followed.sources))
    return by_line(run, at_peak or _copies(run, every))


def _copies(run: Run, requests: Iterable[int]) -> Iterator[int]:
    sizes = run.followed.requested_bytes
    for request in requests:
        size = sizes[request]
        if request < run.followed.num_before or size < _SMALLEST_COPY_BYTES or size % 2:
            continue
        source = run.followed.sources[request]
        if not source.where or (source.operator and source.operator not in _COPYING):
            continue
        for other in range(max(request - _NEAR, run.followed.num_before), request):
            if 2 * sizes[other] == size and run.deaths[other] > run.births[request]:
                yield request
                break
