"""Text of the timeline: a chart of memory, and the highest moment of every phase."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autofit.answers.words.numbers import exact, seconds_in_words
from autofit.cli.text.output import Justify, headed, print_whole, stdout, styled
from autofit.cli.text.profile import about_times, print_configuration, print_number_hidden
from autofit.explain.timing import Timing
from autofit.explain.views.timeline import Lane, Moment, TimelineView
from autofit.units import format_bytes

_HEIGHT = 12
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_FREE = "░"
_MAX_COLUMNS = 160


def print_timeline(view: TimelineView, num_phases: int | None) -> None:
    """Prints a chart of memory and a table of phases for each device.

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
        _print_phases(lane, view.timing, num_phases)
        console.print()
        for line in _sums(lane, view):
            console.print(f"  {line}", soft_wrap=True)


def chart(lane: Lane) -> Iterator[str]:
    """Lines of a text chart of allocated and reserved bytes, with a column for each moment of the step."""
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
    """Character of a chart's cell: allocated memory in eighths of a row; else a mark for reserved memory."""
    eighths = round(moment.allocated_bytes * _HEIGHT * 8 / top_bytes) - row * 8
    if eighths > 0:
        return _EIGHTHS[min(eighths, 8)]
    return _FREE if moment.reserved_bytes * _HEIGHT > (row + 0.5) * top_bytes else " "


def _names(names: Sequence[str]) -> str:
    """Line under a chart that labels each run of equal names, cut to the run's width."""
    runs = ((name, len(list(run))) for name, run in itertools.groupby(names))
    return "".join(f"│{name}"[:width].ljust(width) for name, width in runs)


def _step_name(moment: Moment) -> str:
    return f"step {moment.phase.step}" if moment.phase.step else ""


def _at(column: int, num_columns: int) -> str:
    """Line with an arrow under a chart's column and the word `peak` beside the arrow."""
    before = "peak "
    if len(before) <= column > num_columns // 2:
        return f"{before}▲".rjust(column + 1)
    return f"{' ' * column}▲ peak"


def _print_phases(lane: Lane, timing: Timing | None, num_phases: int | None) -> None:
    highest = sorted(lane.phase_peaks, key=lambda moment: -moment.allocated_bytes)[:num_phases]
    shown = sorted(highest, key=lambda moment: moment.position)
    categories = [c for c in lane.peak.categories if any(moment.categories[c] for moment in shown)]
    names = [category.value.replace("_", " ") for category in categories]
    table = headed(
        ("phase", "left"),
        *_axis_columns(timing),
        ("allocated peak", "right"),
        ("reserved", "right"),
        *((name, "right") for name in names),
    )
    for moment in shown:
        name = moment.phase.label
        table.add_row(
            f"{name} ▲" if moment == lane.peak else name,
            *((f"{moment.position:,}",) if timing is None else _times(lane, moment, timing)),
            format_bytes(moment.allocated_bytes),
            format_bytes(moment.reserved_bytes),
            *(format_bytes(moment.categories[c]) if moment.categories[c] else "–" for c in categories),
        )
    for column in table.columns:
        column.no_wrap = True
    print_whole(table)
    print_number_hidden(len(lane.phase_peaks) - len(shown))


def _axis_columns(timing: Timing | None) -> tuple[tuple[str, Justify], ...]:
    if timing is None:
        return (("after events", "right"),)
    of_step = " of the step" if timing.seconds is None else ""
    return (f"peak at{of_step}", "right"), (f"device works{of_step}", "right")


def _times(lane: Lane, moment: Moment, timing: Timing) -> Iterator[str]:
    """Texts of a phase's time of peak and its operators' device time, in seconds or shares of the step."""
    for share in (moment.step_share or 0.0, lane.phase_shares[lane.phase_peaks.index(moment)]):
        seconds = timing.seconds_of(share)
        yield f"{share:.1%}" if seconds is None else seconds_in_words(seconds)


def _sums(lane: Lane, view: TimelineView) -> Iterator[str]:
    profile, peak = view.profile, lane.peak
    num_events = len(profile.trace.events)
    yield (
        f"▲ allocated peak {format_bytes(peak.allocated_bytes)} ({exact(peak.allocated_bytes)}): "
        f"{peak.phase.label}, after {peak.position:,} of {num_events:,} events; from left to right is "
        f"{'their order' if view.timing is None else 'time, as the device comes to them'}"
    )
    yield (
        f"on {profile.card}: reserved peak {format_bytes(lane.peak_reserved_bytes)} "
        f"({exact(lane.peak_reserved_bytes)})"
    )
    if view.timing is not None:
        yield from about_times(profile, view.timing, profile.time_note)
