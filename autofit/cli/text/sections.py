"""Prints the sections of an answer on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from autofit.answers.figures import StepMemory
from autofit.answers.section import (
    Block,
    Bullets,
    Cell,
    Code,
    Figure,
    Mark,
    Paragraph,
    Section,
    Table,
)
from autofit.cli.text.chart import chart
from autofit.cli.text.output import grid, headed, listing, stdout

_STYLES: dict[Mark, str] = {
    "": "",
    "strong": "bold",
    "quiet": "dim",
    "good": "bold green",
    "unsure": "yellow",
    "bad": "bold red",
    "bar": "cyan",
    "code": "dim",
}
_CONSOLES = {"wrapped": stdout, "listed": listing, "whole": listing}
_INDENT = 2
_WIDEST = 10_000


def print_sections(sections: Iterable[Section]) -> None:
    """Prints sections with an empty line between them.

    Of figures only the memory over a step is drawn; the others are left out.
    """
    for number, section in enumerate(sections):
        console = stdout()
        if number:
            console.print()
        title = "" if section.is_leading else section.title
        if title:
            console.print(Text(title, style="bold"))
        indent = _INDENT if title or any(isinstance(block, Table) for block in section.blocks) else 0
        for block in section.blocks:
            _print(console, block, indent)


def _print(console: Console, block: Block, indent: int) -> None:
    """Prints one block of a section: table, paragraph, list, code or figure."""
    match block:
        case Table():
            _print_table(block, indent)
        case Paragraph():
            text = Text.assemble(*((part, _STYLES[mark]) for part, mark in block.parts()))
            if block.is_whole:
                console.print(Text.assemble(" " * indent, text), soft_wrap=True)
            else:
                console.print(Padding(text, (0, 0, 0, indent), expand=False))
        case Bullets():
            listed = grid("left", "left")
            for item in block.items:
                listed.add_row("·", item)
            console.print(Padding(listed, (0, 0, 0, _INDENT), expand=False))
        case Code():
            for line in block.lines:
                console.print(Text(f"    {line}", style="cyan"), soft_wrap=True)
        case Figure(StepMemory(lane=lane)):
            for line in chart(lane):
                console.print(f"  {line}", soft_wrap=True)
        case Figure():
            pass


def _print_table(table: Table, indent: int) -> None:
    """Prints a table of an answer, wrapped or whole as its `fit` says."""
    console = _CONSOLES[table.fit]()
    aligns = (column.align for column in table.columns)
    titles = ((column.title, column.align) for column in table.columns)
    shown = headed(*titles, has_long_names=table.has_long_names) if table.has_header else grid(*aligns)
    if table.has_header and table.fit != "wrapped":
        for column in _whole_columns(table, shown):
            column.no_wrap = True
    for row in table.rows:
        shown.add_row(*map(_cell, row.cells), style="bold" if row.is_chosen else "")
    if table.fit == "whole":
        widest = Measurement.get(console, console.options.update(max_width=_WIDEST), shown).maximum
        console.width = max(console.width, widest + indent)
    console.print(Padding(shown, (0, 0, 0, indent), expand=False))


def _whole_columns(table: Table, shown: RichTable) -> list[Column]:
    """Columns of a table whose cells must not be broken over several lines.

    They are all columns of a table that is shown whole. Else they are all but the last, if that has text, or
    else the numbers.

    Args:
        table: table of an answer.
        shown: the same table as rich prints it; its columns are returned.
    """
    if table.fit == "whole":
        return shown.columns
    if table.columns[-1].align == "left":
        return shown.columns[:-1]
    return [column for column in shown.columns if column.justify == "right"]


def _cell(cell: Cell) -> str | Text:
    return Text(cell.text, style=_STYLES[cell.mark]) if cell.mark else cell.text
