"""Lays out the views of a profile that have rows (operators, trees, tensors) as sections of tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from autofit.answers.configuration.estimate import configuration_section
from autofit.answers.section import Column, Paragraph, Section, grid, left, right, table
from autofit.answers.words.numbers import exact, seconds_in_words, size_or_nothing, span_of_seconds
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


def view_sections(
    view: View[OperatorRow] | View[TreeRow] | View[TensorRow], filters: Filters
) -> Iterator[Section]:
    """Yields the sections of a profile's view: its heading, table of rows, number of hidden rows, and totals.

    Args:
        view: rows by operator, by module, by code line, or by tensor.
        filters: the user's choice of columns and order.
    """
    selection = view.selection
    yield profiled(selection.profile)
    groups = list(_shown(view, filters))
    shown = table(
        itertools.chain.from_iterable(group.columns for group in groups),
        (itertools.chain.from_iterable(group.cells(row) for group in groups) for row in view.rows),
        fit="whole",
    )
    yield Section(name=view.kind, blocks=(shown, *hidden(view.num_passing - len(view.rows))))
    said = list(_sums(view.total, selection))
    if view.kind in TIMED_KINDS:
        said += about_times(selection.profile, selection.timing, selection.time_note)
    yield sums(said)


def sums(lines: Iterable[str], of: str = "") -> Section:
    """Section with lines on a view as a whole, such as its totals; shown below its rows.

    Args:
        of: device that the lines are about, part of the section's name; empty if a view has one such section.
    """
    shown = grid("<", ((line,) for line in lines), fit="whole")
    return Section(name=f"sums-{of}" if of else "sums", blocks=(shown,))


def about_times(profile: Profile, timing: Timing | None, note: str) -> Iterator[str]:
    """Yields lines on where a view's times come from, or on why the view has no times.

    Args:
        timing: predicted times of the step; None if there are none.
        note: sentence on the basis of the times, or on why there are none; always the last line.
    """
    if timing is not None:
        step = f"step {timed_step(profile)}"
        waits = f"of which the device waits {timing.waiting_share:.1%} for the host"
        if timing.seconds is None:
            yield f"shares of time are of {step}, {waits}"
        else:
            yield f"{step} is predicted to take {span_of_seconds(timing.seconds)}, {waits}"
    yield note


def profiled(profile: Profile) -> Section:
    """Section with the heading of a view: the profiled workload, batch size and setting."""
    trace = profile.trace
    if profile.recorded is not None:
        said = Paragraph(f"{profile.title} by a real run", "strong", (trace.workload,))
        return Section(name="configuration", blocks=(said,))
    algorithm = profile.knobs.conv_algo if trace.convolves else ""
    return configuration_section(trace.workload, trace.batch_size, algorithm, profile_in_words(profile))


def profile_in_words(profile: Profile) -> str:
    """Display name of how the profiled step ran, such as `fp32 · train`, without convolution algorithm."""
    trace = profile.trace
    return configuration(profile.knobs, trace.mode, trace.batch_kind, trace.among_ranks, rank=trace.rank)


def hidden(num_rows: int) -> Iterator[Paragraph]:
    """Yields a line such as `… and 12 more: --all shows them`; nothing if no rows are hidden.

    Args:
        num_rows: number of rows that the table above leaves out.
    """
    if num_rows:
        yield Paragraph(f"… and {num_rows} more: --all shows them")


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
    """Group of table columns that the option `--select` shows or hides together.

    Attributes:
        cells: function from a row of the view to its texts, one for each of `columns`.
    """

    columns: tuple[Column, ...]
    cells: Callable[[Any], Iterable[str]]


def _shown(view: View[Any], filters: Filters) -> Iterator[_Group]:
    """Yields the groups of columns to show: the row's name, those that `--select` names, and the rest."""
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
    """Groups of columns for a table of operators, which `--select` shows or hides together."""
    names = _Group(columns=(left("operator"), left("phase")), cells=lambda row: (row.name, row.phase))
    groups = {
        "bytes": _Group(
            columns=(right("requested"), right("this and below"), right("share")),
            cells=lambda row: (
                size_or_nothing(row.sizes.requested_bytes),
                f"{row.cumulative_share:.2%}",
                f"{row.share:.2%}",
            ),
        ),
        "count": _Group(columns=(right("count"),), cells=lambda row: (f"{row.sizes.count:,}",)),
        "peak-bytes": _Group(
            columns=(right("at the peak"),), cells=lambda row: (size_or_nothing(row.sizes.peak_bytes),)
        ),
    }
    if timing is not None:
        groups[SECONDS] = _Group(
            columns=(*_if_stated(timing, "time"), right("of the step")),
            cells=lambda row: _times(timing, row.sizes),
        )
    return names, groups, _NOTHING


