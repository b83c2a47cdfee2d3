"""Where a script's code puts values that it keeps: the lines that add to lists, sets and dictionaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

METHODS = ("add", "append", "appendleft", "extend", "insert", "setdefault", "update")
_KINDS = (list, set, dict, deque)
_MOST = 10_000  # that are remembered

_Method = TypeVar("_Method", bound=Callable[..., Any])


class KeptIn:
    """Remembers the lines, once the script makes steps: what it prepares before grows with none.

    It holds none of what it remembers, so that nothing is kept for its sake.
    """

    def __init__(self) -> None:
        self._lines: dict[int, str] = {}
        self.is_on = False

    def by(self, line: str, method: _Method) -> _Method:
        """A line calls a method that adds to what it belongs to; gives back the method."""
        self.here(line, getattr(method, "__self__", None))
        return method

    def here(self, line: str, container: object) -> None:
        """A line adds to a container, if it is one."""
        if self.is_on and isinstance(container, _KINDS) and len(self._lines) < _MOST:
            self._lines[id(container)] = line

    def line_of(self, container: object) -> str | None:
        """The line that added to a container last; None where none did."""
        return self._lines.get(id(container)) if isinstance(container, _KINDS) else None
