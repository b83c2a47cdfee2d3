"""Lays out a search's frontier, the largest batch of every knob setting, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from autofit.answers.section import Column, Row, Section, left, right, row, table
from autofit.answers.words.numbers import share
from autofit.settings.words import joined
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict

_Sizes = dict[Knobs, int | None]


def setting_column(result: TuneResult) -> Column:
    """Column that names the knob settings of a search; untitled if settings have no names."""
    return left("\nsetting" if result.is_of_product else "conv\nalgorithm" if result.convolves else "")


def best_first(result: TuneResult) -> list[FrontierEntry]:
    """Frontier entries, the largest batch first."""
    return sorted(result.frontier, key=lambda entry: -(entry.largest_batch or 0))


def frontier(result: TuneResult) -> Iterator[Section]:
    """Section of the knob settings, the largest batch first: what fits, its peaks, the next that fails."""
    if not result.frontier:
        return
    held = {entry.knobs: _held_bytes(result, entry) for entry in result.frontier}
    unit, unit_bytes = _unit(bytes_ for bytes_ in held.values() if bytes_ is not None)
    columns = _peaks(result, held)
    of_front = (left("Pareto\nfront"),) if result.is_of_product else ()
    rows = (_row(result, alike, columns, held, unit_bytes) for alike in _folded(result))
    shown = table(
        (
            setting_column(result),
            right("max\nbatch"),
            *(right(f"{name}\n{unit}") for name in columns),
            right("of\nbudget"),
            right("fails\nat"),
            *of_front,
            left("\nevidence"),
        ),
        rows,
        has_long_names=True,
    )
    title = "The largest batch of every setting"
    yield Section(name="frontier", title=title, blocks=(shown,), is_leading=True)


def _peaks(result: TuneResult, held: _Sizes) -> dict[str, _Sizes]:
    """Columns of peaks by name; the peak compared with the budget has one only if it differs from others."""
    device = {entry.knobs: entry.device_peak_bytes for entry in result.frontier}
    if result.device.kind == "cpu":
        # The kernel limits private memory, which includes pages that were never written to.
        return {"resident": device, **({"private": held} if device != held else {})}
    reserved = {entry.knobs: entry.peak_reserved_bytes for entry in result.frontier}
    return {"reserved": reserved, **({"up to": held} if reserved != held else {}), "device": device}


def _row(
    result: TuneResult, alike: list[FrontierEntry], columns: dict[str, _Sizes], held: _Sizes, unit_bytes: int
) -> Row:
    """Table row for frontier entries that have the same boundary.

    Args:
        alike: the entries.
        columns: bytes of each knob setting, by column.
        held: bytes of each knob setting that are compared with the budget.
        unit_bytes: bytes of the unit in which sizes are shown.
    """
    entry, names = alike[0], result.setting_names
    peaks = [_largest_of(column[each.knobs] for each in alike) for column in columns.values()]
    held_bytes = _largest_of(held[each.knobs] for each in alike)
    return row(
        joined(names[each.knobs] for each in alike),
        "none" if entry.largest_batch is None else str(entry.largest_batch),
        *("–" if peak is None else f"{peak / unit_bytes:.2f}" for peak in peaks),
        "–" if held_bytes is None else share(held_bytes, result.budget.usable_bytes),
        "–" if entry.first_failing_batch is None else str(entry.first_failing_batch),
        *((_on_front(entry),) if result.is_of_product else ()),
        entry.evidence,
        is_chosen=result.chosen is not None and result.chosen.knobs in [each.knobs for each in alike],
    )


def _folded(result: TuneResult) -> list[list[FrontierEntry]]:
    """Frontier entries by table row: those with one boundary share a row, unless they were timed.

    Entries that differ in evidence, or in being on the Pareto front, do not share one either.
    """
    rows: dict[Any, list[FrontierEntry]] = {}
    for entry in best_first(result):
        is_alone = entry.samples_per_second is not None or entry.largest_batch is None
        alike = (
            entry.knobs if is_alone else None,
            entry.largest_batch,
            entry.first_failing_batch,
            entry.evidence,
            _on_front(entry) if result.is_of_product else "",
        )
        rows.setdefault(alike, []).append(entry)
    return list(rows.values())


def _largest_of(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _on_front(entry: FrontierEntry) -> str:
    return "◆" if entry.largest_batch is not None and entry.dominated_by is None else ""


def _held_bytes(result: TuneResult, entry: FrontierEntry) -> int | None:
    """Peak bytes, compared with the budget, of an entry's largest batch; None without a fitting trial."""
    peaks = [
        trial.budgeted_bytes
        for trial in result.trials
        if (trial.knobs, trial.batch_size) == (entry.knobs, entry.largest_batch)
        and trial.verdict is Verdict.FITS
    ]
    return peaks[-1] if peaks else None


def _unit(sizes: Iterable[int]) -> tuple[str, int]:
    """Unit for all sizes of a table, GiB or MiB, and its number of bytes."""
    return ("GiB", 1024**3) if max(sizes, default=1024**3) >= 1000 * 1024**2 else ("MiB", 1024**2)
