"""Table of the kinds of parallelism that a search compared."""

from __future__ import annotations

from rich.console import Console

from autofit.cli.text.output import bullets, headed, indented, styled
from autofit.report.words import rate
from autofit.settings.words import setting_names
from autofit.tuning.compared import ParallelAnswer
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult
from autofit_workers.spec.knobs import Knobs

_GIB = 1024**3


def print_parallels(console: Console, result: TuneResult) -> None:
    """Prints a row for each parallelism and knob setting, largest global batch first, refused ones last."""
    rows = [(one, entry) for one in result.parallels for entry in one.frontier]
    names = setting_names({entry.knobs: None for _, entry in rows}, convolves=result.convolves)
    on_cpu = result.device.kind == "cpu"
    has_rates = any(_rate(entry) is not None for _, entry in rows)
    table = headed(
        ("parallel, with\nits setting" if any(names.values()) else "\nparallel", "left"),
        ("global\nbatch", "right"),
        ("batch of\na rank", "right"),
        *((("samples\na second", "right"),) if has_rates else ()),
        ("resident\nGiB" if on_cpu else "reserved\nGiB", "right"),
        *(() if on_cpu else (("device\nGiB", "right"),)),
        *(() if has_rates else (("usable\nGiB", "right"),)),  # beside rates there is no room in 80 columns
        ("fails\nat", "right"),
        ("\nevidence", "left"),
        has_long_names=True,
    )
    chosen = None if result.chosen is None else (result.chosen.parallel, result.chosen.knobs)
    for one, entry in sorted(rows, key=lambda row: -(row[1].samples_per_step or 0)):
        table.add_row(
            *_cells(one, entry, names, on_cpu=on_cpu, has_rates=has_rates),
            style="bold" if (entry.parallel, entry.knobs) == chosen else "",
        )
    console.print()
    console.print(indented(table))
    if refused := [one for one in result.parallels if one.refused]:
        console.print()
        bullets(console, (f"{one.parallel}: {one.refused}" for one in refused))
    if any(entry.samples_per_step is not None for _, entry in rows):
        console.print(
            indented(
                styled(
                    "The global batch: samples of a step over all ranks. What follows is of a rank.", "dim"
                )
            )
        )


def _cells(
    one: ParallelAnswer, entry: FrontierEntry, names: dict[Knobs, str], *, on_cpu: bool, has_rates: bool
) -> tuple[str, ...]:
    assert one.budget is not None, "what has a frontier was searched"
    known = _rate(entry)
    sizes = (entry.device_peak_bytes,) if on_cpu else (entry.peak_reserved_bytes, entry.device_peak_bytes)
    return (
        " · ".join(filter(None, (one.parallel, names[entry.knobs]))),
        "none" if entry.samples_per_step is None else str(entry.samples_per_step),
        "none" if entry.largest_batch is None else str(entry.largest_batch),
        *(("–" if known is None else rate(known),) if has_rates else ()),
        *("–" if size is None else f"{size / _GIB:.2f}" for size in sizes),
        *(() if has_rates else (f"{one.budget.usable_bytes / _GIB:.2f}",)),
        "–" if entry.first_failing_batch is None else str(entry.first_failing_batch),
        entry.evidence,
    )


def _rate(entry: FrontierEntry) -> float | None:
    """Samples a second of all ranks, measured or else predicted; None if unknown."""
    return entry.samples_per_second or entry.predicted_samples_per_second
