"""Lays out sections as Markdown, for comments on pull requests and for pages.

Tables are GitHub's. What others wrote, such as names and lines of code, is escaped, so that it stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from autofit.answers.section import Block, Bullets, Cell, Code, Paragraph, Section, Table

_ACTIVE = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
_LINES = re.compile(r"\s*[\r\n]+\s*")
_BOLD = ("strong", "bad")


def markdown(sections: Iterable[Section], *, level: int = 3) -> str:
    """Text of sections in Markdown, which ends with a line break; figures are left out.

    Args:
        sections: the sections.
        level: level of their headings.
    """
    parts: list[str] = []
    for section in sections:
        if section.title:
            parts.append(f"{'#' * level} {escaped(section.title)}")
        parts += [text for block in section.blocks if (text := _block(block))]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text as Markdown shows it, on one line, whatever characters it has."""
    return _ACTIVE.sub(r"\\\1", _LINES.sub(" ", text))


def code_span(text: str) -> str:
    """Text as code within a line; a longer fence surrounds backticks."""
    one_line = _LINES.sub(" ", text)
    fence = "`" * (1 + max((len(each) for each in re.findall("`+", one_line)), default=0))
    space = " " if one_line.startswith("`") or one_line.endswith("`") else ""
    return f"{fence}{space}{one_line}{space}{fence}"


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block)
        case Paragraph():
            return "".join(_marked(escaped(part), mark) for part, mark in block.parts())
        case Bullets():
            return "\n".join(f"- {escaped(item)}" for item in block.items)
        case Code():
            return "\n".join(("```", *block.lines, "```"))
    return ""


def _table(table: Table) -> str:
    titles = [escaped(column.title) for column in table.columns]
    aligns = ["---:" if column.align == "right" else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row.cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, aligns, *rows))


def _cell(cell: Cell) -> str:
    if cell.mark == "code":
        return code_span(cell.text).replace("|", "\\|") if cell.text else ""
    return _marked(escaped(cell.text), cell.mark)


def _marked(text: str, mark: str) -> str:
    return f"**{text}**" if mark in _BOLD and text.strip() else text
