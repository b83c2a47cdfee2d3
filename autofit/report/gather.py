"""Gathers the content of an HTML report: the result, the curves around it, and the memory by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from autofit.errors import WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.explain.profile import Profile, peak_position, phase_of
from autofit.explain.timing import StepSeconds
from autofit.explain.views.device_time import class_times, module_times
from autofit.explain.views.filters import Filters
from autofit.explain.views.scopes import scope_view
from autofit.explain.views.timeline import timeline
from autofit.explain.views.workspaces import layer_workspaces
from autofit.hardware.budget import Budget, budget_of
from autofit.hardware.card import Card
from autofit.hardware.gpus import Gpu, catalogue
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import Predictor
from autofit.questions.advice import Advice
from autofit.questions.what_if import WhatIf
from autofit.report.answer import answer_in_words
from autofit.report.html.content import Content, CurveLine, Fact, MeasuredPoint, Node, SizeMap, Times
from autofit.report.html.tables import breakdown_table, frontier_table, parallels_table
from autofit.report.remedies import how_it_fits, what_each_saves
from autofit.report.words import (
    PeakNames,
    assumptions,
    evidence_phrase,
    likely_and_span,
    on_its_card,
    rate,
    span_of_bytes,
)
from autofit.settings.goals import Risk
from autofit.settings.words import configuration, with_setting
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from autofit_workers.spec.trace import parameters_in_words

_NUM_MOMENTS = 1200  # of the step: more than a screen has pixels shows nothing more
_NUM_SIZES = 18  # of a curve, evenly spread
_NUM_HALVINGS = 5  # of the longest samples, in a map of sizes
_BEYOND = 1.15  # how far beyond its boundary a curve is drawn


def report_on_search(result: TuneResult, predictor: Predictor, *, emit: EventSink = ignore) -> Content:
    """Content of the HTML report on a search.

    The search's predictions are made again, as an earlier answer brings no traces with it. The breakdown of
    memory and the times are those of the configuration that the answer is about.

    Args:
        predictor: of the workload.
        emit: is told of each curve.
    """
    budget, estimate = result.budget, result.estimate_of_chosen
    notes = [*budget.assumptions, *result.notes]
    profile, curves, size_map = None, list[CurveLine](), None
    name = None if estimate is None else result.setting_name(estimate.knobs)
    if result.device.kind == "cpu":
        notes.append("on the CPU there is no caching allocator: memory is measured, not simulated")
    elif estimate is not None:
        card = _card(result)
        try:
            curves = _without_repetition(_curves(result, card, predictor, emit))
            size_map = _size_map(result, card, predictor, emit)
            emit(Progress(stage="predicting where the memory goes"))
            profile = predictor.profile(estimate.knobs, card, estimate.batch_size)
        except WorkloadFailedError as error:
            notes.append(f"the report has no prediction beside the answer: {error.message}")
    if estimate is not None:
        notes += assumptions(estimate)
    return Content(
        title=f"{result.workload} in {format_bytes(budget.device_total_bytes)}",
        answer=answer_in_words(result),
        facts=tuple(_facts_of_search(result)),
        budget_bytes=budget.usable_bytes,
        curves=tuple(curves),
        measured=tuple(_measured(result)),
        size_map=size_map,
        parallels=parallels_table(result) if result.parallels else None,
        frontier=frontier_table(result) if result.frontier else None,
        remedies=_remedies(result.advice),
        notes=tuple(dict.fromkeys(notes)),
        made=_made(result.versions, f"study {result.study}"),
        **_of_profile(profile, estimate, name=name),
    )


def _remedies(advice: Advice | None) -> tuple[str, ...]:
    return () if advice is None else (*what_each_saves(advice), *how_it_fits(advice))


def report_on_estimate(
    estimate: Estimate,
    predictor: Predictor,
    card: Card,
    *,
    gpu: Gpu | None = None,
    what_if: WhatIf | None = None,
    emit: EventSink = ignore,
) -> Content:
    """Content of the HTML report on one configuration, with the curve around its batch size.

    Args:
        gpu: the card that was named, whose memory is the budget.
        emit: is told what is worked out.
    """
    groups, num_ranks = estimate.communicators, estimate.num_ranks
    budget = None if gpu is None else budget_of(gpu, mesh=groups, num_ranks=num_ranks)
    emit(Progress(stage="predicting the curve"))
    batch, notes = estimate.batch_size, assumptions(estimate)
    try:
        curves = _around(predictor.curve(estimate.knobs, card), batch)
    except WorkloadFailedError as error:  # at other sizes than this one
        curves, notes = (), (*notes, f"the curve cannot be predicted: {error.message}")
    profile = predictor.profile(estimate.knobs, card, batch)
    return Content(
        title=f"{estimate.workload} at batch {batch}",
        answer=tuple(_in_words(estimate, budget)),
        facts=tuple(
            _facts_of_configuration(
                _model(estimate.model_class, estimate.num_parameters),
                _setting(
                    estimate.knobs.conv_algo,
                    configuration(
                        estimate.knobs,
                        estimate.mode,
                        estimate.batch_kind,
                        estimate.parallel,
                        rank=estimate.rank,
                    ),
                    convolves=estimate.convolves,
                ),
                architecture=estimate.architecture,
                allocated_bytes=estimate.peak_allocated_bytes,
                reserved_bytes=estimate.whole_peak_bytes,
                context_bytes=estimate.context_bytes,
                runs_out=estimate.runs_out,
                seconds=estimate.step_seconds,
            )
        ),
        budget_bytes=None if budget is None else budget.usable_bytes,
        curves=curves,
        what_if=what_if,
        remedies=_remedies(None if what_if is None else what_if.advice),
        notes=(*(() if budget is None else budget.assumptions), *notes),
        made=_made(estimate.versions),
        **_of_profile(profile, estimate),
    )


def report_on_profile(profile: Profile) -> Content:
    """Content of the HTML report on a profile, which may be a saved one, as nothing is traced."""
    gpu = catalogue().get(profile.card)
    trace, phase = profile.trace, phase_of(profile, peak_position(profile))
    budget = None if gpu is None else budget_of(gpu, mesh=trace.groups, num_ranks=trace.num_ranks)
    where = f"in the {phase.in_words}" if phase.step else "while the model is built"
    allocated, reserved = profile.peak_allocated_bytes, profile.peak_reserved_bytes
    return Content(
        title=f"{trace.workload} at batch {trace.batch_size}",
        answer=(
            f"{trace.workload} at batch {trace.batch_size} allocates {format_bytes(allocated)} at its peak, "
            f"{where}, and is likely to reserve {format_bytes(reserved)} on {profile.card}; "
            "predicted, not measured.",
        ),
        facts=tuple(
            _facts_of_configuration(
                None if trace.model is None else _model(trace.model.model_class, trace.model.num_parameters),
                _setting(
                    profile.knobs.conv_algo,
                    configuration(
                        profile.knobs, trace.mode, trace.batch_kind, trace.among_ranks, rank=trace.rank
                    ),
                    convolves=trace.convolves,
                ),
                architecture=profile.architecture,
                allocated_bytes=allocated,
                reserved_bytes=reserved,
                context_bytes=profile.context_bytes,
                seconds=None if profile.timing is None else profile.timing.seconds,
            )
        ),
        budget_bytes=None if budget is None else budget.usable_bytes,
        notes=(
            *(() if budget is None else budget.assumptions),
            *((f"convolution workspaces: {profile.workspace_source}",) if trace.convolves else ()),
        ),
        made=_made(profile.versions),
        **_of_profile(profile),
    )


# ── what a profile gives ────────────────────────────────────────────────────────────────────────


def _of_profile(
    profile: Profile | None, estimate: Estimate | None = None, *, name: str | None = None
) -> dict[str, Any]:
    """Sections of a report that show a profile, by field name of `Content`.

    Args:
        estimate: the estimate of the same configuration.
        name: the name of its setting; None for that of its convolution algorithm, where it convolves.
    """
    if profile is None:
        return {}
    if not profile.trace.events:
        return {}
    position = peak_position(profile)
    (lane,) = timeline(profile, step=phase_of(profile, position).step, num_moments=_NUM_MOMENTS)
    root, *modules = scope_view(profile, Filters()).rows
    if name is None:
        name = profile.knobs.conv_algo if profile.trace.convolves else ""
    return {
        "configuration": f"batch {profile.trace.batch_size}{with_setting(name)}",
        "lane": lane,
        "breakdown": breakdown_table(
            lane.peak.categories,
            reserved_bytes=profile.peak_reserved_bytes if estimate is None else estimate.whole_peak_bytes,
            runs_out=estimate is not None and estimate.runs_out,
            context_bytes=profile.context_bytes,
            architecture=profile.architecture,
            exchanges=bool(profile.trace.groups),
        ),
        "nodes": (
            Node(path="", own_bytes=root.own.peak_bytes),
            *(Node(path=row.name, own_bytes=row.own.peak_bytes) for row in modules),
        ),
        "times": _times(profile),
        "workspaces": layer_workspaces(profile),
    }


def _times(profile: Profile) -> Times | None:
    timing = profile.timing
    if timing is None or not timing.calls:
        return None
    return Times(
        timing=timing,
        note=profile.time_note,
        classes=class_times(timing),
        modules=module_times(profile),
    )


# ── curves ──────────────────────────────────────────────────────────────────────────────────────


def _card(result: TuneResult) -> Card:
    """Card that a search's predictions assumed."""
    estimate = result.estimate_of_chosen
    name = result.device.name if estimate is None else estimate.device.name
    likely, *others = result.architectures
    return Card(
        name=name,
        architecture=likely,
        context_bytes=result.budget.context_bytes,
        may_be=tuple(result.architectures) if others else (),
    )


