"""Makes dataclasses again from the plain values that `dataclasses.asdict` and JSON turned them into."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

_Made = TypeVar("_Made")
_Maker = Callable[[Any], Any]


def from_plain(kind: type[_Made], value: Any) -> _Made:
    """Makes an object of a type from dictionaries, lists, strings and numbers.

    What a dataclass does not know is left out, such as sums that its document shows beside it.

    Raises:
        ValueError: the value is none of that type, or lacks a field.
    """
    try:
        made: _Made = _maker(kind)(value)  # type: ignore[arg-type]
    except (TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is not a valid {kind.__name__}: {error}") from error
    return made


@functools.cache
def _maker(kind: Any) -> _Maker:  # noqa: PLR0911 - one return a kind of type
    """What makes values of a type; found once, since thousands of records have few types."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (only,) = (argument for argument in arguments if argument is not types.NoneType)
        make_one = _maker(only)
        return lambda value: None if value is None else make_one(value)
    if origin is tuple:
        return _tuple(arguments)
    if origin in (dict, Mapping):
        key, item = map(_maker, arguments)
        return lambda value: {key(name): item(each) for name, each in _typed(Mapping, value).items()}
    if kind is Any:
        return lambda value: value
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if issubclass(kind, Enum):
        return kind  # type: ignore[no-any-return]
    if kind is float:
        return lambda value: float(value) if _is_int(value) else _typed(float, value)
    if kind is int:
        return _int
    return functools.partial(_typed, kind)


def _tuple(arguments: tuple[Any, ...]) -> _Maker:
    if arguments[-1] is Ellipsis:
        make_one = _maker(arguments[0])
        return lambda value: tuple(map(make_one, value))
    makers = tuple(map(_maker, arguments))
    return lambda value: tuple(make(item) for make, item in zip(makers, value, strict=True))


def _dataclass(kind: Any) -> _Maker:
    hints = typing.get_type_hints(kind)
    known = [each for each in dataclasses.fields(kind) if each.init]
    makers = {each.name: _maker(hints[each.name]) for each in known}
    missing = dataclasses.MISSING
    needed = {each.name for each in known if each.default is missing and each.default_factory is missing}

    def make_one(value: Any) -> Any:
        if lacking := needed.difference(_typed(Mapping, value)):
            raise LookupError(f"it lacks {', '.join(sorted(lacking))}")
        return kind(**{name: make(value[name]) for name, make in makers.items() if name in value})

    return make_one


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _int(value: Any) -> int:
    if not _is_int(value):
        raise TypeError(f"{value!r} is not of type int")
    return int(value)


def _typed(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
