"""Chart of a step's memory for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autofit.cli.text.output import stdout
from autofit.explain.views.timeline import Lane, Moment
from autofit.units import format_bytes

_HEIGHT = 12
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_FREE = "░"
_MAX_COLUMNS = 160
_SCALE_WIDTH = len("1023.99 GiB ┤")


def num_columns() -> int:
    """Number of columns that a memory chart may have on this terminal, from 20 to 160."""
    return max(20, min(stdout().width - _SCALE_WIDTH - 2, _MAX_COLUMNS))


def chart(lane: Lane) -> Iterator[str]:
    """Yields the lines of a text chart of allocated and reserved bytes over a step.

    Args:
        lane: memory of one device; each of its moments is a column.
    """
    top_bytes = lane.peak_reserved_bytes or 1
    for row in reversed(range(_HEIGHT)):
        cells = (_cell(moment, row, top_bytes) for moment in lane.moments)
        label = format_bytes(top_bytes * (row + 1) // _HEIGHT) if row % 4 == 3 else ""
        yield f"{label:>11} ┤{''.join(cells)}".rstrip()
    margin = " " * 11
    yield f"{margin} └{'─' * len(lane.moments)}"
    yield f"{margin}  {_names([_step_name(moment) for moment in lane.moments])}".rstrip()
    yield f"{margin}  {_names([moment.phase.name for moment in lane.moments])}".rstrip()
    peak = next(i for i, moment in enumerate(lane.moments) if moment.position == lane.peak.position)
    yield f"{margin}  {_at(peak, len(lane.moments))}"


def _cell(moment: Moment, row: int, top_bytes: int) -> str:
    """Character of a memory chart: a bar in eighths for allocated memory, else `░` for reserved memory.

    Args:
        moment: memory at the column of the character.
        row: row of the character, 0 at the bottom.
        top_bytes: bytes at the top of the chart.
    """
    eighths = round(moment.allocated_bytes * _HEIGHT * 8 / top_bytes) - row * 8
    if eighths > 0:
        return _EIGHTHS[min(eighths, 8)]
    return _FREE if moment.reserved_bytes * _HEIGHT > (row + 0.5) * top_bytes else " "


def _names(names: Sequence[str]) -> str:
    """Line of labels under a chart; a name that neighbouring columns share is written once.

    Args:
        names: name of each column, such as its phase; cut if the columns leave too little room.
    """
    runs = ((name, len(list(run))) for name, run in itertools.groupby(names))
    return "".join(f"│{name}"[:width].ljust(width) for name, width in runs)


def _step_name(moment: Moment) -> str:
    return f"step {moment.phase.step}" if moment.phase.step else ""


def _at(column: int, num_columns: int) -> str:
    """Line under a chart with an arrow at a column, and the word `peak` beside the arrow.

    Args:
        column: index of the column.
    """
    before = "peak "
    if len(before) <= column > num_columns // 2:
        return f"{before}▲".rjust(column + 1)
    return f"{' ' * column}▲ peak"
