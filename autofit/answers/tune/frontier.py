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
    """First column of a table with a row for each knob setting (precision, optimizer, …).

    It has no title if knob settings have no names, as without convolutions and with nothing searched.
    """
    return left("\nsetting" if result.is_of_product else "conv\nalgorithm" if result.convolves else "")


def best_first(result: TuneResult) -> list[FrontierEntry]:
    """Results of a search by knob setting (precision, optimizer, …), the largest fitting batch first."""
    return sorted(result.frontier, key=lambda entry: -(entry.largest_batch or 0))


def frontier(result: TuneResult) -> Iterator[Section]:
    """Yields a table with a row for each knob setting (precision, optimizer, …) that a search tried.

    A row has the largest batch that fits, its peaks, and the next batch, which fails. Yields nothing if the
    search has no results.
    """
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
    """Columns of peak memory: from the column's title to the peak in bytes of each knob setting.

    Args:
        held: for each knob setting (precision, …), the peak that is compared with the budget. It has a column
            of its own only if it differs from the reserved peaks (on the CPU, from the resident ones).
    """
    device = {entry.knobs: entry.device_peak_bytes for entry in result.frontier}
    if result.device.kind == "cpu":
        # The kernel limits private memory, which includes pages that were never written to.
        return {"resident": device, **({"private": held} if device != held else {})}
    reserved = {entry.knobs: entry.peak_reserved_bytes for entry in result.frontier}
    return {"reserved": reserved, **({"up to": held} if reserved != held else {}), "device": device}


def _row(
    result: TuneResult, alike: list[FrontierEntry], columns: dict[str, _Sizes], held: _Sizes, unit_bytes: int
) -> Row:
    """Table row for knob settings with the same largest fitting batch and the same smallest failing one.

    Args:
        alike: results of these knob settings (precision, optimizer, …); at least one.
        columns: from the title of a peak's column to the peak in bytes of each knob setting.
        held: peak in bytes of each knob setting that is compared with the budget.
        unit_bytes: bytes of the unit in which peaks are shown, such as 1024³ for GiB.
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
    """Results of a search by table row: knob settings (precision, …) with the same result share a row.

    The same result means the same largest fitting and smallest failing batch, the same evidence (predicted or
    measured), and both or neither on the Pareto front. A setting that was timed, or with which nothing fits,
    has a row of its own.
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
    """Peak in bytes, compared with the budget, of the largest batch that fits with a knob setting.

    None if no trial (one prediction or run of a configuration) of that batch fits.

    Args:
        entry: result of the search for the knob setting (precision, optimizer, …).
    """
    peaks = [
        trial.budgeted_bytes
        for trial in result.trials
        if (trial.knobs, trial.batch_size) == (entry.knobs, entry.largest_batch)
        and trial.verdict is Verdict.FITS
    ]
    return peaks[-1] if peaks else None


def _unit(sizes: Iterable[int]) -> tuple[str, int]:
    """Unit for all sizes of a table, as name and number of bytes: GiB from 1000 MiB on, else MiB."""
    return ("GiB", 1024**3) if max(sizes, default=1024**3) >= 1000 * 1024**2 else ("MiB", 1024**2)
