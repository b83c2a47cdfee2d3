"""Curves of predicted and measured peaks, as figures of a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from autofit.answers.figures import CurveLine, Curves, MeasuredPoint, SizeMap
from autofit.answers.section import Figure, Paragraph, Section
from autofit.events import EventSink, Progress
from autofit.hardware.card import Card
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.settings.goals import Risk
from autofit.tuning.result import TuneResult

_NUM_SIZES = 18  # batch sizes of a curve, evenly spread
_NUM_HALVINGS = 5  # sample sizes of a map: the longest, its half, and so on
_BEYOND = 1.15  # largest batch size of a drawn curve, over that of its boundary


def curves_section(
    lines: Iterable[CurveLine], measured: Iterable[MeasuredPoint], budget_bytes: int | None
) -> Iterator[Section]:
    """Yields a section with a figure of peak memory against the batch size; nothing without lines and points.

    Args:
        lines: predicted peaks, a line for each knob setting.
        measured: peaks of configurations that were run.
        budget_bytes: memory that may be used, drawn as a line; None for no such line.
    """
    drawn = Curves(lines=tuple(lines), measured=tuple(measured), budget_bytes=budget_bytes)
    if not drawn.lines and not drawn.measured:
        return
    said = ["Lines are predicted."]
    if any(line.largest_batch is not None for line in drawn.lines):
        said.append(
            "The marker on a line is the largest batch that fits; the cross is the next, which does not."
        )
    if drawn.measured:
        said.append("Open markers were measured.")
    title = "Peak memory against the batch size"
    yield Section(name="curves", title=title, blocks=(Paragraph(" ".join(said)), Figure(drawn)))


def size_map_section(size_map: SizeMap | None) -> Iterator[Section]:
    """Yields a section with a figure of peaks by batch and sample size; nothing if `size_map` is None."""
    if size_map is None:
        return
    said = (
        "Predicted. The thick line is the usable memory: what is below it fits. Along a dotted line a step "
        "has as many tokens (or pixels of a side)."
    )
    title = "Peak memory by batch and size of a sample"
    yield Section(name="sizes", title=title, blocks=(Paragraph(said), Figure(size_map)))


def curves_of_search(
    result: TuneResult, card: Card, predictor: Predictor, emit: EventSink
) -> Iterator[CurveLine]:
    """Yields a line of predicted peaks for each knob setting (precision, …), to 15 % above the failing batch.

    Args:
        card: GPU that the search predicted for.
        predictor: predictor of the model's or script's memory.
        emit: function to which progress is reported.
    """
    names = result.setting_names
    for number, entry in enumerate(result.frontier):
        emit(Progress(stage="predicting curves", done=number, total=len(result.frontier)))
        curve = predictor.curve(entry.knobs, card, risk=result.risk)
        marks = [size for size in (entry.largest_batch, entry.first_failing_batch) if size is not None]
        high = round(_BEYOND * max(marks))
        sizes = tuple(marks) if curve.needs_traces else _spread(min(2, *marks), high, marks)
        yield _line(
            names[entry.knobs],
            curve,
            sizes,
            largest_batch=entry.largest_batch,
            first_failing_batch=entry.first_failing_batch,
        )


def size_map(result: TuneResult, card: Card, predictor: Predictor, emit: EventSink) -> SizeMap | None:
    """Predicted peaks over batch size and sample size, with the recommended knob setting (precision, …).

    None if nothing fits, or if the search was given no size of a sample and found none.

    Args:
        card: GPU that the search predicted for.
        predictor: predictor of the model's memory.
        emit: function to which progress is reported.
    """
    chosen = result.chosen
    if chosen is None or chosen.knobs.seq_len is None:
        return None
    surface = predictor.surface(chosen.knobs, card, risk=result.risk)
    longest = max(entry.knobs.seq_len or 0 for entry in result.frontier)
    multiple = predictor.size_multiple(chosen.knobs)
    steps = {(longest - (longest >> halvings)) // multiple for halvings in range(_NUM_HALVINGS)}
    sizes = tuple(sorted(longest - multiple * step for step in steps))  # equal steps share traces
    most = max(2, *(entry.largest_batch or 0 for entry in result.frontier))
    batch_sizes = tuple(2 << doublings for doublings in range(most.bit_length() + 1))
    rows = []
    for number, batch_size in enumerate(batch_sizes):
        emit(Progress(stage="predicting sizes", done=number, total=len(batch_sizes)))
        rows.append(tuple(surface.curve(size, batch_size).peak_reserved_bytes(batch_size) for size in sizes))
    return SizeMap(
        sizes=sizes,
        batch_sizes=batch_sizes,
        peaks_bytes=tuple(rows),
        budget_bytes=result.budget.usable_bytes,
    )


def curves_around(curve: PredictedCurve, batch_size: int) -> tuple[CurveLine, ...]:
    """Two lines of a figure: the likely and the highest predicted peak, up to twice a batch size.

    Args:
        curve: predicted peak as a function of the batch size. If each size costs a trace, the lines have a
            point at `batch_size` only.
    """
    sizes = (batch_size,) if curve.needs_traces else _spread(min(2, batch_size), 2 * batch_size, [batch_size])
    return _likely_and_highest(curve, sizes, None)


def curves_up_to(
    curve: PredictedCurve, high: int, *, largest_batch: int | None, on_size: Callable[[], None]
) -> tuple[CurveLine, ...]:
    """Two lines of a figure: the likely and the highest predicted peak, from batch size 2 to `high`.

    Args:
        curve: predicted peak as a function of the batch size, at which no size costs a trace.
        largest_batch: largest batch size that fits the budget, which is marked; None for no mark.
        on_size: called before each point, and may raise.
    """
    marks = () if largest_batch is None or largest_batch < 2 else (largest_batch, largest_batch + 1)
    sizes = _spread(2, high, [size for size in marks if size <= high])
    for size in sizes:
        on_size()
        for risk in (Risk.LIKELY, Risk.SAFE):
            curve.at_risk(risk).peak_reserved_bytes(size)  # is kept for the lines
    return _likely_and_highest(curve, sizes, largest_batch if marks and marks[1] <= high else None)


def _likely_and_highest(
    curve: PredictedCurve, sizes: tuple[int, ...], largest_batch: int | None
) -> tuple[CurveLine, ...]:
    next_batch = None if largest_batch is None else largest_batch + 1
    return (
        _line("likely", curve.at_risk(Risk.LIKELY), sizes),
        _line(
            "at most, with 95% confidence",
            curve.at_risk(Risk.SAFE),
            sizes,
            largest_batch=largest_batch,
            first_failing_batch=next_batch,
        ),
    )


def without_repetition(lines: Iterable[CurveLine]) -> list[CurveLine]:
    """Lines of a figure, those with equal peaks merged into one with all their labels, joined by commas."""
    alike: dict[CurveLine, list[str]] = {}
    for line in lines:
        alike.setdefault(dataclasses.replace(line, label=""), []).append(line.label)
    return [dataclasses.replace(line, label=", ".join(labels)) for line, labels in alike.items()]


def _line(
    label: str,
    curve: PredictedCurve,
    sizes: Iterable[int],
    *,
    largest_batch: int | None = None,
    first_failing_batch: int | None = None,
) -> CurveLine:
    """Line of a figure: the peaks of a curve at given batch sizes."""
    sizes = tuple(sizes)
    return CurveLine(
        label=label,
        batch_sizes=sizes,
        peaks_bytes=tuple(curve.peak_reserved_bytes(size) for size in sizes),
        largest_batch=largest_batch,
        first_failing_batch=first_failing_batch,
    )


def _spread(low: int, high: int, marks: Iterable[int]) -> tuple[int, ...]:
    """Batch sizes in ascending order: 18 evenly spread from `low` to `high`, and those in `marks`."""
    high = max(high, low)
    evenly = (low + (high - low) * number // (_NUM_SIZES - 1) for number in range(_NUM_SIZES))
    return tuple(sorted({*evenly, *marks}))


def measured_points(result: TuneResult) -> Iterator[MeasuredPoint]:
    """Yields a figure's point for each configuration (batch size, precision, …) whose peak was measured."""
    names = result.setting_names
    for trial in result.trials:
        peak_bytes = trial.budgeted_bytes
        if trial.was_run and peak_bytes is not None:
            yield MeasuredPoint(
                label=names.get(trial.knobs, trial.knobs.conv_algo),
                batch_size=trial.batch_size,
                peak_bytes=peak_bytes,
                verdict=trial.verdict,
            )
