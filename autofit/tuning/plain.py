"""Makes dataclasses again from the plain values that `dataclasses.asdict` and JSON turned them into."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

_Made = TypeVar("_Made")


def from_plain(kind: type[_Made], value: Any) -> _Made:
    """Makes an object of a type from dictionaries, lists, strings and numbers.

    What a dataclass does not know is left out, such as sums that its document shows beside it.

    Raises:
        ValueError: the value is none of that type, or lacks a field.
    """
    try:
        made: _Made = _made(kind, value)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this is not a valid {kind.__name__}: {error}") from error
    return made


def _made(kind: Any, value: Any) -> Any:  # noqa: PLR0911 - one return a kind of type
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (only,) = (argument for argument in arguments if argument is not types.NoneType)
        return _made(only, value)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_made(each, item) for each, item in zip(kinds, value, strict=True))
    if origin is dict:
        return {_made(arguments[0], key): _made(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value)
    if issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _dataclass(kind: Any, value: Mapping[str, Any]) -> Any:
    hints = _hints(kind)
    given = [each.name for each in dataclasses.fields(kind) if each.init and each.name in value]
    return kind(**{name: _made(hints[name], value[name]) for name in given})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
