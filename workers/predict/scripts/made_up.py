"""Numbers that stand for values of tensors on a GPU that is not there.

A script that only logs them runs on. One that compares them, counts with them or takes them for a
shape lets data decide what it does, which a prediction cannot follow: that is refused. What `math.exp`
and its like make of one is a plain number, which nothing watches any more.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

Refuse = Callable[[str], Any]

_refuse: list[Refuse] = []


def refuse_by(refuse: Refuse) -> None:
    """Says what happens to whoever lets a made-up number decide: called with what is done to it."""
    _refuse[:] = [refuse]


def refused(what: str) -> Any:
    """Refuses what is done to a value that is not there."""
    return _refuse[0](what)


def _holds_numbers(other: object) -> bool:
    """Whether it is a number, or a tensor or array of some."""
    return isinstance(other, numbers.Number) or hasattr(other, "__array__")


def _compared(name: str) -> Callable[[Any, Any], Any]:
    def compare(self: MadeUpFloat, other: Any) -> Any:
        if not _holds_numbers(other):
            return NotImplemented  # None or a string: the answer is the same for all values
        plain = float(self)
        if other is self or (isinstance(other, float | int) and not math.isfinite(other)):
            return getattr(plain, name)(other)  # so it is for all finite values
        return refused("compared")

    return compare


def _combined(name: str) -> Callable[..., Any]:
    def combine(self: MadeUpFloat, *others: Any) -> Any:
        if not all(isinstance(other, float | int | MadeUpInt) for other in others):
            return NotImplemented
        result = getattr(float, name)(float.__float__(self), *(float(other) for other in others))
        return MadeUpFloat(1.0) if isinstance(result, float) else result

    return combine


class MadeUpFloat(float):
    """A finite floating-point number; whatever is computed with it is made up as well."""

    __slots__ = ()
    for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
        locals()[f"__{_name}__"] = _compared(f"__{_name}__")
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        locals()[f"__{_name}__"] = _combined(f"__{_name}__")
        locals()[f"__r{_name}__"] = _combined(f"__r{_name}__")
    for _name in ("neg", "pos", "abs"):
        locals()[f"__{_name}__"] = _combined(f"__{_name}__")
    del _name
    __hash__ = float.__hash__

    def __bool__(self) -> bool:
        return bool(refused("compared with zero"))

    def __int__(self) -> int:
        return int(refused("converted to a whole number"))

    __trunc__ = __floor__ = __ceil__ = __int__

    def __round__(self, digits: Any = None) -> Any:
        return MadeUpInt() if digits is None else MadeUpFloat(1.0)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (1.0,)

    def __copy__(self) -> MadeUpFloat:
        return self

    def __deepcopy__(self, _memo: Any) -> MadeUpFloat:
        return self


def _counted(_self: MadeUpInt, other: Any = 0) -> Any:
    if isinstance(other, MadeUpInt | int):
        return MadeUpInt()
    return MadeUpFloat(1.0) if isinstance(other, float) else NotImplemented


def _divided(_self: MadeUpInt, other: Any) -> Any:
    return MadeUpFloat(1.0) if isinstance(other, MadeUpInt | int | float) else NotImplemented


class MadeUpInt:
    """A whole number. No `int`, whose value PyTorch would take for a shape without asking."""

    __slots__ = ()
    for _name in ("add", "sub", "mul", "floordiv", "mod"):
        locals()[f"__{_name}__"] = locals()[f"__r{_name}__"] = _counted
    del _name
    __truediv__ = __rtruediv__ = _divided
    __neg__ = __abs__ = _counted

    def __float__(self) -> float:
        return 1.0

    def __format__(self, spec: str) -> str:
        return format(1, spec)

    def __repr__(self) -> str:
        return "1"

    def __round__(self, _digits: int | None = None) -> MadeUpInt:
        return self

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        return bool(refused("compared with zero"))

    def __index__(self) -> int:
        return int(refused("used as a count or an index"))

    __int__ = __index__

    def _compare(self, other: object) -> Any:
        return refused("compared") if _holds_numbers(other) else NotImplemented

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compare


numbers.Number.register(MadeUpInt)
