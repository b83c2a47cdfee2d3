"""What the tests of whole benches share: which program a test runs, and what is printed.

No such test depends on a time. A bench with limits of time ends with 1 where one is exceeded, and says which.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.tables.folder import DEFAULT_TABLES
from tests.commands import Finished

ROOT = Path(__file__).parents[2]
WITHIN = "within the limits"

Run = Callable[..., Finished]


def of(*programs: str, as_module: bool = False) -> Callable[[Any], Any]:
    """Says which program a test runs, and which others that one starts.

    Args:
        as_module: whether it is started by `python -m`.
    """

    def mark(test: Any) -> Any:
        test.programs, test.is_of_module = programs, as_module
        return test

    return mark


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


needs_tables = pytest.mark.skipif(
    not DEFAULT_TABLES.exists(), reason=f"no tables of published measurements at {DEFAULT_TABLES}"
)


def all_programs() -> set[str]:
    """The programs of the benches and of the stacks."""
    files = [*(ROOT / "tests" / "bench").rglob("*.py"), *(ROOT / "tests" / "stacks").glob("*.py")]
    return {
        str(file.relative_to(ROOT))
        for file in files
        if not file.name.startswith("test_")
        and '\nif __name__ == "__main__":\n' in file.read_text(encoding="utf-8")
    }


def row_of(out: str, first_cell: str) -> list[str]:
    """The cells of the one row of Markdown that begins so."""
    (row,) = [line for line in out.splitlines() if line.startswith(f"| {first_cell}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def number_in(cell: str) -> float:
    """The first word of a cell."""
    return float(cell.split(maxsplit=1)[0])


def assert_says_what_it_exceeds(done: Finished) -> None:
    """Its exit code is that of what it says of its limits, whichever that is on this machine today."""
    last = done.out.splitlines()[-1]
    assert last == WITHIN or re.search(r"more than \d", last), done.out
    assert done.code == (last != WITHIN)
