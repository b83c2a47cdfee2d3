"""What is remembered of one step, so that cards and algorithms that agree share it: replays, demands."""

from __future__ import annotations

from collections.abc import Callable

from workers.allocator import Replay
from workers.predict.spans import Workspace

_MAX_REPLAYS = 4096  # some kB each, as a step's demands

# All that a replay of a step depends on, or what its calls demand.
ReplayKey = tuple[object, ...]


class ReplayMemory:
    """Replays and demands by what they depend on; once there are too many of either, it starts anew."""

    def __init__(self) -> None:
        self._known: dict[ReplayKey, Replay] = {}
        self._demands: dict[ReplayKey, tuple[Workspace, ...]] = {}

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

    def demands(self, key: ReplayKey, work_out: Callable[[], tuple[Workspace, ...]]) -> tuple[Workspace, ...]:
        """What calls take beside their outputs, worked out once: a search comes back to its sizes."""
        if key not in self._demands:
            if len(self._demands) >= _MAX_REPLAYS:
                self._demands.clear()
            self._demands[key] = work_out()
        return self._demands[key]
