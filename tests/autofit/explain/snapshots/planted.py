"""Recorded runs with something planted: made-up steps, and streams of real runs with events put in."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterable
from typing import Any

from autofit_workers.replay.allocator import ActionKind
from autofit_workers.replay.snapshots import Event, Segment, Snapshot
from tests.workers.replay.snapshots.made_up import MIB, MadeUp, cpp, frame

KEPT, COPIED, HELD = "train.py:31:log", "loss.py:12:loss", "cache.py:7:keep"
GIB = 1 << 30
LIBRARIES = "/usr/lib/python3.11/site-packages"


def steps(number: int, *, leak: int = 0, copies: bool = False) -> MadeUp:
    """Steps of a model of four layers, each with forward, backward and optimizer.

    Args:
        leak: bytes that each step keeps.
        copies: whether the loss has its input in 32 bits.
    """
    made, place = MadeUp(64 * GIB), 0

    def alloc(size: int, *frames: Any) -> int:
        nonlocal place
        made.alloc(place, size, *frames)
        place += size + 2 * MIB
        return place - size - 2 * MIB

    for layer in range(4):
        alloc(4 * MIB + layer * MIB, frame("/me/model.py:5", "init"))
    for step in range(number):
        kept = [alloc(2 * MIB, frame("/me/train.py:10", "batch"))]
        for layer in range(4):
            kept.append(
                alloc(8 * MIB + layer * MIB, frame("/me/attn.py:54"), frame("/me/train.py:12", "main"))
            )
            made.free(alloc(3 * MIB, frame("/me/attn.py:55"), frame("/me/train.py:12", "main")))
        logits = alloc(16 * MIB, frame("/me/model.py:20"))
        kept.append(logits)
        if copies:
            kept.append(alloc(32 * MIB, cpp("at::_ops::_to_copy::call(…)"), frame("/me/loss.py:12", "loss")))
        kept.append(alloc(4, frame("/me/train.py:13", "main")))
        if leak:
            alloc(leak, frame("/me/train.py:31", "log"))
        gradients = []
        for layer in reversed(range(4)):
            gradients.append(alloc(4 * MIB + layer * MIB, cpp("torch::autograd::Engine::evaluate(…)")))
            made.free(kept.pop(1))
        for each in kept:
            made.free(each)
        for layer in range(4):
            size = 4 * MIB + layer * MIB
            if not step:
                alloc(
                    size, frame(f"{LIBRARIES}/torch/optim/adam.py:9", "step"), frame("/me/optim.py:3", "step")
                )
            made.free(alloc(size, frame("/me/optim.py:4", "step")))
        for each in gradients:
            made.free(each)
    return made


def of_own_segment(line: str, size: int, address: int) -> tuple[list[Event], Segment]:
    """Events that make a segment with one block, and what is there then."""
    made = [
        Event(ActionKind.SEGMENT_ALLOC, address, size, 0, line),
        Event(ActionKind.ALLOC, address, size, 0, line),
    ]
    return made, Segment(address, size, False, 0, {address: size}, {address: size})


def above(snapshot: Snapshot) -> int:
    """Address above all of a snapshot's."""
    every = [each.address + each.size for each in (*snapshot.events, *snapshot.segments)]
    return -(-max(every) // (1 << 31)) << 31


def with_leak(snapshot: Snapshot, size: int = 48 * MIB) -> Snapshot:
    """Recorded run that keeps one tensor more, made in forward."""
    made, segment = of_own_segment(KEPT, size, above(snapshot))
    place = middle_of_forward(snapshot)
    return dataclasses.replace(
        snapshot,
        events=(*snapshot.events[:place], *made, *snapshot.events[place:]),
        segments=(*snapshot.segments, segment),
    )


def middle_of_forward(snapshot: Snapshot) -> int:
    """Number of events up to the last allocation of forward that has a line."""
    return max(
        number + 1
        for number, event in enumerate(snapshot.events)
        if event.kind is ActionKind.ALLOC and event.where and "optimizer" not in event.where
    )


def with_copy(snapshot: Snapshot) -> Snapshot:
    """Recorded run that copies the last large tensor of forward into twice the bytes until backward ends."""
    last = max(
        number
        for number, event in enumerate(snapshot.events[: middle_of_forward(snapshot)])
        if event.kind is ActionKind.ALLOC and event.size > 32 * MIB
    )
    size, address = 2 * snapshot.events[last].size, above(snapshot)
    made, segment = of_own_segment(COPIED, size, address)
    freed = [Event(kind, address, size, 0) for kind in (ActionKind.FREE_REQUESTED, ActionKind.FREE_COMPLETED)]
    segment.live.clear()
    segment.requested.clear()
    events = [*snapshot.events[: last + 1], *made, *snapshot.events[last + 1 :], *freed]
    return dataclasses.replace(snapshot, events=tuple(events), segments=(*snapshot.segments, segment))


def with_fragments(snapshot: Snapshot, number: int = 100) -> Snapshot:
    """Recorded run with segments of 20 MiB whose last tenth one line's block keeps, the rest being free."""
    events: list[Event] = []
    segments = []
    address = above(snapshot)
    for _ in range(number):
        held = address + 18 * MIB
        events += [
            Event(ActionKind.SEGMENT_ALLOC, address, 20 * MIB, 0, HELD),
            Event(ActionKind.ALLOC, address, 18 * MIB, 0, "cache.py:6:fill"),
            Event(ActionKind.ALLOC, held, 2 * MIB, 0, HELD),
            Event(ActionKind.FREE_REQUESTED, address, 18 * MIB, 0),
            Event(ActionKind.FREE_COMPLETED, address, 18 * MIB, 0),
        ]
        segments.append(Segment(address, 20 * MIB, False, 0, {held: 2 * MIB}, {held: 2 * MIB}))
        address += 32 * MIB
    return dataclasses.replace(
        snapshot, events=(*events, *snapshot.events), segments=(*snapshot.segments, *segments)
    )


def pickled(snapshot: Snapshot) -> bytes:
    """Snapshot as the pickle that PyTorch would write."""
    base = 0x7F00_0000_0000
    entries = [
        {
            "action": event.kind.value, "addr": base + event.address, "size": event.size,
            "frames": _frames(event), "stream": event.stream, "time_us": number,
        }
        for number, event in enumerate(snapshot.events)
    ]  # fmt: skip
    segments = [
        {
            "device": 0, "address": base + each.address, "total_size": each.size, "stream": each.stream,
            "segment_type": "small" if each.is_small else "large", "segment_pool_id": (0, 0),
            "blocks": list(_blocks(each, base)),
        }
        for each in snapshot.segments
    ]  # fmt: skip
    return pickle.dumps({"segments": segments, "device_traces": [entries]}, protocol=4)


def _frames(event: Event) -> list[dict[str, Any]]:
    if not event.where:
        return []
    file, line, name = event.where.split(":")
    return [{"filename": file, "line": int(line), "name": name}]


def _blocks(segment: Segment, base: int) -> Iterable[dict[str, Any]]:
    for address, size, is_free in segment.blocks():
        yield {
            "address": base + address, "size": size, "requested_size": segment.requested.get(address, size),
            "state": "inactive" if is_free else "active_allocated",
        }  # fmt: skip
