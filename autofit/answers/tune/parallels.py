"""Lays out the kinds of parallelism that a search compared as sections of tables."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.section import Bullets, Paragraph, Row, Section, left, right, row, table
from autofit.answers.words.numbers import gib, rate
from autofit.settings.words import setting_names
from autofit.tuning.compared import ParallelAnswer
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult


def parallels(result: TuneResult) -> Iterator[Section]:
    """Yields a table of the compared kinds of parallelism and knob settings (precision, optimizer, …).

    The largest global batch comes first, the samples of a step over all ranks. A second section names the
    kinds of parallelism that are not possible, with the reasons.
    """
    rows = [(one, entry) for one in result.parallels for entry in one.frontier]
    names = setting_names({entry.knobs: None for _, entry in rows}, convolves=result.convolves)
    on_cpu = result.device.kind == "cpu"
    has_rates = any(_rate(entry) is not None for _, entry in rows)
    chosen = None if result.chosen is None else (result.chosen.parallel, result.chosen.knobs)

    def cells(one: ParallelAnswer, entry: FrontierEntry) -> Row:
        """Table row of one kind of parallelism and knob setting: batches, rate and peaks."""
        assert one.budget is not None, "what has a frontier was searched"
        known = _rate(entry)
        peaks = (entry.device_peak_bytes,) if on_cpu else (entry.peak_reserved_bytes, entry.device_peak_bytes)
        return row(
            " · ".join(filter(None, (one.parallel, names[entry.knobs]))),
            "none" if entry.samples_per_step is None else str(entry.samples_per_step),
            "none" if entry.largest_batch is None else str(entry.largest_batch),
            *(("–" if known is None else rate(known),) if has_rates else ()),
            *("–" if size is None else gib(size) for size in peaks),
            *(() if has_rates else (gib(one.budget.usable_bytes),)),
            "–" if entry.first_failing_batch is None else str(entry.first_failing_batch),
            entry.evidence,
            is_chosen=(entry.parallel, entry.knobs) == chosen,
        )

    shown = table(
        (
            left("parallel, with\nits setting" if any(names.values()) else "\nparallel"),
            right("global\nbatch"),
            right("batch of\na rank"),
            *((right("samples\na second"),) if has_rates else ()),
            right("resident\nGiB" if on_cpu else "reserved\nGiB"),
            *(() if on_cpu else (right("device\nGiB"),)),
            *(() if has_rates else (right("usable\nGiB"),)),  # beside rates there is no room in 80 columns
            right("fails\nat"),
            left("\nevidence"),
        ),
        (cells(*each) for each in sorted(rows, key=lambda each: -(each[1].samples_per_step or 0))),
        has_long_names=True,
    )
    explained = "The global batch: samples of a step over all ranks. What follows is of a rank."
    has_any = any(entry.samples_per_step is not None for _, entry in rows)
    yield Section(
        name="parallels",
        title="Ways of training together",
        blocks=(shown, *((Paragraph(explained, "quiet"),) if has_any else ())),
        is_leading=True,
    )
    if refused := tuple(f"{one.parallel}: {one.refused}" for one in result.parallels if one.refused):
        yield Section(name="refused", title="Not possible", blocks=(Bullets(refused),), is_leading=True)


def _rate(entry: FrontierEntry) -> float | None:
    """Samples a second over all ranks: measured, or else predicted; None if neither is known."""
    return entry.samples_per_second or entry.predicted_samples_per_second
