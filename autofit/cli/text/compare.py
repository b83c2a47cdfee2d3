"""Text of a comparison of several models' forward passes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from autofit.cli.text.output import (
    Justify,
    bullets,
    exact,
    grid,
    headed,
    heading,
    indented,
    listing,
    stdout,
    styled,
)
from autofit.questions.compare import Comparison, ForwardPass, TensorRow
from autofit.units import format_bytes
from autofit_workers.trials.door import OutputComparison

_NUM_ROWS = 40
_NUM_NAMES = 3


def print_comparison(comparison: Comparison, *, show_all: bool) -> None:
    """Prints the tensors of all models in one list, with totals, compared outputs and an explanation."""
    console = stdout()
    names = " and ".join(each.workload for each in comparison.passes)
    console.print(styled(names, "bold"), f"at batch {comparison.batch_size} · fp32 · infer")
    console.print()
    _tensors(listing(), comparison, show_all=show_all)
    heading(console, "Totals")
    console.print(indented(_totals(comparison)))
    heading(console, "Outputs, computed on the CPU")
    bullets(console, (_outputs(comparison, one) for one in comparison.outputs))
    heading(console, "How to read this")
    bullets(console, _explained(comparison))


def _tensors(console: Console, comparison: Comparison, *, show_all: bool) -> None:
    rows = sorted(
        ((each.workload, row) for each in comparison.passes for row in each.tensors),
        key=lambda pair: (-pair[1].num_elements, f"{pair[0]}/{pair[1].name}"),
    )
    shown = rows if show_all else rows[:_NUM_ROWS]
    table = headed(
        ("tensor", "left"),
        ("shape", "left"),
        ("elements", "right"),
        ("bytes each", "right"),
        ("nominal", "right"),
        ("storage", "left"),
    )
    for workload, row in shown:
        table.add_row(
            f"{workload}/{row.name}",
            str(list(row.shape)),
            f"{row.num_elements}",
            f"{row.element_bytes}",
            format_bytes(row.num_bytes),
            format_bytes(row.storage_bytes)
            if row.view_of is None
            else styled(f"shared with {workload}/{row.view_of}", "dim"),
        )
    for column in table.columns[:-1]:
        column.no_wrap = True
    console.print(indented(table))
    if len(shown) < len(rows):
        console.print(f"  … and {len(rows) - len(shown)} smaller ones: --all lists them")


def _totals(comparison: Comparison) -> Table:
    columns: list[Justify] = ["right"] * len(comparison.passes)
    table = grid("left", *columns)
    table.add_row("", *(styled(each.workload, "bold") for each in comparison.passes))
    for name, values in (
        ("tensors", [str(len(each.tensors)) for each in comparison.passes]),
        ("  which are views", [str(len(each.views)) for each in comparison.passes]),
        ("nominal bytes", [exact(each.nominal_bytes) for each in comparison.passes]),
        ("distinct storage", [exact(each.storage_bytes) for each in comparison.passes]),
        ("allocated peak", [exact(each.peak_allocated_bytes) for each in comparison.passes]),
        ("  which is workspace", [exact(each.workspace_bytes) for each in comparison.passes]),
        ("reserved peak", [exact(each.peak_reserved_bytes) for each in comparison.passes]),
    ):
        table.add_row(name, *values)
    return table


def _outputs(comparison: Comparison, one: OutputComparison) -> str:
    first = comparison.passes[0].workload
    if one.equal is None:
        return f"{first} equal to {one.workload}? Unknown: {one.reason}{_sharing(one)}"
    return f"{first} equal to {one.workload}? {one.equal} ({_distance(one)}){_sharing(one)}"


def _distance(one: OutputComparison) -> str:
    if one.is_identical:
        return "bit for bit"
    if one.largest_difference is None or one.largest_output is None:
        return "some values are not finite"
    return f"largest difference {one.largest_difference:.2g}, of values up to {one.largest_output:.3g}"


def _sharing(one: OutputComparison) -> str:
    """Clause on parameters without a counterpart in the first model; empty if all have one."""
    if not one.not_shared:
        return ""
    return (
        f"; {one.num_shared} parameters and buffers have the same values in both models, "
        f"{len(one.not_shared)} ({_first(one.not_shared)}) have no counterpart of the same name and shape"
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_NAMES]) + (", …" if len(names) > _NUM_NAMES else "")


def _explained(comparison: Comparison) -> Iterator[str]:
    for each in comparison.passes:
        if each.views:
            yield _about_views(each)
    yield (
        "A view has its own shape and strides but uses the memory of another tensor: squeeze, unsqueeze, "
        "transpose and expand copy nothing. So a longer list of tensors need not take more memory. What "
        "counts is distinct storage, and the workspace that an operator takes while it runs."
    )
    yield (
        f"Peaks are predicted for {comparison.device.name}, for the forward pass without the loss. Tensors "
        "are freed after their last use, so a peak can be below the distinct storage."
    )


def _about_views(each: ForwardPass) -> str:
    operators = list(dict.fromkeys(_operator(row) for row in each.views))
    names = _first(operators)
    seeming = sum(row.num_bytes for row in each.views)
    return (
        f"{each.workload}: {len(each.views)} of {len(each.tensors)} tensors ({names}) are views: "
        f"{format_bytes(seeming)} by their shapes, but no memory of their own."
    )


def _operator(row: TensorRow) -> str:
    """Operator in a tensor's name, without the call's number: `transpose` of `features.0/transpose_1:0`."""
    return re.sub(r"_[0-9]+$", "", row.name.rpartition(":")[0].rpartition("/")[2])
