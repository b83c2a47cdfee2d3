"""Prints the sections of an answer on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import table as rich_table
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from autofit.answers.section import (
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Figure,
    Fit,
    Mark,
    Paragraph,
    Section,
    Table,
)
from autofit.cli.text.output import listing, stdout

_STYLES: dict[Mark, str] = {
    "": "",
    "strong": "bold",
    "quiet": "dim",
    "good": "bold green",
    "unsure": "yellow",
    "bad": "bold red",
    "bar": "cyan",
}
_CONSOLES = {"wrapped": stdout, "listed": listing, "whole": listing}
_INDENT = 2
_WIDEST = 10_000


def print_sections(sections: Iterable[Section]) -> None:
    """Prints sections with an empty line between them; figures are left out."""
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
            listed = _without_lines(Column(), Column())
            for item in block.items:
                listed.add_row("·", item)
            console.print(Padding(listed, (0, 0, 0, _INDENT), expand=False))
        case Code():
            for line in block.lines:
                console.print(Text(f"    {line}", style="cyan"), soft_wrap=True)
        case Figure():
            pass


def _print_table(table: Table, indent: int) -> None:
    console = _CONSOLES[table.fit]()
    shown = _with_header(table) if table.has_header else _without_lines(*table.columns)
    for row in table.rows:
        shown.add_row(*map(_cell, row.cells), style="bold" if row.is_chosen else "")
    if table.fit == "whole":
        widest = Measurement.get(console, console.options.update(max_width=_WIDEST), shown).maximum
        console.width = max(console.width, widest + indent)
    console.print(Padding(shown, (0, 0, 0, indent), expand=False))


def _with_header(table: Table) -> rich_table.Table:
    """Table of rich with titles and no lines; numbers, and the names in the first column, are not broken."""
    shown = rich_table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(table.columns):
        is_name = number == 0 and not table.has_long_names
        shown.add_column(
            column.title,
            justify=column.align,
            no_wrap=column.align == "right" or is_name or _is_on_one_line(number, table),
            vertical="top",
        )
    return shown


def _is_on_one_line(number: int, table: Table) -> bool:
    """Whether a column's texts are not broken; only the last column of a list gives way."""
    fits: dict[Fit, bool] = {"wrapped": False, "listed": number < len(table.columns) - 1, "whole": True}
    return fits[table.fit]


def _without_lines(*columns: Column) -> rich_table.Table:
    """Table of rich of aligned columns, two spaces apart, without a header."""
    shown = rich_table.Table.grid(padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(justify=column.align, overflow="fold")
    return shown


def _cell(cell: Cell) -> str | Text:
    return Text(cell.text, style=_STYLES[cell.mark]) if cell.mark else cell.text
