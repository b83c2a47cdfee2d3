"""Reads the pickle of a memory snapshot: `torch.cuda.memory._dump_snapshot`, or autofit's own.

The fields are those of `torch.cuda.memory._snapshot` (`THCPModule_memorySnapshot` in
torch/csrc/cuda/Module.cpp); snapshots before PyTorch 2.0, a list of segments, have no history.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from autofit_workers.replay.allocator.pools import ActionKind
from autofit_workers.replay.snapshots.frames import NO_FRAMES, Frames, read_frames
from autofit_workers.replay.snapshots.snapshot import (
    MOST_BLOCKS,
    MOST_BLOCKS_OF_A_SEGMENT,
    MOST_EVENTS,
    MOST_SEGMENTS,
    MOST_SIZE_BYTES,
    Event,
    OutOfMemory,
    Segment,
    Snapshot,
)
from autofit_workers.spec.documents import DocumentError, LimitError
from autofit_workers.spec.pickles import parse_pickle

_KINDS = {kind.value: kind for kind in ActionKind}
_OOM, _TAKEN = "oom", "snapshot"
_FREE = "inactive"
_DEFAULT_POOL = (0, 0)
_MOST_DEVICES = 64
_MOST_ANNOTATIONS = 100_000
_MOST_SETTINGS = 64
_MOST_CHARACTERS = 200


def snapshots_in(data: bytes, name: str) -> dict[int, Snapshot]:
    """Snapshots in a pickle, by the number of the device; devices that hold and did nothing are left out.

    Args:
        data: content of the file.
        name: name of the file.

    Raises:
        DocumentError: the pickle is none, holds more than plain values, or is no snapshot; the message is a
            predicate, to follow the file's name.
    """
    return _Reader(parse_pickle(data), name).snapshots()


class _Reader:
    """Checks and converts the plain values of a snapshot, counting events and blocks of all devices."""

    def __init__(self, document: Any, name: str) -> None:
        self._document = document
        self._name = name
        self._frames: dict[int, Frames] = {}  # by the list's identity: equal stacks share one
        self._num_blocks = 0
        self._lowest = 0

    def snapshots(self) -> dict[int, Snapshot]:
        document = self._document
        if not isinstance(document, dict) or "segments" not in document or "device_traces" not in document:
            raise DocumentError("is no memory snapshot, which has `segments` and `device_traces`")
        traces = _a_list(document["device_traces"], "device_traces")
        if len(traces) > _MOST_DEVICES:
            raise LimitError(f"has more than {_MOST_DEVICES} devices")
        if sum(len(_a_list(trace, "device_traces")) for trace in traces) > MOST_EVENTS:
            raise LimitError(f"has more than {MOST_EVENTS:,} events: record fewer with max_entries=100000")
        held = _a_list(document["segments"], "segments")
        if len(held) > MOST_SEGMENTS:
            raise LimitError(f"has more than {MOST_SEGMENTS:,} segments")
        self._lowest = _lowest(held, traces)
        segments: dict[int, list[Segment]] = {}
        for segment in held:
            device, read = self._segment(segment)
            segments.setdefault(device, []).append(read)
        reserved = {device: sum(each.size for each in of_it) for device, of_it in segments.items()}
        settings = _settings(document.get("allocator_settings"))
        found = {}
        for device in sorted({*segments, *(number for number, trace in enumerate(traces) if trace)}):
            trace = traces[device] if device < len(traces) else []
            events, ooms = self._events(trace)
            found[device] = Snapshot(
                self._name,
                events,
                tuple(sorted(segments.get(device, ()), key=lambda each: each.address)),
                device=device,
                ooms=ooms,
                settings=settings,
                annotations=_annotations(document.get("external_annotations"), device, events),
                other_devices={other: size for other, size in reserved.items() if other != device},
                num_entries=len(trace),
            )
        return found

    def _events(self, trace: list[Any]) -> tuple[tuple[Event, ...], tuple[OutOfMemory, ...]]:
        events: list[Event] = []
        ooms: list[OutOfMemory] = []
        for entry in trace:
            kind = _a_dict(entry, "an event").get("action")
            if not isinstance(kind, str):
                raise DocumentError("has an event without an action")
            if kind in _KINDS:
                events.append(self._event(_KINDS[kind], entry, self._address(entry.get("addr"))))
            elif kind == _OOM:
                free = entry.get("device_free", entry.get("addr", 0))
                ooms.append(
                    OutOfMemory(
                        position=len(events),
                        num_bytes=_a_size(entry.get("size")),
                        device_free_bytes=_a_size(free),
                        where=self._frames_of(entry).where,
                    )
                )
            elif kind != _TAKEN and not kind.startswith("workspace"):
                raise DocumentError(f"has an event of an unknown kind ({kind[:40]!r})")
        return tuple(events), tuple(ooms)

    def _event(self, kind: ActionKind, entry: dict[Any, Any], address: int) -> Event:
        frames, time_us, category = self._frames_of(entry), entry.get("time_us"), entry.get("category")
        return Event(
            kind,
            address,
            _a_size(entry.get("size")),
            _a_number(entry.get("stream", 0), "a stream"),
            frames.where,
            frames.stack,
            frames.operator,
            frames.module,
            category if isinstance(category, str) and category != "unknown" else "",
            frames.is_backward,
            time_us if type(time_us) is int else None,
        )

    def _frames_of(self, entry: dict[Any, Any]) -> Frames:
        frames = entry.get("frames")
        if not isinstance(frames, list) or not frames:
            return NO_FRAMES
        if id(frames) not in self._frames:
            self._frames[id(frames)] = read_frames(frames)
        return self._frames[id(frames)]

    def _segment(self, value: Any) -> tuple[int, Segment]:
        entry = _a_dict(value, "a segment")
        address = self._address(entry.get("address"))
        pool = entry.get("segment_pool_id", _DEFAULT_POOL)
        segment = Segment(
            address,
            _a_size(entry.get("total_size")),
            entry.get("segment_type") == "small",
            _a_number(entry.get("stream", 0), "a stream"),
            is_expandable=entry.get("is_expandable") is True,
            is_private=isinstance(pool, tuple | list) and tuple(pool[:2]) != _DEFAULT_POOL,
        )
        position = address
        blocks = _a_list(entry.get("blocks"), "blocks of a segment")
        self._num_blocks += 1 + len(blocks)
        if len(blocks) > MOST_BLOCKS_OF_A_SEGMENT or self._num_blocks > MOST_BLOCKS:
            raise LimitError(
                f"has more than {MOST_BLOCKS:,} blocks, or {MOST_BLOCKS_OF_A_SEGMENT:,} in one segment"
            )
        for each in blocks:
            block = _a_dict(each, "a block")
            size = _a_size(block.get("size"))
            place = self._address(block["address"]) if "address" in block else position
            if place < position or place + size > address + segment.size:
                raise DocumentError("has blocks that overlap, or lie outside of their segment")
            if block.get("state") != _FREE:
                requested = _a_size(block.get("requested_size", size))
                segment.live[place] = size
                segment.requested[place] = requested
                segment.events[place] = self._event(ActionKind.ALLOC, {**block, "size": requested}, place)
            position = place + size
        device = _a_number(entry.get("device", 0), "a device")
        if not 0 <= device < _MOST_DEVICES:
            raise LimitError(f"has more than {_MOST_DEVICES} devices")
        return device, segment

    def _address(self, value: Any) -> int:
        """Address from the lowest one of the snapshot on."""
        return _a_number(value, "an address") - self._lowest


def _lowest(segments: list[Any], traces: list[list[Any]]) -> int:
    """Lowest address of a snapshot's segments and events; those that are told start there."""
    places = [entry.get("address") for entry in segments if isinstance(entry, dict)]
    for trace in traces:
        places += [
            entry.get("addr") for entry in trace if isinstance(entry, dict) and entry.get("action") != _OOM
        ]
    return min((place for place in places if type(place) is int), default=0)


