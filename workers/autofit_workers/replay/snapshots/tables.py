"""Reads a memory snapshot as CSV: `NAME.events.csv` with `NAME.segments.csv` beside it, gzipped or not.

    events      action, address, size, stream, where           in their order
    segments    segment_address, segment_size, segment_type, stream, block_offset, block_size, requested_size,
                state                                          a row for each block when it was taken

Without the second table, what was reserved before the first event is not known.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

from autofit_workers.replay.allocator.pools import ActionKind
from autofit_workers.replay.snapshots.snapshot import (
    MOST_BLOCKS,
    MOST_BLOCKS_OF_A_SEGMENT,
    MOST_EVENTS,
    MOST_SEGMENTS,
    MOST_SIZE_BYTES,
    Event,
    Segment,
    Snapshot,
)
from autofit_workers.spec.documents import DocumentError, LimitError

EVENTS, SEGMENTS = ".events.csv", ".segments.csv"
HEADER = b"action,address,size,stream"
_MOST_ADDRESS = 1 << 64
_MOST_CHARACTERS = 1024
_KINDS = {kind.value: kind for kind in ActionKind}


def snapshot_of_tables(name: str, events: bytes, segments: bytes | None) -> Snapshot:
    """Snapshot in the content of its two tables.

    Args:
        name: of the run.
        events: content of the table of events.
        segments: content of the table of segments; None if it is not there.

    Raises:
        DocumentError: a table is malformed or beyond a limit; the message is a predicate.
    """
    try:
        read = tuple(_events(events))
        held = {} if segments is None else _segments(segments)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(
            f"is no table of a snapshot: a row lacks a column, or a number is none ({error})"
        ) from error
    return Snapshot(
        name,
        read,
        tuple(sorted(held.values(), key=lambda each: each.address)),
        has_segments=segments is not None,
        num_entries=len(read),
    )


def _events(data: bytes) -> Iterator[Event]:
    for number, row in enumerate(_rows(data)):
        if number >= MOST_EVENTS:
            raise LimitError(f"has more than {MOST_EVENTS:,} events")
        if row["action"] not in _KINDS:
            raise DocumentError(f"has an event of an unknown kind ({row['action'][:40]!r})")
        yield Event(
            _KINDS[row["action"]],
            _address(row["address"]),
            _size(row["size"]),
            _address(row["stream"]),
            (row["where"] or "")[:_MOST_CHARACTERS],
        )


def _segments(data: bytes) -> dict[int, Segment]:
    segments: dict[int, Segment] = {}
    ends: dict[int, int] = {}
    for number, row in enumerate(_rows(data)):
        if number >= MOST_BLOCKS:
            raise LimitError(f"has more than {MOST_BLOCKS:,} blocks")
        address = _address(row["segment_address"])
        segment = segments.setdefault(
            address,
            Segment(
                address,
                _size(row["segment_size"]),
                row["segment_type"] == "small",
                _address(row["stream"]),
            ),
        )
        if len(segments) > MOST_SEGMENTS or len(segment.live) > MOST_BLOCKS_OF_A_SEGMENT:
            raise LimitError(
                f"has more than {MOST_SEGMENTS:,} segments, or {MOST_BLOCKS_OF_A_SEGMENT:,} blocks in one"
            )
        place, size = address + _address(row["block_offset"]), _size(row["block_size"])
        if place < ends.get(address, address) or place + size > address + segment.size:
            raise DocumentError("has blocks that overlap, or lie outside of their segment")
        ends[address] = place + size
        if row["state"] != "inactive":
            segment.live[place] = size
            segment.requested[place] = _size(row["requested_size"])
    return segments


def _rows(data: bytes) -> Iterator[dict[str, str]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DocumentError("is no text") from error
    yield from csv.DictReader(text.splitlines())


def _address(text: str) -> int:
    number = int(text[:40])
    if not 0 <= number < _MOST_ADDRESS:
        raise DocumentError("has a number that is no address")
    return number


def _size(text: str) -> int:
    number = int(text[:40])
    if not 0 <= number <= MOST_SIZE_BYTES:
        raise DocumentError("has a size that no memory has")
    return number
