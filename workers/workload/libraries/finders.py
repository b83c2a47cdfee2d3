"""Imports of some modules that run in a way of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class ExecutingFinder(MetaPathFinder):
    """Finds modules where they are installed, and executes them as it is told.

    Args:
        names: of the modules.
        execute: called with such a module and with what executes it, as Python would.
    """

    def __init__(
        self, names: Collection[str], execute: Callable[[ModuleType, Callable[[ModuleType], None]], None]
    ) -> None:
        self._names = names
        self._execute = execute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            execute, as_python = self._execute, spec.loader.exec_module
            spec.loader.exec_module = lambda module: execute(module, as_python)  # type: ignore[method-assign]
        return spec
