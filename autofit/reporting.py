"""Gathers what a report shows: an answer, the curves around it, and where its memory goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from autofit.budget import Budget, make_budget
from autofit.card_plans import Card
from autofit.confidence import Risk
from autofit.errors import WorkloadFailedError
from autofit.explain.profile import Profile, alive_at, peak_position, phase_of
from autofit.explain.timeline import timeline
from autofit.explain.workspaces import layer_workspaces
from autofit.gpus import Gpu
from autofit.predicted_curve import PredictedCurve
from autofit.prediction import Predictor
from autofit.report.answer import answer_in_words
from autofit.report.estimate import Estimate
from autofit.report.html.content import Content, CurveLine, Fact, MeasuredPoint, Node
from autofit.report.html.tables import breakdown_table, frontier_table
from autofit.report.result import TuneResult
from autofit.report.what_if import WhatIf
from autofit.report.words import configuration, evidence_phrase, rate, unnamed_card
from autofit.service.events import EventSink, Progress, ignore
from autofit.units import format_bytes

_NUM_MOMENTS = 1200  # of the step: more than a screen has pixels shows nothing more
_NUM_SIZES = 18  # of a curve, evenly spread
_BEYOND = 1.15  # how far beyond its boundary a curve is drawn


def report_on_search(result: TuneResult, predictor: Predictor, *, emit: EventSink = ignore) -> Content:
    """The report of a search.

    What was predicted for it is predicted again, as an earlier answer brings no traces with it.

    Args:
        predictor: of the workload.
        emit: is told of each curve.
    """
    budget, estimate = result.budget, result.estimate
    notes = [*budget.assumptions, *result.notes]
    profile, curves = None, list[CurveLine]()
    if result.device.kind == "cpu":
        notes.append("a process on the CPU has no caching allocator: its memory is measured, not replayed")
    elif estimate is not None:
        card = _card(result)
        try:
            curves = _without_repetition(_curves(result, card, predictor, emit))
            emit(Progress(stage="looking where the memory goes"))
            profile = predictor.profile(estimate.knobs, card, estimate.batch_size)
        except WorkloadFailedError as error:
            notes.append(f"nothing is predicted beside the answer: {error.message}")
    if estimate is not None:
        notes += _what_a_prediction_rests_on(estimate)
    return Content(
        title=f"{result.workload} in {format_bytes(budget.device_total_bytes)}",
        answer=answer_in_words(result),
        facts=tuple(_facts_of_search(result)),
        breakdown=None if estimate is None else breakdown_table(estimate),
        budget_bytes=budget.usable_bytes,
        curves=tuple(curves),
        measured=tuple(_measured(result)),
        frontier=frontier_table(result) if result.frontier else None,
        notes=tuple(dict.fromkeys(notes)),
        made=_made(result.versions, f"study {result.study}"),
        **_of_profile(profile),
    )


def report_on_estimate(
    estimate: Estimate,
    predictor: Predictor,
    card: Card,
    *,
    gpu: Gpu | None = None,
    what_if: WhatIf | None = None,
    emit: EventSink = ignore,
) -> Content:
    """The report of one configuration, with the curve around its batch size.

    Args:
        gpu: the card that was named, whose memory is the budget.
        emit: is told what is worked out.
    """
    budget = (
        None if gpu is None else make_budget(gpu.total_bytes, architecture=gpu.architecture, card=gpu.key)
    )
    emit(Progress(stage="working out the curve"))
    curve = predictor.curve(estimate.knobs, card)
    batch = estimate.batch_size
    sizes = (batch,) if curve.needs_traces else _spread(min(2, batch), 2 * batch, [batch])
    profile = predictor.profile(estimate.knobs, card, batch)
    return Content(
        title=f"{estimate.workload} at batch {batch}",
        answer=tuple(_in_words(estimate, budget)),
        facts=tuple(_facts_of_estimate(estimate)),
        breakdown=breakdown_table(estimate),
        budget_bytes=None if budget is None else budget.usable_bytes,
        curves=(
            _line("likely", curve.at_risk(Risk.LIKELY), sizes),
            _line("at most, with 95% confidence", curve.at_risk(Risk.SAFE), sizes),
        ),
        what_if=what_if,
        notes=(*(() if budget is None else budget.assumptions), *_what_a_prediction_rests_on(estimate)),
        made=_made(estimate.versions),
        **_of_profile(profile),
    )


# ── what a profile gives ────────────────────────────────────────────────────────────────────────


def _of_profile(profile: Profile | None) -> dict[str, Any]:
    """The parts of a report that are views of a profile, by their names in `Content`."""
    if profile is None:
        return {}
    position = peak_position(profile)
    lanes = timeline(profile, steps=(phase_of(profile, position).step,), num_moments=_NUM_MOMENTS)
    return {
        "lane": lanes[0] if lanes else None,
        "nodes": tuple(_nodes(profile, position)),
        "workspaces": layer_workspaces(profile),
    }


def _nodes(profile: Profile, position: int) -> Iterator[Node]:
    """The modules that hold something at a position, and those around them."""
    own: dict[str, int] = {"": 0}
    for number in alive_at(profile, position):
        path = profile.trace.allocations[number].module
        parts = path.split(".") if path else []
        for end in range(1, len(parts) + 1):
            own.setdefault(".".join(parts[:end]), 0)
        own[path] += profile.block_bytes[number]
    return (Node(path=path, own_bytes=num_bytes) for path, num_bytes in own.items())


# ── curves ──────────────────────────────────────────────────────────────────────────────────────


def _card(result: TuneResult) -> Card:
    """The card that a search's predictions assumed."""
    name = result.device.name if result.estimate is None else result.estimate.device.name
    likely, *others = result.architectures
    return Card(
        name=name,
        architecture=likely,
        context_bytes=result.budget.context_bytes,
        may_be=tuple(result.architectures) if others else (),
    )