def _curves(result: TuneResult, card: Card, predictor: Predictor, emit: EventSink) -> Iterator[CurveLine]:
    """Peak curve of each knob setting at the search's risk, up to a little above its boundary."""
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


def _size_map(result: TuneResult, card: Card, predictor: Predictor, emit: EventSink) -> SizeMap | None:
    """Peaks by batch and sample size around the result; None if no sample size was given or found."""
    chosen = result.chosen
    if chosen is None or chosen.knobs.seq_len is None:
        return None
    surface = predictor.surface(chosen.knobs, card, risk=result.risk)
    longest = max(entry.knobs.seq_len or 0 for entry in result.frontier)
    multiple = predictor.size_multiple(chosen.knobs)
    steps = {(longest - (longest >> halvings)) // multiple for halvings in range(_NUM_HALVINGS)}
    sizes = tuple(sorted(longest - multiple * step for step in steps))  # which share their traces
    most = max(2, *(entry.largest_batch or 0 for entry in result.frontier))
    batch_sizes = tuple(2 << doublings for doublings in range(most.bit_length() + 1))
    rows = []
    for number, batch_size in enumerate(batch_sizes):
        emit(Progress(stage="predicting sizes", done=number, total=len(batch_sizes)))
        rows.append(tuple(surface.curve(size, batch_size).peak_reserved_bytes(batch_size) for size in sizes))
    return SizeMap(sizes=sizes, batch_sizes=batch_sizes, peaks_bytes=tuple(rows))


def _around(curve: PredictedCurve, batch_size: int) -> tuple[CurveLine, ...]:
    """Curves of the likely and the highest peak of one knob setting, up to twice a batch size."""
    sizes = (batch_size,) if curve.needs_traces else _spread(min(2, batch_size), 2 * batch_size, [batch_size])
    return (
        _line("likely", curve.at_risk(Risk.LIKELY), sizes),
        _line("at most, with 95% confidence", curve.at_risk(Risk.SAFE), sizes),
    )


def _without_repetition(lines: Iterable[CurveLine]) -> list[CurveLine]:
    """Curves to draw: knob settings with equal peaks share one line, labelled with all their names."""
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
    """Batch sizes evenly spread from `low` to `high`, and those in `marks`, ascending."""
    high = max(high, low)
    evenly = (low + (high - low) * number // (_NUM_SIZES - 1) for number in range(_NUM_SIZES))
    return tuple(sorted({*evenly, *marks}))


def _measured(result: TuneResult) -> Iterator[MeasuredPoint]:
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


# ── words and numbers ───────────────────────────────────────────────────────────────────────────


def _facts_of_search(result: TuneResult) -> Iterator[Fact]:
    best, budget, estimate = result.chosen, result.budget, result.estimate_of_chosen
    if estimate is not None and (model := _model(estimate.model_class, estimate.num_parameters)) is not None:
        yield model
    if best is not None:
        yield Fact(
            name="batch size", value=str(best.batch_size), note=evidence_phrase(best.evidence, result.device)
        )
        mode = None if estimate is None else estimate.mode
        kind = None if estimate is None else estimate.batch_kind
        rank = 0 if estimate is None else estimate.rank
        settings = configuration(best.knobs, mode, kind, result.parallel, rank=rank)
        yield _setting(best.knobs.conv_algo, settings, convolves=result.convolves)
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


def _model(model_class: str | None, num_parameters: int | None) -> Fact | None:
    """`Fact` about the model for a report; None where a script builds the model."""
    if model_class is None or num_parameters is None:
        return None
    return Fact(name="model", value=model_class, note=parameters_in_words(num_parameters))


def _setting(conv_algo: str, configured: str, *, convolves: bool) -> Fact:
    if convolves:
        return Fact(name="setting", value=conv_algo, note=configured)
    first, _, others = configured.partition(" · ")
    return Fact(name="setting", value=first, note=others)


def _facts_of_configuration(
    model: Fact | None,
    setting: Fact,
    *,
    architecture: str | None,
    allocated_bytes: int,
    reserved_bytes: int,
    context_bytes: int,
    runs_out: bool = False,
    seconds: StepSeconds | None = None,
) -> Iterator[Fact]:
    if model is not None:
        yield model
    yield setting
    names = PeakNames.of(architecture, runs_out=runs_out)
    for name, num_bytes, note in (
        ("allocated peak", allocated_bytes, "live tensors"),
        (names.reserved, reserved_bytes, "PyTorch's segments, likely"),
        (names.device, reserved_bytes + context_bytes, names.of_device),
    ):
        yield Fact(name=name, value=format_bytes(num_bytes), note=note)
    if seconds is not None:
        likely, spread = likely_and_span(seconds)
        yield Fact(name="step time", value=likely, note=f"{spread} with 95% confidence")


def _in_words(estimate: Estimate, budget: Budget | None) -> Iterator[str]:
    interval = estimate.interval
    evidence = evidence_phrase(estimate.evidence, estimate.device)
    if on_card := on_its_card(estimate):
        where = f"{estimate.workload} at batch {estimate.batch_size} on {estimate.device.name}"
        yield f"{where} {on_card}; {evidence}."
        return
    yield (
        f"{estimate.workload} at batch {estimate.batch_size} is likely to reserve "
        f"{format_bytes(estimate.peak_reserved_bytes)} on {estimate.device.name}, {span_of_bytes(interval)} "
        f"with 95% confidence; {evidence}."
    )
    if budget is not None:
        usable = format_bytes(budget.usable_bytes)
        if interval.high_bytes <= budget.usable_bytes:
            yield f"That fits the {usable} that are usable on the card."
        elif interval.low_bytes > budget.usable_bytes:
            yield f"That does not fit the {usable} that are usable on the card."
        else:
            yield f"That may or may not fit the {usable} that are usable on the card."


def _made(versions: dict[str, str], *more: str) -> str:
    names = (f"{name} {version}" for name, version in versions.items())
    return " · ".join((f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", *names, *more))
