"""Layout of texts: consoles, tables without lines, sizes and shares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Literal, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from autofit.cli.streams import Guarded
from autofit.hardware.budget import outside_allocator
from autofit.predict.estimate import Breakdown, Estimate
from autofit.report.run_in_words import short_source
from autofit.report.words import PeakNames
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from autofit_workers.spec.shown import shown

Justify = Literal["left", "right"]

_BAR_WIDTH = 20
_NUM_HOLDERS = 6
# What a list takes whose reader is a program or a file: nothing is cut or wrapped there.
_PIPED_WIDTH = 200
_WIDEST = 10_000
_NARROWEST = 20


class _Console(Console):
    """Rich console that redacts and escapes texts before layout, as a URL broken in two is not recognized."""

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
    """Console for lists, on stdout: an entry is one line wherever no terminal limits the width."""
    console = stdout()
    if not console.is_terminal:
        console.width = max(console.width, _PIPED_WIDTH)
    return console


def print_whole(table: Table) -> None:
    """Prints a table as wide as it is: nothing is cut, and a narrow terminal wraps its lines."""
    console = listing()
    widest = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    console.width = max(console.width, widest + 2)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def styled(text: str, style: str) -> Text:
    """Rich text with a style, which only terminals show."""
    return Text(text, style=style)


def heading(console: Console, text: str) -> None:
    """Prints a title with an empty line above it."""
    console.print()
    console.print(styled(text, "bold"))


def grid(*columns: Justify) -> Table:
    """Table of aligned columns, two spaces apart, without a header."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in columns:
        table.add_column(justify=justify, overflow="fold")
    return table


def headed(*columns: tuple[str, Justify], has_long_names: bool = False) -> Table:
    """Table with a header and no lines; numbers, and the names in the first column, are never broken.

    Args:
        has_long_names: whether the names are broken where there is no room for them.
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


def indented(content: Table | Text) -> Padding:
    """Rich padding that indents a section's content by two columns."""
    return Padding(content, (0, 0, 0, 2))


def bullets(console: Console, items: Iterable[str]) -> None:
    """Prints items as a bulleted list; an item's further lines are aligned with its first line."""
    table = grid("left", "left")
    for item in items:
        table.add_row("·", item)
    console.print(indented(table))


def code(console: Console, lines: Iterable[str]) -> None:
    """Prints lines of code for a user to copy, never wrapped or cut."""
    for line in lines:
        console.print(styled(f"    {line}", "cyan"), soft_wrap=True)


def exact(num_bytes: int) -> str:
    """Text of a size in bytes with every digit: `17,179,869,184 bytes`."""
    return f"{num_bytes:,} bytes"


def share(part: int, whole: int) -> str:
    """Text of a part's share in a whole, in percent: `94.1%`."""
    return f"{100 * part / whole:.1f}%"


def by_setting(result: TuneResult, *columns: tuple[str, Justify], is_folded: bool = False) -> Table:
    """Table whose first column names the knob settings of a search; untitled if settings have no names.

    Args:
        is_folded: whether a row may name several settings.
    """
    name = "\nsetting" if result.is_of_product else "conv\nalgorithm" if result.convolves else ""
    return headed((name, "left"), *columns, has_long_names=is_folded or result.is_of_product)


# ── where the memory goes ───────────────────────────────────────────────────────────────────────


def print_memory(console: Console, estimate: Estimate) -> None:
    """Prints the memory at the peak by category, the sums up to the device peak, and the largest holders."""
    table = grid("left", "right", "right", "left")
    for name, num_bytes in _parts(estimate.breakdown):
        bar = "█" * round(_BAR_WIDTH * num_bytes / estimate.peak_allocated_bytes)
        table.add_row(
            name,
            format_bytes(num_bytes),
            share(num_bytes, estimate.peak_allocated_bytes),
            styled(bar, "cyan"),
        )
    names = PeakNames.of(estimate.architecture, runs_out=estimate.runs_out)
    unused_bytes = estimate.whole_peak_bytes - estimate.peak_allocated_bytes
    for name, num_bytes, note in (
        ("= allocated peak", estimate.peak_allocated_bytes, ""),
        ("+ not in use", unused_bytes, "held by the allocator"),
        (f"= {names.reserved}", estimate.whole_peak_bytes, _spread(estimate)),
        (
            f"+ {outside_allocator(estimate.architecture, exchanges=bool(estimate.communicators))}",
            estimate.context_bytes,
            "assumed",
        ),
        (f"= {names.device}", estimate.whole_device_bytes, names.of_device),
    ):
        style = "bold" if name.startswith("=") else ""
        table.add_row(styled(name, style), styled(format_bytes(num_bytes), style), "", styled(note, "dim"))
    console.print(indented(table))
    if estimate.largest:
        heading(console, "Largest holders at that peak")
        console.print(indented(_holders(estimate)))


def _parts(breakdown: Breakdown) -> list[tuple[str, int]]:
    parts = [
        ("activations", breakdown.activations),
        ("workspace", breakdown.workspace),
        ("parameters", breakdown.parameters),
        ("gradients", breakdown.gradients),
        ("optimizer state", breakdown.optimizer_state),
        ("inputs", breakdown.inputs),
        ("temporaries, other", breakdown.other),
    ]
    return sorted((part for part in parts if part[1]), key=lambda part: part[1], reverse=True)


def _spread(estimate: Estimate) -> str:
    """Text of the low to high range of the reserved peak; empty if both are equal."""
    interval = estimate.whole_interval
    if interval.low_bytes == interval.high_bytes:
        return ""
    return f"likely; {format_bytes(interval.low_bytes)} to {format_bytes(interval.high_bytes)}"


def _holders(estimate: Estimate) -> Table:
    table = grid("right", "right", "left", "left", "left")
    for holder in estimate.largest[:_NUM_HOLDERS]:
        table.add_row(
            format_bytes(holder.num_bytes),
            share(holder.num_bytes, estimate.peak_allocated_bytes),
            holder.module or "–",
            holder.operator.removeprefix("aten."),
            styled(short_source(holder.source), "dim"),
        )
    return table
