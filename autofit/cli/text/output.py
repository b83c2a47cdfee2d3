"""Layout of texts: consoles, and tables without lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from autofit.cli.streams import Guarded
from autofit_workers.spec.shown import shown

Justify = Literal["left", "right"]

# Columns of a list that is written to a pipe or file, wide enough that no entry is cut or wrapped.
_PIPED_WIDTH = 200
_NARROWEST = 20
_GAP = 2  # spaces between two columns


class _Console(Console):
    """Rich console that redacts secrets and escapes texts before it breaks them into lines.

    A secret in a URL that is broken in two would not be recognized afterwards.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, str):
            renderable = shown(renderable)
        elif isinstance(renderable, Text) and (plain := shown(renderable.plain)) != renderable.plain:
            renderable = Text(plain, style=renderable.style)
        return super().render(renderable, options)


def stdout() -> Console:
    """Console for results, on stdout; rich colours it on terminals only, unless NO_COLOR is set."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Console for progress, on stderr."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    own: Any = stream.own if isinstance(stream, Guarded) else stream
    console = _Console(file=own, highlight=False, markup=False, emoji=False)
    console.width = max(console.width, _NARROWEST)  # COLUMNS=0, where rich would print nothing
    return console


def listing() -> Console:
    """Console for lists, on stdout; if stdout is no terminal, no entry is broken into several lines."""
    console = stdout()
    if not console.is_terminal:
        console.width = max(console.width, _PIPED_WIDTH)
    return console


def styled(text: str, style: str) -> Text:
    """Rich text with a style, which only terminals show."""
    return Text(text, style=style)


def grid(*columns: Justify) -> Table:
    """Table without a header, its columns two spaces apart.

    Args:
        columns: alignment of each column, such as `left`.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in columns:
        table.add_column(justify=justify, overflow="fold")
    return table


def headed(*columns: tuple[str, Justify], has_long_names: bool = False) -> Table:
    """Table with a header and without lines; numbers and names are never broken over several lines.

    Names are the first column, numbers those aligned to the right.

    Args:
        columns: title and alignment of each column.
        has_long_names: whether names may be broken after all, if there is no room.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, (title, justify) in enumerate(columns):
        table.add_column(
            title,
            justify=justify,
            no_wrap=justify == "right" or (number == 0 and not has_long_names),
            vertical="top",
        )
    return table


def print_rows(
    console: Console, columns: Sequence[tuple[str, Justify]], rows: Sequence[Sequence[str | Text]]
) -> None:
    """Prints a table as `headed` lays it out, in a tenth of its time where no cell has to be broken.

    A list may have thousands of rows, for each of which rich's table takes two milliseconds.
    """
    header = [styled(title, "dim") for title, _ in columns]
    lines = [header, *([_cell(each) for each in row] for row in rows)]
    widths = [max(line[number].cell_len for line in lines) for number in range(len(columns))]
    is_broken = any("\n" in cell.plain for line in lines for cell in line)
    if is_broken or sum(widths) + _GAP * len(columns) > console.width:
        table = headed(*columns)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    text = Text(no_wrap=True)
    for line in lines:
        for cell, width, (_, justify) in zip(line, widths, columns, strict=True):
            room = " " * (width - cell.cell_len)
            text.append(room if justify == "right" else "").append_text(cell)
            text.append(("" if justify == "right" else room) + " " * _GAP)
        text.append("\n")
    text.right_crop(1)
    console.print(text, soft_wrap=True)


def _cell(content: str | Text) -> Text:
    """Text of a cell, safe to show."""
    style = content.style if isinstance(content, Text) else ""
    return Text(shown(content.plain if isinstance(content, Text) else content), style=style)
