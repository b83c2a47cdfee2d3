"""The text of the timeline: a chart of blocks, and the highest moment of every phase."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autofit.cli.text.output import exact, headed, print_whole, stdout, styled
from autofit.cli.text.profile import print_configuration, print_number_hidden
from autofit.explain.views.timeline import Lane, Moment, TimelineView
from autofit.units import format_bytes

_HEIGHT = 12
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_FREE = "░"
_MAX_COLUMNS = 160


def print_timeline(view: TimelineView, num_phases: int | None) -> None:
    """Prints a chart and a table for each device.

    Args:
        num_phases: the table's rows, the phases with the highest peaks; None for all.
    """
    console = stdout()
    print_configuration(view.profile)
    scale_width = len("1023.99 GiB ┤")
    num_columns = max(20, min(console.width - scale_width - 2, _MAX_COLUMNS))
    for lane in view.lanes(num_columns):
        console.print(styled(lane.device, "bold"), "█ allocated  ░ reserved, not allocated")
        for line in chart(lane):
            console.print(f"  {line}", soft_wrap=True)
        console.print()
        _print_phases(lane, num_phases)
        console.print()
        for line in _sums(lane, view):
            console.print(f"  {line}", soft_wrap=True)


def chart(lane: Lane) -> Iterator[str]:
    """The lines of a chart of allocated and reserved bytes, one column a moment."""
    top_bytes = lane.peak_reserved_bytes or 1
    for row in reversed(range(_HEIGHT)):
        cells = (_cell(moment, row, top_bytes) for moment in lane.moments)
        label = format_bytes(top_bytes * (row + 1) // _HEIGHT) if row % 4 == 3 else ""
        yield f"{label:>11} ┤{''.join(cells)}".rstrip()
    margin = " " * 11
    yield f"{margin} └{'─' * len(lane.moments)}"
    yield f"{margin}  {_names([_step_name(moment) for moment in lane.moments])}".rstrip()
    yield f"{margin}  {_names([moment.phase.name for moment in lane.moments])}".rstrip()
    yield f"{margin}  {_at(lane.moments.index(lane.peak), len(lane.moments))}"


def _cell(moment: Moment, row: int, top_bytes: int) -> str:
    """One character: eighths of a row of allocated memory, then what is reserved beside it."""
    eighths = round(moment.allocated_bytes * _HEIGHT * 8 / top_bytes) - row * 8
    if eighths > 0:
        return _EIGHTHS[min(eighths, 8)]
    return _FREE if moment.reserved_bytes * _HEIGHT > (row + 0.5) * top_bytes else " "


def _names(names: Sequence[str]) -> str:
    """Each run of one name as a bar with as much of the name as there is room for."""
    runs = ((name, len(list(run))) for name, run in itertools.groupby(names))
    return "".join(f"│{name}"[:width].ljust(width) for name, width in runs)


def _step_name(moment: Moment) -> str:
    return f"step {moment.phase.step}" if moment.phase.step else ""


def _at(column: int, num_columns: int) -> str:
    """An arrow under a column with its meaning beside it, on the side with more room."""
    before = "peak "
    if len(before) <= column > num_columns // 2:
        return f"{before}▲".rjust(column + 1)
    return f"{' ' * column}▲ peak"


def _print_phases(lane: Lane, num_phases: int | None) -> None:
    highest = sorted(lane.phase_peaks, key=lambda moment: -moment.allocated_bytes)[:num_phases]
    shown = sorted(highest, key=lambda moment: moment.position)
    categories = [c for c in lane.peak.categories if any(moment.categories[c] for moment in shown)]
    names = [category.value.replace("_", " ") for category in categories]
    table = headed(
        ("phase", "left"),
        ("after events", "right"),
        ("allocated peak", "right"),
        ("reserved", "right"),
        *((name, "right") for name in names),
    )
    for moment in shown:
        name = moment.phase.label
        table.add_row(
            f"{name} ▲" if moment == lane.peak else name,
            f"{moment.position:,}",
            format_bytes(moment.allocated_bytes),
            format_bytes(moment.reserved_bytes),
            *(format_bytes(moment.categories[c]) if moment.categories[c] else "–" for c in categories),
        )
    for column in table.columns:
        column.no_wrap = True
    print_whole(table)
    print_number_hidden(len(lane.phase_peaks) - len(shown))


def _sums(lane: Lane, view: TimelineView) -> Iterator[str]:
    profile, peak = view.profile, lane.peak
    num_events = len(profile.trace.events)
    yield (
        f"▲ allocated peak {format_bytes(peak.allocated_bytes)} ({exact(peak.allocated_bytes)}): "
        f"{peak.phase.label}, after {peak.position:,} of {num_events:,} events; a profile records no times"
    )
    yield (
        f"on {profile.card}: reserved peak {format_bytes(lane.peak_reserved_bytes)} "
        f"({exact(lane.peak_reserved_bytes)})"
    )
