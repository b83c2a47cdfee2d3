"""Import hooks that run given functions when given modules are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class ExecutingFinder(MetaPathFinder):
    """Import finder that executes the modules in `names` by calling `execute`.

    Args:
        names: names of the modules.
        execute: called with such a module and the function with which Python would execute it.
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


_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Calls `act` with a module when it is imported, or immediately if it already is; cannot be undone."""
    if name in sys.modules:
        act(sys.modules[name])
    elif name in _waiting:
        _waiting[name].append(act)
    else:
        _waiting[name] = [act]
        sys.meta_path.insert(0, ExecutingFinder((name,), _execute_and_act))


def _execute_and_act(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    execute(module)
    for act in _waiting[module.__name__]:
        act(module)
