"""Rebuilds dataclasses from the plain values of `dataclasses.asdict` and JSON."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

_Made = TypeVar("_Made")


def from_plain(kind: type[_Made], value: Any) -> _Made:
    """Makes an object of a type from plain values as JSON has them: dictionaries, lists, strings, numbers.

    Keys without a field in the dataclass, such as totals that only a document has, are ignored.

    Args:
        kind: the type, such as a dataclass or `tuple[int, ...]`.
        value: the plain values.

    Raises:
        ValueError: the value is not of that type, or lacks a field.
    """
    try:
        made: _Made = _maker(typing.cast("Any", kind))(value)
    except (TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is not a valid {kind.__name__}: {error}") from error
    return made


@functools.cache
def _maker(kind: Any) -> Callable[[Any], Any]:  # noqa: PLR0911 - one return a kind of type
    """Returns a function that makes a value of the type `kind` from plain values as JSON has them; cached."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = tuple(argument for argument in arguments if argument is not types.NoneType)
        make = _maker(kinds[0]) if len(kinds) == 1 else _one_of_maker(kinds)
        return lambda value: None if value is None and len(kinds) < len(arguments) else make(value)
    if origin is Sequence:
        return _tuple_maker((*arguments, ...))
    if origin is tuple:
        return _tuple_maker(arguments)
    if kind is Any:
        return lambda value: value
    if origin in (dict, Mapping):
        key, item = map(_maker, arguments)
        return lambda value: {key(each): item(value[each]) for each in _instance(dict, value)}
    if dataclasses.is_dataclass(kind):
        return functools.partial(_dataclass, kind)
    if issubclass(kind, Enum):
        return lambda value: kind(_instance(str, value))
    return functools.partial(_instance, kind)


def _one_of_maker(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Returns a function that accepts a value of one of several types that JSON has, such as `bool | str`."""
    makers = tuple(map(_maker, kinds))

    def make(value: Any) -> Any:
        for each in makers:
            with suppress(TypeError):
                return each(value)
        raise TypeError(
            f"{reprlib.repr(value)} is not of type {' or '.join(kind.__name__ for kind in kinds)}"
        )

    return make


def _tuple_maker(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if arguments[-1] is Ellipsis:
        make = _maker(arguments[0])
        return lambda value: tuple(map(make, _sequence(value)))
    makers = tuple(map(_maker, arguments))
    return lambda value: tuple(make(each) for make, each in zip(makers, _sequence(value), strict=True))


def _sequence(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{reprlib.repr(value)} is not a list")
    return value


def _instance(kind: Any, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{reprlib.repr(value)} is not of type {kind.__name__}")
    return value


def _dataclass(kind: Any, value: Mapping[str, Any]) -> Any:
    given = _instance(dict, value)
    makers, needed = _fields(kind)
    if lacking := needed.difference(given):
        raise LookupError(f"it lacks {', '.join(sorted(lacking))}")
    return kind(**{name: make(given[name]) for name, make in makers.items() if name in given})


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Callable[[Any], Any]], frozenset[str]]:
    """Functions that make the fields of a dataclass from plain values, and the fields that are required.

    Args:
        kind: the dataclass.

    Returns:
        The function of each field by the field's name, and the names of the fields without a default.
    """
    hints = typing.get_type_hints(kind)
    known = [each for each in dataclasses.fields(kind) if each.init]
    missing = dataclasses.MISSING
    needed = {each.name for each in known if each.default is missing and each.default_factory is missing}
    return {each.name: _maker(hints[each.name]) for each in known}, frozenset(needed)
