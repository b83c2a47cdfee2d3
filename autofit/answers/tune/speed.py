"""Lays out the speed of a search's knob settings, measured or predicted, as sections of tables."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.section import Paragraph, Section, left, right, table
from autofit.answers.tune.frontier import best_first, setting_column
from autofit.answers.words.numbers import rate, seconds_in_words, slower_in_words, span_of_seconds
from autofit.settings.words import joined, with_setting
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes


def measured_speed(result: TuneResult) -> Iterator[Section]:
    """Yields a table of measured step times, with a row for each knob setting (precision, …) that was timed.

    Each was timed at its largest batch. Yields nothing if none was.
    """
    timed = [entry for entry in best_first(result) if entry.samples_per_second is not None]
    if not timed:
        return
    names = result.setting_names
    is_predicted = any(entry.predicted_bytes is not None for entry in timed)
    shown = table(
        (
            setting_column(result),
            right("\nbatch"),
            right("\nstep"),
            right("samples\na second"),
            *((right("peak\npredicted"), right("prediction\noff by")) if is_predicted else ()),
        ),
        (
            (
                names[entry.knobs],
                str(entry.largest_batch),
                seconds_in_words(entry.step_seconds or 0),
                rate(entry.samples_per_second or 0),
                *(_prediction(entry) if is_predicted else ()),
            )
            for entry in timed
        ),
        has_long_names=result.is_of_product,
    )
    errors = [abs(entry.step_time_error) for entry in timed if entry.step_time_error is not None]
    off = [f"Predicted step times were off by {100 * max(errors):.0f}% at most."] if errors else []
    said = map(Paragraph, (*_knee(result), *off))
    yield Section(name="measured", title="As measured at the largest batch", blocks=(shown, *said))


def predicted_speed(result: TuneResult) -> Iterator[Section]:
    """Yields a table of predicted step times, with a row for each knob setting (precision, …), fastest first.

    Each is at its largest batch. If seconds are too uncertain, the table has only how many times slower each
    setting is than the fastest. Yields nothing if a setting was timed, or if there is nothing to compare.
    """
    if any(entry.samples_per_second is not None for entry in result.frontier):
        return
    timed = [entry for entry in result.frontier if entry.relative_sample_time is not None]
    is_stated = any(entry.predicted_step_seconds is not None for entry in timed)
    if not is_stated and len(timed) < 2:
        return
    names, rows = result.setting_names, dict[tuple[str, ...], list[str]]()
    for entry in sorted(timed, key=lambda entry: entry.relative_sample_time or 0.0):
        cells = (
            str(entry.largest_batch),
            *(_stated(entry) if is_stated else ()),
            slower_in_words(entry.relative_sample_time or 1.0),
        )
        rows.setdefault(cells, []).append(names[entry.knobs])
    shown = table(
        (
            setting_column(result),
            right("\nbatch"),
            *((right("\nstep (95 %)"), right("samples\na second")) if is_stated else ()),
            left("\nspeed"),
        ),
        ((joined(alike), *cells) for cells, alike in rows.items()),
        has_long_names=True,
    )
    title = "Speed at the largest batch, predicted" if is_stated else "Which is faster, predicted"
    yield Section(name="speed", title=title, blocks=(shown, *map(Paragraph, _knee(result))))


def _stated(entry: FrontierEntry) -> tuple[str, str]:
    """Texts of predicted step time and samples a second; a dash for each that is unknown.

    Args:
        entry: result of a search for one knob setting (precision, optimizer, …).
    """
    seconds, per_second = entry.predicted_step_seconds, entry.predicted_samples_per_second
    return (
        "–" if seconds is None else span_of_seconds(seconds),
        "–" if per_second is None else rate(per_second),
    )


def _knee(result: TuneResult) -> Iterator[str]:
    knee = result.knee
    if knee is None:
        return
    how = "predicted" if knee.is_predicted else "measured"
    yield (
        f"Throughput knee: batch {knee.batch_size}{with_setting(result.setting_names[knee.knobs])}, the "
        f"smallest {how} within 5% of the best rate: {rate(knee.samples_per_second)} samples a second, "
        f"{100 * knee.samples_per_second / knee.best_samples_per_second:.0f}% of it."
    )


def _prediction(entry: FrontierEntry) -> tuple[str, str]:
    """Texts of a predicted peak, and of its error in percent of the measured peak; dashes if unknown."""
    if entry.predicted_bytes is None or entry.prediction_error is None:
        return "–", "–"
    return format_bytes(entry.predicted_bytes), f"{100 * entry.prediction_error:+.1f}%"