def _curves(result: TuneResult, card: Card, predictor: Predictor, emit: EventSink) -> Iterator[CurveLine]:
    """The curve of each setting at the search's risk, drawn a little beyond its boundary."""
    for number, entry in enumerate(result.frontier):
        emit(Progress(stage="working out curves", done=number, total=len(result.frontier)))
        curve = predictor.curve(entry.knobs, card, risk=result.risk)
        marks = [size for size in (entry.largest_batch, entry.first_failing_batch) if size is not None]
        high = round(_BEYOND * max(marks))
        sizes = tuple(marks) if curve.needs_traces else _spread(min(2, *marks), high, marks)
        yield _line(
            entry.knobs.conv_algo,
            curve,
            sizes,
            largest_batch=entry.largest_batch,
            first_failing_batch=entry.first_failing_batch,
        )


def _without_repetition(lines: Iterable[CurveLine]) -> list[CurveLine]:
    """Settings that need the same at every size share a line, which bears all their names."""
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
    sizes = tuple(sizes)
    return CurveLine(
        label=label,
        batch_sizes=sizes,
        peaks_bytes=tuple(curve.peak_reserved_bytes(size) for size in sizes),
        largest_batch=largest_batch,
        first_failing_batch=first_failing_batch,
    )


def _spread(low: int, high: int, marks: Iterable[int]) -> tuple[int, ...]:
    """Sizes from the first to the last, evenly spread, with some that have to be among them."""
    high = max(high, low)
    evenly = (low + (high - low) * number // (_NUM_SIZES - 1) for number in range(_NUM_SIZES))
    return tuple(sorted({*evenly, *marks}))


def _measured(result: TuneResult) -> Iterator[MeasuredPoint]:
    for trial in result.trials:
        peak_bytes = trial.budgeted_bytes
        if trial.was_run and peak_bytes is not None:
            yield MeasuredPoint(
                label=trial.knobs.conv_algo,
                batch_size=trial.batch_size,
                peak_bytes=peak_bytes,
                verdict=trial.verdict,
            )


# ── words and numbers ───────────────────────────────────────────────────────────────────────────


def _facts_of_search(result: TuneResult) -> Iterator[Fact]:
    best, budget = result.best, result.budget
    if best is not None:
        yield Fact(
            name="batch size", value=str(best.batch_size), note=evidence_phrase(best.evidence, result.device)
        )
        mode = None if result.estimate is None else result.estimate.mode
        settings = configuration(best.knobs, mode)
        yield Fact(name="setting", value=best.knobs.conv_algo, note=settings)
        peak_bytes = best.device_peak_bytes if result.device.kind == "cpu" else best.peak_reserved_bytes
        if peak_bytes is not None:
            yield Fact(
                name="peak",
                value=format_bytes(peak_bytes),
                note="resident" if result.device.kind == "cpu" else "reserved by PyTorch's allocator",
            )
        if best.samples_per_second is not None:
            yield Fact(name="samples a second", value=rate(best.samples_per_second))
    yield Fact(
        name="usable",
        value=format_bytes(budget.usable_bytes),
        note=f"of {format_bytes(budget.device_total_bytes)} on {result.device.name}",
    )


def _facts_of_estimate(estimate: Estimate) -> Iterator[Fact]:
    yield Fact(
        name="setting",
        value=estimate.knobs.conv_algo,
        note=configuration(estimate.knobs, estimate.mode),
    )
    for name, num_bytes, note in (
        ("allocated peak", estimate.peak_allocated_bytes, "live tensors"),
        ("reserved peak", estimate.peak_reserved_bytes, "PyTorch's segments, likely"),
        ("device peak", estimate.device_peak_bytes, "what nvidia-smi would show"),
    ):
        yield Fact(name=name, value=format_bytes(num_bytes), note=note)


def _in_words(estimate: Estimate, budget: Budget | None) -> Iterator[str]:
    interval = estimate.interval
    span = f"{format_bytes(interval.low_bytes)} to {format_bytes(interval.high_bytes)}"
    yield (
        f"{estimate.workload} at batch {estimate.batch_size} is likely to reserve "
        f"{format_bytes(estimate.peak_reserved_bytes)} on {estimate.device.name}, {span} with 95% "
        f"confidence; "
        f"{evidence_phrase(estimate.evidence, estimate.device)}."
    )
    if budget is not None:
        usable = format_bytes(budget.usable_bytes)
        if interval.high_bytes <= budget.usable_bytes:
            yield f"That fits the {usable} that are usable of the card."
        elif interval.low_bytes > budget.usable_bytes:
            yield f"That does not fit the {usable} that are usable of the card."
        else:
            yield f"Whether that fits the {usable} that are usable of the card is not sure."


def _what_a_prediction_rests_on(estimate: Estimate) -> tuple[str, ...]:
    spanned = (unnamed_card(estimate.architectures),) if len(estimate.architectures) > 1 else ()
    return (*spanned, f"convolution workspaces: {estimate.workspace_source}", estimate.calibration.note)


def _made(versions: dict[str, str], *more: str) -> str:
    names = (f"{name} {version}" for name, version in versions.items())
    return " · ".join((f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", *names, *more))
