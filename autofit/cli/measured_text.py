"""What was measured, beside the answer: times, rates, and how far the prediction was off."""

from __future__ import annotations

from rich.console import Console

from autofit.cli.output import by_setting, heading, indented
from autofit.report.words import rate
from autofit.tuning.result import FrontierEntry, TuneResult
from autofit.units import format_bytes


def print_measured(console: Console, result: TuneResult) -> None:
    """The largest batch of every setting as it ran, and the throughput knee; nothing of a prediction."""
    timed = [entry for entry in result.frontier if entry.samples_per_second is not None]
    if not timed:
        return
    names = result.setting_names
    heading(console, "As measured at the largest batch")
    is_predicted = any(entry.predicted_bytes is not None for entry in timed)
    table = by_setting(
        ("\nbatch", "right"),
        ("\nstep", "right"),
        ("samples\na second", "right"),
        *((("peak\npredicted", "right"), ("prediction\noff by", "right")) if is_predicted else ()),
        is_of_product=result.is_of_product,
    )
    for entry in sorted(timed, key=lambda entry: -(entry.largest_batch or 0)):
        table.add_row(
            names[entry.knobs],
            str(entry.largest_batch),
            _duration(entry.step_seconds or 0),
            rate(entry.samples_per_second or 0),
            *(_prediction(entry) if is_predicted else ()),
        )
    console.print(indented(table))
    if result.knee is not None:
        knee = result.knee
        console.print(
            f"  Throughput knee: batch {knee.batch_size} with {names[knee.knobs]}, the smallest measured "
            f"within 5% of the best rate: {rate(knee.samples_per_second)} samples a second, "
            f"{100 * knee.samples_per_second / knee.best_samples_per_second:.0f}%."
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _prediction(entry: FrontierEntry) -> tuple[str, str]:
    """The peak that was predicted, and by how much of the measured one it was off."""
    if entry.predicted_bytes is None or entry.prediction_error is None:
        return "–", "–"
    return format_bytes(entry.predicted_bytes), f"{100 * entry.prediction_error:+.1f}%"
