"""The replays of one step that are remembered, so that cards and algorithms that agree share theirs."""

from __future__ import annotations

from workers.allocator import Replay

_MAX_REPLAYS = 4096  # some kB each

# All that a replay of a step depends on.
ReplayKey = tuple[object, ...]


class ReplayMemory:
    """Replays by what they depend on; once there are too many, it starts anew."""

    def __init__(self) -> None:
        self._known: dict[ReplayKey, Replay] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: ReplayKey) -> Replay | None:
        return self._known.get(key)

    def keep(self, key: ReplayKey, result: Replay) -> Replay:
        """Remembers a replay, which may take the place of one with the same key, and returns it."""
        if len(self._known) >= _MAX_REPLAYS:
            self._known.clear()
        self._known[key] = result
        return result
