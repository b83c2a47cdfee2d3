"""The text of a profile's views."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from autofit.cli.text.output import Justify, exact, headed, print_whole, stdout, styled
from autofit.explain.profile import Profile
from autofit.explain.sizes import Sizes
from autofit.explain.views.filters import Filters
from autofit.explain.views.ops import OperatorRow
from autofit.explain.views.selection import Selection
from autofit.explain.views.tensors import TensorRow
from autofit.explain.views.tree import TreeRow
from autofit.explain.views.view import View
from autofit.settings.words import configuration
from autofit.units import format_bytes

_Column = tuple[str, Justify]


def print_view(view: View[OperatorRow] | View[TreeRow] | View[TensorRow], filters: Filters) -> None:
    """Prints what the view is of, its rows, and how many there are beside those shown."""
    print_configuration(view.selection.profile)
    columns, cells = _LAYOUTS[view.kind]
    table = headed(*columns(filters.select))
    for row in view.rows:
        table.add_row(*cells(row, filters.select))
    for column in table.columns:
        column.no_wrap = True
    print_whole(table)
    console = stdout()
    print_number_hidden(view.num_passing - len(view.rows))
    console.print()
    for line in _sums(view.total, view.selection):
        console.print(f"  {line}", soft_wrap=True)


def print_configuration(profile: Profile) -> None:
    """Prints what was profiled, above a view."""
    console, trace = stdout(), profile.trace
    knobs = configuration(profile.knobs, trace.mode, trace.batch_kind, trace.among_ranks, rank=trace.rank)
    algorithm = f"{profile.knobs.conv_algo} · " if trace.convolves else ""
    console.print(styled(trace.workload, "bold"), f"at batch {trace.batch_size} · {algorithm}{knobs}")
    console.print()


def print_number_hidden(num_rows: int) -> None:
    """Prints how many rows a table lacks, if any."""
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


def _operator_columns(select: Container[str]) -> Iterator[_Column]:
    yield from (("operator", "left"), ("phase", "left"))
    if "bytes" in select:
        yield from (("requested", "right"), ("this and below", "right"), ("share", "right"))
    if "count" in select:
        yield "count", "right"
    if "peak-bytes" in select:
        yield "at the peak", "right"


def _operator_cells(row: OperatorRow, select: Container[str]) -> Iterator[str]:
    yield from (row.name, row.phase)
    if "bytes" in select:
        yield format_bytes(row.sizes.requested_bytes)
        yield from (f"{part:.2%}" for part in (row.cumulative_share, row.share))
    if "count" in select:
        yield f"{row.sizes.count:,}"
    if "peak-bytes" in select:
        yield _or_dash(row.sizes.peak_bytes)


def _tree_columns(select: Container[str]) -> Iterator[_Column]:
    yield "node", "left"
    if "bytes" in select:
        yield from (("requested: own", "right"), ("with all below", "right"))
    if "count" in select:
        yield "count", "right"
    if "peak-bytes" in select:
        yield from (("at the peak: own", "right"), ("with all below", "right"))


def _tree_cells(row: TreeRow, select: Container[str]) -> Iterator[str]:
    yield "  " * row.depth + _without_folders(row.name)
    if "bytes" in select:
        yield from (_or_dash(row.own.requested_bytes), format_bytes(row.sizes.requested_bytes))
    if "count" in select:
        yield f"{row.sizes.count:,}"
    if "peak-bytes" in select:
        yield from (_or_dash(row.own.peak_bytes), _or_dash(row.sizes.peak_bytes))


def _tensor_columns(select: Container[str]) -> Iterator[_Column]:
    yield from (("tensor", "left"), ("shape", "left"), ("elements", "right"), ("bytes each", "right"))
    if "bytes" in select:
        yield "bytes", "right"
    if "peak-bytes" in select:
        yield "at the peak", "right"
    yield from (("holds", "left"), ("bound to", "left"), ("made in", "left"), ("freed in", "left"))


def _tensor_cells(row: TensorRow, select: Container[str]) -> Iterator[str]:
    yield row.name
    yield str(list(row.shape)) if row.dtype else "–"
    yield from (f"{row.num_elements}", f"{row.element_bytes}")
    if "bytes" in select:
        yield format_bytes(row.sizes.requested_bytes)
    if "peak-bytes" in select:
        yield _or_dash(row.sizes.peak_bytes)
    yield from (row.category.replace("_", " "), row.variable, row.born, row.freed)


_LAYOUTS: dict[str, tuple[Callable[..., Iterator[_Column]], Callable[..., Iterator[str]]]] = {
    "ops": (_operator_columns, _operator_cells),
    "scopes": (_tree_columns, _tree_cells),
    "code": (_tree_columns, _tree_cells),
    "tensors": (_tensor_columns, _tensor_cells),
}


def _or_dash(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes else "–"


def _without_folders(name: str) -> str:
    """A line of code without the folders of its file; any other name as it is."""
    path, colon, function = name.rpartition(":")
    return f"{path.rsplit('/', 1)[-1]}{colon}{function}"
