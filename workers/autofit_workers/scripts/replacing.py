"""Replaces functions of modules and classes, and restores the original ones."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from autofit_workers.process.garbage import looked_through
from autofit_workers.workload.libraries.finders import when_imported

_SUPPORTED: tuple[Any, ...] = (
    os.supports_dir_fd,
    os.supports_effective_ids,
    os.supports_fd,
    os.supports_follow_symlinks,
)
_OURS = "autofit_workers."


class Replacements:
    """Replaced functions of modules and classes, which can be restored together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._is_on = True

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of a module or class; for `os`, also in sets such as `os.supports_fd`."""
        is_own = name in vars(owner)
        plain = vars(owner)[name] if is_own else getattr(owner, name)
        self._stack.callback(setattr if is_own else _unset, owner, name, plain)
        for functions in _SUPPORTED if owner is os else ():
            if plain in functions:
                functions.add(value)
                self._stack.callback(functions.discard, value)
        setattr(owner, name, value)

    def put_everywhere(self, replaced: Sequence[tuple[Any, Any]]) -> None:
        """Replaces functions in every module namespace that holds a reference to them.

        Args:
            replaced: pairs of a function and its replacement.
        """
        values = {id(plain): value for plain, value in replaced}
        with looked_through():
            holders = gc.get_referrers(*(plain for plain, _ in replaced))
        for holder in holders:
            if not isinstance(holder, dict) or str(holder.get("__name__", "")).startswith(_OURS):
                continue
            for name, plain in [each for each in holder.items() if id(each[1]) in values]:
                self._stack.callback(holder.__setitem__, name, plain)
                holder[name] = values[id(plain)]

    def when_imported(self, module: str, act: Callable[[ModuleType], None]) -> None:
        """Calls `act` with a module once it is imported, unless the replacements were undone before."""

        def acted(found: ModuleType) -> None:
            if self._is_on:
                act(found)

        when_imported(module, acted)

    def callback(self, act: Callable[..., Any], *args: Any) -> None:
        """Registers `act` to be called when all replacements are undone."""
        self._stack.callback(act, *args)

    def take_back(self) -> None:
        self._is_on = False
        self._stack.close()


def _unset(owner: Any, name: str, _plain: Any) -> None:
    """Deletes an attribute, so that a class inherits it again; third argument as of `setattr`."""
    delattr(owner, name)
