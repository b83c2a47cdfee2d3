"""One test over many things: it fails with the name of each thing that does not hold, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def check_each(
    things: Iterable[Thing], check: Callable[[Thing], object], *, name: Callable[[Thing], str]
) -> None:
    """Checks all things, those behind one that fails too.

    Args:
        check: raises where something is wrong with a thing.
    """
    checked = {}
    for thing in things:
        try:
            check(thing)
            checked[name(thing)] = ""
        except Exception as error:  # noqa: BLE001 - it is told below, with those of the others
            checked[name(thing)] = f"{type(error).__name__}: {error}"
    assert checked, "nothing was checked"
    wrong = [f"{thing}: {why}" for thing, why in checked.items() if why]
    assert not wrong, f"{len(wrong)} of {len(checked)} are wrong:\n" + "\n".join(wrong)
