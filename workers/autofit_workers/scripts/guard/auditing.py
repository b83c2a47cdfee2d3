"""Checks Python's audit events against the rules of `table`; the action of a refused event is not done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from autofit_workers.scripts.guard.table import EVENTS, Rule

# Asks a rule: the event's name, what it is about, and what goes with it.
Judge = Callable[[str, Any, Any], None]


class Audit:
    """Audit hook that checks every audit event of this process against rules; it cannot be removed.

    Args:
        judges: raise `PermissionError` where an event is not to take place.

    Attributes:
        is_on: whether the judges are asked.
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
    """Argument of an event at a position; None where the event has none, as in older Pythons."""
    return None if position is None or position >= len(arguments) else arguments[position]
