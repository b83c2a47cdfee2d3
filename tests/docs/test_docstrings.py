"""First lines of docstrings: one who reads no more knows what is described."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "autofit", ROOT / "workers" / "autofit_workers")
# A pronoun at the beginning stands for something that the line does not name.
POINTING = re.compile(
    r"(What|The same|Of|Those|It|That|They|These|This|Its|Their|Such|Likewise|Whatever|Which|Who|Whoever)\b"
    r"|(Whether|Why|How|Where|When|If) (it|they|this|that|these|those|one)\b",
    re.IGNORECASE,
)


def first_lines(code: str) -> Iterator[tuple[int, str]]:
    """Line number of each definition in a module, with the first line of its docstring."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.split("\n")[0]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_first_line_begins_with_a_pronoun(package: Path) -> None:
    lines = [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in sorted(package.rglob("*.py"))
        for number, line in first_lines(path.read_text(encoding="utf-8"))
    ]
    assert len(lines) > 2000
    assert [f"{place}: {line}" for place, line in lines if POINTING.match(line)] == []


@pytest.mark.parametrize("line", ["What is known of it.", "The same from then on.", "Whether it is one."])
def test_a_line_that_points_elsewhere_is_found(line: str) -> None:
    ((_, found),) = first_lines(f'def function():\n    """{line}"""')
    assert POINTING.match(found)


@pytest.mark.parametrize(
    "line", ["Whether a size fits.", "Item of a queue.", "Thickness of a line, in pixels."]
)
def test_a_line_that_names_its_thing_is_not(line: str) -> None:
    assert not POINTING.match(line)
