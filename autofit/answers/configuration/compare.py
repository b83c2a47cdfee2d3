"""Lays out a comparison of several models' forward passes as sections of tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from autofit.answers.section import (
    Block,
    Bullets,
    Cell,
    Paragraph,
    Section,
    Table,
    grid,
    left,
    quiet,
    right,
    strong,
    table,
)
from autofit.answers.words.numbers import exact
from autofit.questions.compare import Comparison, ForwardPass, TensorRow
from autofit.units import format_bytes
from autofit_workers.trials.door import OutputComparison

_NUM_ROWS = 40
_NUM_NAMES = 3


def compare_sections(comparison: Comparison, *, show_all: bool) -> Iterator[Section]:
    """Yields sections that compare models' forward passes: tensors, totals, and whether outputs are equal.

    Args:
        show_all: whether to list all tensors; else only the 40 with the most elements.
    """
    names = " and ".join(each.workload for each in comparison.passes)
    said = Paragraph(f"{names} at batch {comparison.batch_size} · fp32 · infer", "strong", (names,))
    yield Section(name="configuration", blocks=(said,))
    tensors = tuple(_tensors(comparison, show_all=show_all))
    yield Section(name="tensors", title="Tensors", blocks=tensors, is_leading=True)
    yield Section(name="totals", title="Totals", blocks=(_totals(comparison),))
    outputs = Bullets(tuple(_outputs(comparison, one) for one in comparison.outputs))
    yield Section(name="outputs", title="Outputs, computed on the CPU", blocks=(outputs,))
    explained = Bullets(tuple(_explained(comparison)))
    yield Section(name="reading", title="How to read this", blocks=(explained,))


def _tensors(comparison: Comparison, *, show_all: bool) -> Iterator[Block]:
    """Yields a table of the models' tensors with shapes, bytes and storage, the most elements first."""
    rows = sorted(
        ((each.workload, tensor) for each in comparison.passes for tensor in each.tensors),
        key=lambda pair: (-pair[1].num_elements, f"{pair[0]}/{pair[1].name}"),
    )
    shown = rows if show_all else rows[:_NUM_ROWS]
    yield table(
        (
            left("tensor"),
            left("shape"),
            right("elements"),
            right("bytes each"),
            right("nominal"),
            left("storage"),
        ),
        (_cells(workload, tensor) for workload, tensor in shown),
        fit="listed",
    )
    if len(shown) < len(rows):
        yield Paragraph(f"… and {len(rows) - len(shown)} smaller ones: --all lists them")


def _cells(workload: str, tensor: TensorRow) -> tuple[str | Cell, ...]:
    return (
        f"{workload}/{tensor.name}",
        str(list(tensor.shape)),
        f"{tensor.num_elements}",
        f"{tensor.element_bytes}",
        format_bytes(tensor.num_bytes),
        format_bytes(tensor.storage_bytes)
        if tensor.view_of is None
        else quiet(f"shared with {workload}/{tensor.view_of}"),
    )


def _totals(comparison: Comparison) -> Table:
    """Table with a column for each model: number of tensors, their bytes, and predicted peaks."""
    passes = comparison.passes
    return grid(
        f"<{'>' * len(passes)}",
        (
            ("", *(strong(each.workload) for each in passes)),
            ("tensors", *(str(len(each.tensors)) for each in passes)),
            ("  which are views", *(str(len(each.views)) for each in passes)),
            ("nominal bytes", *(exact(each.nominal_bytes) for each in passes)),
            ("distinct storage", *(exact(each.storage_bytes) for each in passes)),
            ("allocated peak", *(exact(each.peak_allocated_bytes) for each in passes)),
            ("  which is workspace", *(exact(each.workspace_bytes) for each in passes)),
            ("reserved peak", *(exact(each.peak_reserved_bytes) for each in passes)),
        ),
    )


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
    """Clause on parameters that have no counterpart in the first model; empty if all have one.

    A counterpart is a parameter of the same name and shape, whose values were copied for the comparison.
    """
    if not one.not_shared:
        return ""
    return (
        f"; {one.num_shared} parameters and buffers have the same values in both models, "
        f"{len(one.not_shared)} ({_first(one.not_shared)}) have no counterpart of the same name and shape"
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_NAMES]) + (", …" if len(names) > _NUM_NAMES else "")


def _explained(comparison: Comparison) -> Iterator[str]:
    """Yields sentences on views and on how the peaks of the comparison were predicted."""
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
    """Operator of a tensor, read from its name: `transpose` of `features.0/transpose_1:0`.

    The number of the call (`_1`) is dropped.
    """
    return re.sub(r"_[0-9]+$", "", row.name.rpartition(":")[0].rpartition("/")[2])
