"""Number types that stand for unknown values of fake tensors, and mark results as made up.

They compute like ordinary numbers, and results of arithmetic are made up too. A branch on such a number is
recorded (`decisions`), and so is a size made from one. Results of functions such as `math.exp` or NumPy's are
ordinary numbers, whose use is no longer recorded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from autofit_workers.tracing.values.decisions import running


def made_up(value: float | bool) -> Any:
    """Made-up number with the value `value`; booleans and complex numbers are returned unchanged."""
    if isinstance(value, bool | complex):
        return value
    return MadeUpInt(value) if isinstance(value, int) else MadeUpFloat(value)


def _compared(name: str) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        plain = float(other) if isinstance(other, float) else int(other)
        way = getattr(operator, name)(self.plain, plain)
        # A comparison with itself, NaN or an infinity has the same result for all finite values.
        if other is self or not math.isfinite(plain):
            return way
        return running().decide(way)

    return compare


def _computed(name: str) -> Callable[..., Any]:
    def compute(self: Any, *others: Any) -> Any:
        plain = [each.plain if isinstance(each, MadeUpFloat | MadeUpInt) else each for each in others]
        try:
            result = getattr(self.plain, name)(*plain)
        except ZeroDivisionError:
            return MadeUpFloat(1.0)  # the real divisor would hardly be zero
        if isinstance(result, tuple):
            return tuple(map(made_up, result))
        return made_up(result) if isinstance(result, int | float) else result

    return compute


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow")
_BITWISE = ("lshift", "rshift", "and", "or", "xor")
_UNARY = ("neg", "pos", "abs", "round", "trunc", "floor", "ceil")


def _watched(kind: type) -> None:
    """Adds operators to a number class whose results are made up, and comparisons that are recorded."""
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(kind, f"__{name}__", _compared(f"__{name}__"))
    for name in (*_BINARY, *(_BITWISE if issubclass(kind, int) else ())):
        setattr(kind, f"__{name}__", _computed(f"__{name}__"))
        setattr(kind, f"__r{name}__", _computed(f"__r{name}__"))
    for name in _UNARY:
        setattr(kind, f"__{name}__", _computed(f"__{name}__"))


class MadeUpFloat(float):
    """Made-up floating-point number; results computed with it are made up as well."""

    __slots__ = ()

    @property
    def plain(self) -> float:
        """Ordinary float of the same value, whose use is not recorded."""
        return float.__float__(self)

    def __int__(self) -> int:
        return int(self.plain)  # Python requires an ordinary integer

    def __bool__(self) -> bool:
        return running().decide(self.plain != 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (self.plain,)


class MadeUpInt(int):
    """Made-up whole number; results computed with it are made up as well."""

    @property
    def plain(self) -> int:
        """Ordinary integer of the same value, whose use is not recorded."""
        return int.__int__(self)

    def __bool__(self) -> bool:
        return running().decide(self.plain != 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (self.plain,)


_watched(MadeUpFloat)
_watched(MadeUpInt)
