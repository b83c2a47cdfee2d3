"""Memory snapshots as PyTorch writes them, made up: events with frames, as plain values."""

from __future__ import annotations

import pickle
from typing import Any

MIB = 1 << 20
BASE = 0x7F12_0000_0000
Frame = dict[str, Any]


def frame(line: str, function: str = "forward") -> Frame:
    """Frame of a line such as `/home/me/attn.py:54`."""
    file, _, number = line.rpartition(":")
    return {"filename": file, "line": int(number), "name": function}


def cpp(name: str) -> Frame:
    return {"filename": "??", "line": 0, "name": name}


class MadeUp:
    """Builds a snapshot of one device: one segment of `size` bytes, blocks by address, events in order."""

    def __init__(self, size: int = 100 * MIB) -> None:
        self.size = size
        self.entries: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[Frame]]] = {}
        self.settings: dict[str, Any] = {"expandable_segments": False, "max_split_size": -1}
        self.annotations: list[dict[str, Any]] = []
        self._add("segment_alloc", 0, size, [])

    def _add(self, action: str, offset: int, size: int, frames: list[Frame]) -> None:
        self.entries.append(
            {
                "action": action, "addr": BASE + offset, "size": size, "stream": 0, "frames": frames,
                "time_us": 1_700_000_000_000_000 + 10 * len(self.entries), "pool_id": (0, 0),
            }
        )  # fmt: skip

    def alloc(self, offset: int, size: int, *frames: Frame) -> int:
        self._add("alloc", offset, size, list(frames))
        self.live[offset] = size, list(frames)
        return offset

    def free(self, offset: int) -> None:
        size, frames = self.live.pop(offset)
        self._add("free_requested", offset, size, frames)
        self._add("free_completed", offset, size, frames)

    def document(self) -> dict[str, Any]:
        blocks, position = [], 0
        for offset, (size, frames) in sorted(self.live.items()):
            rounded = -(-size // 512) * 512
            if position < offset:
                blocks.append(_block(position, offset - position, 0, "inactive", []))
            blocks.append(_block(offset, rounded, size, "active_allocated", frames))
            position = offset + rounded
        blocks.append(_block(position, self.size - position, 0, "inactive", []))
        segment = {
            "device": 0, "address": BASE, "total_size": self.size, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
        }  # fmt: skip
        return {
            "segments": [segment], "device_traces": [self.entries],
            "allocator_settings": self.settings, "external_annotations": self.annotations,
        }  # fmt: skip

    def pickled(self, protocol: int = 4) -> bytes:
        return pickle.dumps(self.document(), protocol)


def _block(offset: int, size: int, requested: int, state: str, frames: list[Frame]) -> dict[str, Any]:
    return {
        "address": BASE + offset, "size": size, "requested_size": requested, "state": state, "frames": frames,
    }  # fmt: skip
