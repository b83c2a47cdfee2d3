"""The tables of a report."""

from __future__ import annotations

from collections.abc import Mapping

from autofit.hardware.budget import outside_allocator, shown_by
from autofit.report.html.content import CATEGORY_NAMES, Table
from autofit.report.words import rate
from autofit.settings.words import in_short
from autofit.tuning.compared import ParallelAnswer
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes, size_or_dash
from workers.trace import Category


def frontier_table(result: TuneResult) -> Table:
    """A row for every setting, the largest batch first: what fits, what does not, why, how that is known."""
    entries = sorted(result.frontier, key=lambda entry: -(entry.largest_batch or 0))
    timed = any(entry.samples_per_second is not None for entry in entries)
    names = result.setting_names
    is_cpu = result.device.kind == "cpu"
    peak = "resident peak" if is_cpu else "reserved peak"
    columns = ("setting", "largest batch", peak, *(("samples a second",) if timed else ()), "fails at")
    rows = [
        (
            names[entry.knobs] + _mark(entry, result),
            "none" if entry.largest_batch is None else str(entry.largest_batch),
            size_or_dash(entry.device_peak_bytes if is_cpu else entry.peak_reserved_bytes),
            *((_rate(entry),) if timed else ()),
            "–" if entry.first_failing_batch is None else str(entry.first_failing_batch),
            f"{entry.reason}.",
            entry.evidence,
        )
        for entry in entries
    ]
    return Table(
        columns=(*columns, "why not larger", "evidence"),
        rows=tuple(rows),
        numeric=frozenset(range(1, len(columns))),
    )


def parallels_table(result: TuneResult) -> Table:
    """A row for every way of training together, the largest global batch first; or why it is refused."""
    ordered = sorted(result.parallels, key=lambda one: -(_global_batch(one) or 0))
    rows = [
        (
            one.parallel,
            "none" if best is None else str(best.samples_per_step),
            "none" if best is None else str(best.batch_size),
            "–" if best is None else in_short(best.knobs),
            "–" if one.budget is None else format_bytes(one.budget.usable_bytes),
            one.refused and f"{one.refused}.",
        )
        for one in ordered
        for best in (one.best,)
    ]
    return Table(
        columns=("parallel", "global batch", "batch of a rank", "setting", "usable", "why not"),
        rows=tuple(rows),
        numeric=frozenset((1, 2, 4)),
    )


def _global_batch(one: ParallelAnswer) -> int | None:
    return None if one.best is None else one.best.samples_per_step


def breakdown_table(
    categories: Mapping[Category, int],
    *,
    reserved_bytes: int,
    context_bytes: int,
    architecture: str,
    num_ranks: int,
) -> Table:
    """What is alive at the allocated peak, and what comes on top of it up to the device peak.

    Args:
        categories: bytes of live blocks at the peak.
        reserved_bytes: the likely reserved peak.
        architecture: of the card.
    """
    allocated = sum(categories.values())
    parts = ((CATEGORY_NAMES[category], size) for category, size in categories.items() if size)
    rows = sorted(parts, key=lambda part: -part[1])
    rows += [
        ("= allocated peak", allocated),
        ("+ held by the allocator, not in use", reserved_bytes - allocated),
        ("= reserved peak", reserved_bytes),
        (f"+ {outside_allocator(architecture, num_ranks)}, assumed", context_bytes),
        (f"= device peak, what {shown_by(architecture)} would show", reserved_bytes + context_bytes),
    ]
    return Table(
        columns=("", "size", "bytes", "of allocated"),
        rows=tuple(
            (name, format_bytes(size), f"{size:,}", "" if name[0] in "=+" else f"{size / allocated:.1%}")
            for name, size in rows
        ),
        numeric=frozenset((1, 2, 3)),
    )


def _mark(entry: FrontierEntry, result: TuneResult) -> str:
    """What stands behind the name of the recommended setting, and of the one with the largest batch."""
    if result.chosen is not None and entry.knobs == result.chosen.knobs:
        return " — recommended" if result.recommended is not None else " — the best"
    return " — the largest" if result.best is not None and entry.knobs == result.best.knobs else ""


def _rate(entry: FrontierEntry) -> str:
    return "–" if entry.samples_per_second is None else rate(entry.samples_per_second)
