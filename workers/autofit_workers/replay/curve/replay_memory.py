"""Cache of one step's replays and workspaces, shared by cards and algorithms with equal workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autofit_workers.replay.allocator import Replay
from autofit_workers.replay.spans import Workspace

_MAX_REPLAYS = 4096  # a replay takes some kB, and so do the workspaces of a step's calls

# Everything that a cached result depends on.
ReplayKey = tuple[object, ...]
_Value = TypeVar("_Value")


class ReplayMemory:
    """Cache of a step's replays, workspaces and peaks of live bytes.

    A key holds everything that a cached result depends on, such as batch size and workspaces. Each of the
    three kinds is emptied once it has 4096 entries.
    """

    def __init__(self) -> None:
        self._known: dict[ReplayKey, Replay] = {}
        self._demands: dict[ReplayKey, tuple[Workspace, ...]] = {}
        self._live_bytes: dict[ReplayKey, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: ReplayKey) -> Replay | None:
        return self._known.get(key)

    def keep(self, key: ReplayKey, result: Replay) -> Replay:
        """Caches a replay under a key, in place of an earlier one, and returns that replay."""
        return _keep(self._known, key, result)

    def demands(self, key: ReplayKey, work_out: Callable[[], tuple[Workspace, ...]]) -> tuple[Workspace, ...]:
        """Workspaces of a step's calls under a key; `work_out` computes them if they are not cached."""
        known = self._demands.get(key)
        return _keep(self._demands, key, work_out()) if known is None else known

    def live_bytes(self, key: ReplayKey, work_out: Callable[[], int]) -> int:
        """Peak of live bytes under a key; `work_out` computes it if it is not cached."""
        known = self._live_bytes.get(key)
        return _keep(self._live_bytes, key, work_out()) if known is None else known


def _keep(memory: dict[ReplayKey, _Value], key: ReplayKey, value: _Value) -> _Value:
    if len(memory) >= _MAX_REPLAYS:
        memory.clear()
    memory[key] = value
    return value