def _trees(timing: Timing | None) -> _Layout:
    """Column groups of the views `scopes` and `code`, which show trees; `--select` hides whole groups."""
    names = _Group(
        columns=(left("node"),), cells=lambda row: ("  " * row.depth + _without_folders(row.name),)
    )
    groups = {
        "bytes": _Group(
            columns=(right("requested: own"), right("with all below")),
            cells=lambda row: (
                size_or_nothing(row.own.requested_bytes),
                size_or_nothing(row.sizes.requested_bytes),
            ),
        ),
        "count": _Group(columns=(right("count"),), cells=lambda row: (f"{row.sizes.count:,}",)),
        "peak-bytes": _Group(
            columns=(right("at the peak: own"), right("with all below")),
            cells=lambda row: (size_or_nothing(row.own.peak_bytes), size_or_nothing(row.sizes.peak_bytes)),
        ),
    }
    if timing is not None and timing.seconds is None:
        groups[SECONDS] = _Group(
            columns=(right("of the step: own"), right("with all below")),
            cells=lambda row: (*_times(timing, row.own), *_times(timing, row.sizes)),
        )
    elif timing is not None:
        groups[SECONDS] = _Group(
            columns=(right("time: own"), right("with all below"), right("of the step")),
            cells=lambda row: (_times(timing, row.own)[0], *_times(timing, row.sizes)),
        )
    return names, groups, _NOTHING


def _tensors(_timing: Timing | None) -> _Layout:
    """Groups of columns for a table of tensors, which `--select` shows or hides together."""
    first = _Group(
        columns=(left("tensor"), left("shape"), right("elements"), right("bytes each")),
        cells=lambda row: (
            row.name,
            str(list(row.shape)) if row.dtype else "–",
            f"{row.num_elements}",
            f"{row.element_bytes}",
        ),
    )
    last = _Group(
        columns=(left("holds"), left("bound to"), left("made in"), left("freed in")),
        cells=lambda row: (row.category.replace("_", " "), row.variable, row.born, row.freed),
    )
    groups = {
        "bytes": _Group(
            columns=(right("bytes"),), cells=lambda row: (format_bytes(row.sizes.requested_bytes),)
        ),
        "peak-bytes": _Group(
            columns=(right("at the peak"),), cells=lambda row: (size_or_nothing(row.sizes.peak_bytes),)
        ),
    }
    return first, groups, last


_LAYOUTS: dict[str, Callable[[Timing | None], _Layout]] = {
    "ops": _operators,
    "scopes": _trees,
    "code": _trees,
    "tensors": _tensors,
}


def _if_stated(timing: Timing, title: str) -> tuple[Column, ...]:
    return () if timing.seconds is None else (right(title),)


def _times(timing: Timing, sizes: Sizes) -> tuple[str, ...]:
    """Cells with a row's time on the GPU: seconds, and share of the step; only the share without seconds.

    Args:
        sizes: totals of the row, with its share of the step's time.
    """
    seconds, share = timing.seconds_of(sizes.step_share), sizes.step_share
    stated = () if seconds is None else (seconds_in_words(seconds) if share else "–",)
    return *stated, f"{share:.1%}" if share else "–"


def _without_folders(name: str) -> str:
    """Name of a code line `folder/file:line:function` without its folders; any other name unchanged."""
    path, colon, function = name.rpartition(":")
    return f"{path.rsplit('/', 1)[-1]}{colon}{function}"
