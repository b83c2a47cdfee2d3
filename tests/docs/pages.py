"""Commands on the site's pages, and what the pages show of their output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"
LEFT_OUT = "…"
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True, slots=True)
class Command:
    """Command of autofit on a page.

    Attributes:
        page: the page's name.
        variables: what is set in front of it, as `NAME=VALUE`.
        words: its words, without the program's name.
        shown: lines of the output that the page shows; None where it shows none.
        is_run: whether it can be run here, without a GPU, a cluster, the network or minutes.
    """

    page: str
    variables: tuple[str, ...]
    words: tuple[str, ...]
    shown: tuple[str, ...] | None
    is_run: bool

    @property
    def text(self) -> str:
        return shlex.join((*self.variables, "autofit", *self.words))


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block."""
    for block in _BLOCK.finditer(text):
        yield block[1], block[2]


def commands_of(page: Path) -> Iterator[Command]:
    """Commands in a page's blocks of `sh`, `bash` and `console`.

    Those in `bash` want a GPU, a cluster, the network or minutes, and are not run.
    """
    for language, block in blocks(page.read_text(encoding="utf-8")):
        if language in ("sh", "bash"):
            for line in block.splitlines():
                if found := _command(line):
                    yield Command(page.name, *found, shown=None, is_run=language == "sh")
        elif language == "console":
            for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, *shown = example.splitlines()
                found = _command(line)
                assert found, f"{page.name}: {line}"
                yield Command(page.name, *found, shown=tuple(shown), is_run=True)


def _command(line: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    words = shlex.split(line, comments=True)
    start = next((place for place, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    if words[start : start + 1] != ["autofit"]:
        return None
    arguments = words[start + 1 :]
    end = next((place for place, word in enumerate(arguments) if word in (">", "|", "&&")), len(arguments))
    return tuple(words[:start]), tuple(arguments[:end])


def missing_line(shown: Sequence[str], printed: Sequence[str]) -> str | None:
    """First of the shown lines that is not printed where it is shown; None if all are.

    A line `…` stands for any number of lines, and one at the end of a line for the rest of it.
    """
    place, may_skip = 0, False
    for line in shown:
        if line == LEFT_OUT:
            may_skip = True
            continue
        found = next((at for at in range(place, len(printed)) if _is_line(line, printed[at])), None)
        if found is None or (found != place and not may_skip):
            return line
        place, may_skip = found + 1, False
    return None


def _is_line(shown: str, printed: str) -> bool:
    if shown.endswith(LEFT_OUT):
        return printed.startswith(shown.removesuffix(LEFT_OUT))
    return printed == shown
