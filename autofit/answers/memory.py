"""Lays out the memory at a peak by category, as sections for searches, estimates and profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autofit.answers.section import Cell, Row, Section, grid, quiet, row
from autofit.answers.words.numbers import exact, share
from autofit.answers.words.phrases import CATEGORY_NAMES, PeakNames
from autofit.answers.words.run import short_source
from autofit.hardware.budget import outside_allocator
from autofit.predict.estimate import Estimate
from autofit.units import format_bytes
from autofit_workers.spec.trace import Category

_BAR_WIDTH = 20
_NUM_HOLDERS = 6


def memory_sections(estimate: Estimate, at: str = "") -> Iterator[Section]:
    """Yields sections on the memory at a predicted peak: by category, and the largest live allocations.

    Args:
        at: words for the title that name the configuration, such as `at batch 70`; empty to leave them out.
    """
    alive = estimate.breakdown
    interval = estimate.whole_interval
    yield memory_section(
        {
            Category.ACTIVATION: alive.activations,
            Category.WORKSPACE: alive.workspace,
            Category.PARAMETER: alive.parameters,
            Category.GRADIENT: alive.gradients,
            Category.OPTIMIZER_STATE: alive.optimizer_state,
            Category.INPUT: alive.inputs,
            Category.OTHER: alive.other,
        },
        at,
        reserved_bytes=estimate.whole_peak_bytes,
        spread=""
        if interval.low_bytes == interval.high_bytes
        else f"likely; {format_bytes(interval.low_bytes)} to {format_bytes(interval.high_bytes)}",
        context_bytes=estimate.context_bytes,
        architecture=estimate.architecture,
        exchanges=bool(estimate.communicators),
        runs_out=estimate.runs_out,
    )
    if estimate.largest:
        holders = (
            (
                format_bytes(holder.num_bytes),
                share(holder.num_bytes, estimate.peak_allocated_bytes),
                holder.module or "–",
                holder.operator.removeprefix("aten."),
                quiet(short_source(holder.source)),
            )
            for holder in estimate.largest[:_NUM_HOLDERS]
        )
        title = "Largest holders at that peak"
        yield Section(name="holders", title=title, blocks=(grid(">><<<", holders),))


def memory_section(
    categories: Mapping[Category, int],
    at: str = "",
    *,
    reserved_bytes: int,
    context_bytes: int,
    architecture: str | None,
    exchanges: bool,
    spread: str = "",
    runs_out: bool = False,
) -> Section:
    """Section with a table that leads from live blocks by category to the reserved and the device peak.

    The device peak is the memory that nvidia-smi would show: reserved memory and the context outside the
    allocator.

    Args:
        categories: bytes alive at the allocated peak, by category (activations, parameters, …).
        at: words for the title that name the configuration, such as `at batch 70`; empty to leave them out.
        reserved_bytes: likely reserved peak: the bytes of the allocator's segments.
        context_bytes: bytes that the process holds on the card outside the allocator.
        architecture: GPU architecture of the card, such as `sm_80`; None if unknown.
        exchanges: whether the process communicates with other ranks, so NCCL is named too.
        spread: range of the reserved peak in words; empty if it is certain.
        runs_out: whether the step does not fit on the card; then the sizes are named as needed memory.
    """
    names = PeakNames.of(architecture, runs_out=runs_out)
    allocated_bytes = sum(categories.values())
    alive = sorted(
        ((size, category) for category, size in categories.items() if size), key=lambda each: -each[0]
    )
    rows = [
        row(
            CATEGORY_NAMES[category],
            _size(size),
            share(size, allocated_bytes),
            Cell("█" * round(_BAR_WIDTH * size / allocated_bytes), "bar"),
        )
        for size, category in alive
    ]
    rows += [
        _sum("= allocated peak", allocated_bytes, ""),
        row("+ not in use", _size(reserved_bytes - allocated_bytes), "", quiet("held by the allocator")),
        _sum(f"= {names.reserved}", reserved_bytes, spread),
        row(
            f"+ {outside_allocator(architecture, exchanges=exchanges)}",
            _size(context_bytes),
            "",
            quiet("assumed"),
        ),
        _sum(f"= {names.device}", reserved_bytes + context_bytes, names.of_device),
    ]
    title = f"Where the memory goes{at and f' {at}, predicted'}"
    return Section(name="memory", title=title, blocks=(grid("<>><", rows),))


def _size(num_bytes: int) -> Cell:
    return Cell(format_bytes(num_bytes), detail=exact(num_bytes))


def _sum(name: str, num_bytes: int, note: str) -> Row:
    size = Cell(format_bytes(num_bytes), "strong", exact(num_bytes))
    return row(Cell(name, "strong"), size, "", quiet(note))