def _annotations(value: Any, device: int, events: Sequence[Event]) -> tuple[tuple[int, str], ...]:
    """Where parts that the program named begin: the number of events before, by their times."""
    if not isinstance(value, list) or not value:
        return ()
    if len(value) > _MOST_ANNOTATIONS:
        raise LimitError(f"has more than {_MOST_ANNOTATIONS:,} annotations")
    times = [event.time_us for event in events if event.time_us is not None]
    if len(times) < len(events) or any(a > b for a, b in itertools.pairwise(times)):
        return ()
    return tuple(sorted(_started(value, device, times)))


def _started(value: list[Any], device: int, times: list[int]) -> Iterator[tuple[int, str]]:
    for entry in value:
        if (
            isinstance(entry, dict)
            and entry.get("stage") == "START"
            and entry.get("device", device) == device
        ):
            name, time_us = entry.get("name"), entry.get("time_us")
            if isinstance(name, str) and type(time_us) is int:
                yield bisect.bisect_left(times, time_us), name[:_MOST_CHARACTERS]


def _settings(value: Any) -> dict[str, str]:
    """Settings of the allocator as texts; nested ones, such as those by size, are left out."""
    if not isinstance(value, dict):
        return {}
    plain = list(value.items())[:_MOST_SETTINGS]
    return {
        str(name)[:_MOST_CHARACTERS]: str(each)[:_MOST_CHARACTERS]
        for name, each in plain
        if isinstance(each, str | int | float)
    }


def _a_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise DocumentError(f"is no memory snapshot: {what} is no list")
    return value


def _a_dict(value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f"is no memory snapshot: {what} is no dict")
    return value


def _a_number(value: Any, what: str) -> int:
    if type(value) is not int:
        raise DocumentError(f"has {what} that is no whole number")
    return value


def _a_size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_SIZE_BYTES:
        raise DocumentError("has a size that no memory has")
    return value
