"""The mark by which what a module's searches start is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.marks import marking


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """Marks the processes that a module's searches and its cluster start, however far down."""
    with marking() as value:
        yield value
