"""The text of a profile's views."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from autofit.answers.words.numbers import exact, seconds_in_words, span_of_seconds
from autofit.cli.text.output import Justify, headed, print_whole, stdout, styled
from autofit.explain.profile import Profile, timed_step
from autofit.explain.sizes import Sizes
from autofit.explain.timing import Timing
from autofit.explain.views.filters import SECONDS, Filters
from autofit.explain.views.ops import OperatorRow
from autofit.explain.views.selection import Selection
from autofit.explain.views.tensors import TensorRow
from autofit.explain.views.tree import TreeRow
from autofit.explain.views.view import TIMED_KINDS, View
from autofit.settings.words import configuration
from autofit.units import format_bytes

_Column = tuple[str, Justify]


def print_view(view: View[OperatorRow] | View[TreeRow] | View[TensorRow], filters: Filters) -> None:
    """Prints a view of a profile: its configuration, rows, number of hidden rows, and sums."""
    print_configuration(view.selection.profile)
    groups = list(_shown(view, filters))
    table = headed(*itertools.chain.from_iterable(group.columns for group in groups))
    for row in view.rows:
        table.add_row(*itertools.chain.from_iterable(group.cells(row) for group in groups))
    for column in table.columns:
        column.no_wrap = True
    print_whole(table)
    console = stdout()
    print_number_hidden(view.num_passing - len(view.rows))
    console.print()
    for line in _sums(view.total, view.selection):
        console.print(f"  {line}", soft_wrap=True)
    if view.kind in TIMED_KINDS:
        for line in about_times(view.selection.profile, view.selection.timing, view.selection.time_note):
            console.print(f"  {line}", soft_wrap=True)


def about_times(profile: Profile, timing: Timing | None, note: str) -> Iterator[str]:
    """Lines that explain a view's times, or why the view has no times or no seconds."""
    if timing is not None:
        step = f"step {timed_step(profile)}"
        waits = f"of which the device waits {timing.waiting_share:.1%} for the host"
        if timing.seconds is None:
            yield f"shares of time are of {step}, {waits}"
        else:
            yield f"{step} is predicted to take {span_of_seconds(timing.seconds)}, {waits}"
    yield note


def print_configuration(profile: Profile) -> None:
    """Prints the configuration that was profiled, above a view."""
    console, trace = stdout(), profile.trace
    knobs = configuration(profile.knobs, trace.mode, trace.batch_kind, trace.among_ranks, rank=trace.rank)
    algorithm = f"{profile.knobs.conv_algo} · " if trace.convolves else ""
    console.print(styled(trace.workload, "bold"), f"at batch {trace.batch_size} · {algorithm}{knobs}")
    console.print()


def print_number_hidden(num_rows: int) -> None:
    """Prints how many rows a table leaves out, if any."""
    if num_rows:
        stdout().print(f"  … and {num_rows} more: --all shows them")


def _sums(total: Sizes, selection: Selection) -> Iterator[str]:
    profile = selection.profile
    yield (
        f"{f'step {selection.step}' if selection.step else 'building the model'}: "
        f"{total.count:,} allocations, {format_bytes(total.requested_bytes)} requested, "
        f"{format_bytes(total.peak_bytes)} of blocks at the peak ({exact(total.peak_bytes)})"
    )
    allocated, reserved = profile.peak_allocated_bytes, profile.peak_reserved_bytes
    yield (
        f"on {profile.card}: allocated peak {format_bytes(allocated)} ({exact(allocated)}), "
        f"reserved peak {format_bytes(reserved)}"
    )


# ── columns ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Group of columns of a view that `--select` shows or hides together.

    Attributes:
        cells: returns a row's cells, one for each of `columns`.
    """

    columns: tuple[_Column, ...]
    cells: Callable[[Any], Iterable[str]]


def _shown(view: View[Any], filters: Filters) -> Iterator[_Group]:
    """Groups of columns that a view shows: names, the selected groups, and the row's other facts."""
    first, groups, last = _LAYOUTS[view.kind](view.selection.timing)
    names = [name for name in ("bytes", "count", "peak-bytes", SECONDS) if name in groups]
    if filters.order_by == SECONDS:
        names.sort(key=lambda name: name != SECONDS)
    yield first
    yield from (groups[name] for name in names if name in filters.select)
    yield last


