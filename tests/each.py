"""Check of many things in one test, which fails with the name and error of each wrong thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def check_each(
    things: Iterable[Thing], check: Callable[[Thing], object], *, name: Callable[[Thing], str]
) -> None:
    """Checks all things, also after one has failed, and then fails with all errors.

    Args:
        check: raises where something is wrong with a thing.
        name: returns a thing's name for the message.
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
