"""Parts of lists of values that one SQL query may name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

_MOST_VALUES = 500  # in one query; SQLite takes 999 at least
_Value = TypeVar("_Value")


def query_parts(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """Yields the values in parts that are short enough for one query."""
    for first in range(0, len(values), _MOST_VALUES):
        yield values[first : first + _MOST_VALUES]