_Layout = tuple[_Group, dict[str, _Group], _Group]
_NOTHING = _Group(columns=(), cells=lambda _: ())


def _operators(timing: Timing | None) -> _Layout:
    names = _Group(columns=(("operator", "left"), ("phase", "left")), cells=lambda row: (row.name, row.phase))
    groups = {
        "bytes": _Group(
            columns=(("requested", "right"), ("this and below", "right"), ("share", "right")),
            cells=lambda row: (
                _or_dash(row.sizes.requested_bytes),
                f"{row.cumulative_share:.2%}",
                f"{row.share:.2%}",
            ),
        ),
        "count": _Group(columns=(("count", "right"),), cells=lambda row: (f"{row.sizes.count:,}",)),
        "peak-bytes": _Group(
            columns=(("at the peak", "right"),), cells=lambda row: (_or_dash(row.sizes.peak_bytes),)
        ),
    }
    if timing is not None:
        groups[SECONDS] = _Group(
            columns=(*_if_stated(timing, "time"), ("of the step", "right")),
            cells=lambda row: _times(timing, row.sizes),
        )
    return names, groups, _NOTHING


def _trees(timing: Timing | None) -> _Layout:
    names = _Group(
        columns=(("node", "left"),), cells=lambda row: ("  " * row.depth + _without_folders(row.name),)
    )
    groups = {
        "bytes": _Group(
            columns=(("requested: own", "right"), ("with all below", "right")),
            cells=lambda row: (_or_dash(row.own.requested_bytes), _or_dash(row.sizes.requested_bytes)),
        ),
        "count": _Group(columns=(("count", "right"),), cells=lambda row: (f"{row.sizes.count:,}",)),
        "peak-bytes": _Group(
            columns=(("at the peak: own", "right"), ("with all below", "right")),
            cells=lambda row: (_or_dash(row.own.peak_bytes), _or_dash(row.sizes.peak_bytes)),
        ),
    }
    if timing is not None and timing.seconds is None:
        groups[SECONDS] = _Group(
            columns=(("of the step: own", "right"), ("with all below", "right")),
            cells=lambda row: (*_times(timing, row.own), *_times(timing, row.sizes)),
        )
    elif timing is not None:
        groups[SECONDS] = _Group(
            columns=(("time: own", "right"), ("with all below", "right"), ("of the step", "right")),
            cells=lambda row: (_times(timing, row.own)[0], *_times(timing, row.sizes)),
        )
    return names, groups, _NOTHING


def _tensors(_timing: Timing | None) -> _Layout:
    first = _Group(
        columns=(("tensor", "left"), ("shape", "left"), ("elements", "right"), ("bytes each", "right")),
        cells=lambda row: (
            row.name,
            str(list(row.shape)) if row.dtype else "–",
            f"{row.num_elements}",
            f"{row.element_bytes}",
        ),
    )
    last = _Group(
        columns=(("holds", "left"), ("bound to", "left"), ("made in", "left"), ("freed in", "left")),
        cells=lambda row: (row.category.replace("_", " "), row.variable, row.born, row.freed),
    )
    groups = {
        "bytes": _Group(
            columns=(("bytes", "right"),), cells=lambda row: (format_bytes(row.sizes.requested_bytes),)
        ),
        "peak-bytes": _Group(
            columns=(("at the peak", "right"),), cells=lambda row: (_or_dash(row.sizes.peak_bytes),)
        ),
    }
    return first, groups, last


_LAYOUTS: dict[str, Callable[[Timing | None], _Layout]] = {
    "ops": _operators,
    "scopes": _trees,
    "code": _trees,
    "tensors": _tensors,
}


def _if_stated(timing: Timing, title: str) -> tuple[_Column, ...]:
    return () if timing.seconds is None else ((title, "right"),)


def _times(timing: Timing, sizes: Sizes) -> tuple[str, ...]:
    """Cells of a row's device time: seconds (if predicted), and share of the step."""
    seconds, share = timing.seconds_of(sizes.step_share), sizes.step_share
    stated = () if seconds is None else (seconds_in_words(seconds) if share else "–",)
    return *stated, f"{share:.1%}" if share else "–"


def _or_dash(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes else "–"


def _without_folders(name: str) -> str:
    """Name of a code line without its file's folders; any other name unchanged."""
    path, colon, function = name.rpartition(":")
    return f"{path.rsplit('/', 1)[-1]}{colon}{function}"
