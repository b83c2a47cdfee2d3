"""Finds the lines of a script's code that add to lists, sets and dictionaries, and so keep objects alive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch

METHODS = ("add", "append", "appendleft", "extend", "insert", "setdefault", "update")
_KINDS = (list, set, dict, deque)
_MOST = 10_000  # containers that are remembered

_Method = TypeVar("_Method", bound=Callable[..., Any])


class KeptIn:
    """Record of the script's line that last added to each container, such as a list.

    Lists, sets, dictionaries and deques are followed, and only while the script makes steps: containers
    filled before do not grow. No container is referenced, so that none is kept alive.
    """

    def __init__(self) -> None:
        self._lines: dict[int, str] = {}
        self.is_on = False

    def by(self, line: str, method: _Method) -> _Method:
        """Records that a script's `line` calls a container's `method`, such as `append`; returns `method`."""
        if not torch.compiler.is_compiling():
            self.here(line, getattr(method, "__self__", None))
        return method

    def here(self, line: str, container: object) -> None:
        """Records that a script's `line` adds to `container`, if that is a list, set, dictionary or deque."""
        if torch.compiler.is_compiling():
            return
        if self.is_on and isinstance(container, _KINDS) and len(self._lines) < _MOST:
            self._lines[id(container)] = line

    def line_of(self, container: object) -> str | None:
        """Line of code that last added to `container`; None if unknown."""
        return self._lines.get(id(container)) if isinstance(container, _KINDS) else None
