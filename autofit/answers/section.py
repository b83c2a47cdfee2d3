"""Sections of an answer as data, without a layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from autofit.answers.figures import Drawing

Align = Literal["left", "right"]
# Emphasis of a text, or the verdict that the text states; readers who see no marks miss nothing.
Mark = Literal["", "strong", "quiet", "good", "unsure", "bad", "bar", "code"]
# `wrapped` keeps to the width of a terminal; `listed` likewise, but has one line a row where there is no
# terminal; `whole` is never wrapped or cut.
Fit = Literal["wrapped", "listed", "whole"]

_ALIGNS: dict[str, Align] = {"<": "left", ">": "right"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Table cell: its text, and emphasis or colour of the text.

    Attributes:
        mark: emphasis or colour of the text, such as `strong` or `bad`; empty for none.
        detail: exact value behind a rounded text, shown as a tooltip of the HTML page.
    """

    text: str
    mark: Mark = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Table row; `is_chosen` marks the row of the recommended configuration."""

    cells: tuple[Cell, ...]
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """Table column: its title, and how its cells are aligned.

    Attributes:
        title: title in the header. A line break in it marks where it may be broken if there is little width.
    """

    title: str = ""
    align: Align = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Block of aligned columns; it has no header if no column has a title.

    Attributes:
        fit: layout on a narrow terminal: `wrapped` to its width, `listed` (wrapped, but one line a row if
            the output is no terminal), or `whole` (never wrapped).
        has_long_names: whether names in the first column may be broken over several lines.
    """

    kind: ClassVar = "table"
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    fit: Fit = "wrapped"
    has_long_names: bool = False

    @property
    def has_header(self) -> bool:
        return any(column.title for column in self.columns)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Block of text: one or more sentences.

    Attributes:
        mark: emphasis or colour, such as `strong`, of the words in `marked`; of the whole text if `marked` is
            empty.
        marked: words of the text that have the mark.
        is_whole: whether the text is never wrapped to a terminal's width, so that it can be copied.
    """

    kind: ClassVar = "paragraph"
    text: str
    mark: Mark = ""
    marked: tuple[str, ...] = ()
    is_whole: bool = False

    def parts(self) -> Iterator[tuple[str, Mark]]:
        """Yields the pieces of the text in order, each with its mark; empty for pieces not in `marked`."""
        words = [re.escape(word) for word in self.marked if word]
        if not words:
            yield self.text, self.mark
            return
        for number, part in enumerate(re.split(f"({'|'.join(words)})", self.text)):
            if part:
                yield part, self.mark if number % 2 else ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """Block with a bulleted list."""

    kind: ClassVar = "bullets"
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Block of code lines for the user to copy."""

    kind: ClassVar = "code"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """Block with a figure, which the HTML page draws; a terminal draws only figures of type `StepMemory`."""

    kind: ClassVar = "figure"
    drawing: Drawing


Block = Table | Paragraph | Bullets | Code | Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Part of an answer: blocks (tables, paragraphs, lists, code, figures) under a title.

    Attributes:
        name: identifier of the section within its answer, for programs and for links.
        is_leading: whether a terminal leaves the title out, as it is not needed at the top of an answer.
    """

    name: str
    title: str = ""
    blocks: tuple[Block, ...]
    is_leading: bool = False


def left(title: str = "") -> Column:
    """Left-aligned table column, for text."""
    return Column(title)


def right(title: str = "") -> Column:
    """Right-aligned table column, for numbers."""
    return Column(title, "right")


def row(*cells: str | Cell, is_chosen: bool = False) -> Row:
    """Table row made of cells; plain texts become cells without emphasis.

    Args:
        is_chosen: whether to mark the row as that of the recommended configuration.
    """
    return Row(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells), is_chosen)


def table(
    columns: Iterable[Column],
    rows: Iterable[Row | Iterable[str | Cell]],
    *,
    fit: Fit = "wrapped",
    has_long_names: bool = False,
) -> Table:
    """Table made of columns and rows; plain texts in the rows become cells without emphasis.

    Args:
        fit: layout on a narrow terminal, see `Table`.
        has_long_names: whether names in the first column may be broken over several lines.
    """
    return Table(
        columns=tuple(columns),
        rows=tuple(each if isinstance(each, Row) else row(*each) for each in rows),
        fit=fit,
        has_long_names=has_long_names,
    )


def grid(aligns: str, rows: Iterable[Row | Iterable[str | Cell]], *, fit: Fit = "wrapped") -> Table:
    """Table without a header.

    Args:
        aligns: one character for each column: `<` for left-aligned text, `>` for right-aligned numbers.
        fit: layout on a narrow terminal, see `Table`.
    """
    return table((Column(align=_ALIGNS[align]) for align in aligns), rows, fit=fit)


def quiet(text: str) -> Cell:
    """Cell with text of less weight, such as a note."""
    return Cell(text, "quiet")


def strong(text: str) -> Cell:
    """Cell with emphasized text, such as the main result."""
    return Cell(text, "strong")
