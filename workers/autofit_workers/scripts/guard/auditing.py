"""Checks Python's audit events against the rules of `table`; a refused event's action does not happen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from autofit_workers.scripts.guard.table import EVENTS, Rule

# Checks an event by its name, its subject and a further argument; raises `PermissionError` to refuse it.
Judge = Callable[[str, Any, Any], None]


class Audit:
    """Audit hook that checks every audit event of this process against rules; it cannot be removed.

    Args:
        judges: functions that raise `PermissionError` for an event that must not happen.

    Attributes:
        is_on: whether events are checked.
    """

    def __init__(self, judges: Mapping[Rule, Judge]) -> None:
        self.is_on = True
        self._asked = {
            name: [(judges[event.rule], event.places) for event in events if event.rule in judges]
            for name, events in EVENTS.items()
        }
        sys.addaudithook(self._hear)

    def _hear(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        for judge, places in self._asked.get(name, ()):
            for position, beside in places or ((None, None),):
                judge(name, _at(arguments, position), _at(arguments, beside))


def _at(arguments: tuple[Any, ...], position: int | None) -> Any:
    """Argument of an audit event at a position; None if the event has none there, as in older Pythons."""
    return None if position is None or position >= len(arguments) else arguments[position]
