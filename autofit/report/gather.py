"""Gathers HTML reports: the sections of an answer, with figures of the curves and the memory around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from autofit.answers.configuration.estimate import answer_in_words as estimate_in_words
from autofit.answers.configuration.estimate import estimate_sections, setting_in_words
from autofit.answers.configuration.what_if import what_if_sections
from autofit.answers.figures import CurveLine, ModuleMemory, Node, SizeMap, StepMemory, Workspaces
from autofit.answers.memory import memory_section
from autofit.answers.profile.rows import profile_in_words
from autofit.answers.profile.times import time_sections
from autofit.answers.section import Bullets, Figure, Paragraph, Section
from autofit.answers.tune.answer import answer_in_words
from autofit.answers.tune.sections import configuration_of, tune_sections
from autofit.answers.words.numbers import likely_and_span, rate
from autofit.answers.words.phrases import PeakNames, assumptions, evidence_phrase
from autofit.errors import WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.explain.profile import Profile, peak_position, phase_of
from autofit.explain.timing import StepSeconds
from autofit.explain.views.filters import Filters
from autofit.explain.views.scopes import scope_view
from autofit.explain.views.timeline import timeline
from autofit.explain.views.workspaces import layer_workspaces
from autofit.hardware.budget import budget_of
from autofit.hardware.card import Card
from autofit.hardware.gpus import Gpu, catalogue
from autofit.predict.estimate import Estimate
from autofit.predict.predictor import Predictor
from autofit.questions.what_if import WhatIf
from autofit.report.curves import (
    curves_around,
    curves_of_search,
    curves_section,
    measured_points,
    size_map,
    size_map_section,
    without_repetition,
)
from autofit.report.html.page import Fact, Page
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.words import configuration, with_setting
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from autofit_workers.spec.trace import parameters_in_words

_NUM_MOMENTS = 1200  # points of the figure of a step, about the width of a screen in pixels
# Sections that the page leaves out, as it has their contents in its answer and facts, and in its foot.
_BESIDE = frozenset({"configuration", "answer", "verdict", "peaks", "record"})
_BEFORE_CURVES = frozenset({"budget", "parallels", "refused", "frontier", "front"})
_AFTER_STEP = frozenset({"notes", "apply"})


def report_on_search(
    result: TuneResult, settings: TuneSettings, predictor: Predictor, *, emit: EventSink = ignore
) -> Page:
    """HTML report on a search for the largest batch, as data.

    The predictions of the search are made again, as a stored answer has no traces. The memory by category and
    the times are those of the recommended configuration.

    Args:
        settings: settings of the search.
        predictor: predictor of the workload.
        emit: function to which the progress of the predictions is reported.
    """
    budget, estimate = result.budget, result.estimate_of_chosen
    notes, lines, sizes, step = list[str](), list[CurveLine](), None, list[Section]()
    if result.device.kind == "cpu":
        notes.append("on the CPU there is no caching allocator: memory is measured, not simulated")
    elif estimate is not None and result.detailed is not None:
        card = _card(result)
        try:
            lines = without_repetition(curves_of_search(result, card, predictor, emit))
            sizes = size_map(result, card, predictor, emit)
            emit(Progress(stage="predicting where the memory goes"))
            knobs, batch_size = result.detailed
            profile = predictor.profile(knobs, card, batch_size)
            step = list(_step_sections(profile, configuration_of(result), budget.usable_bytes))
            notes += assumptions(estimate)  # of the curves and the step, beside a measured answer too
        except WorkloadFailedError as error:
            notes.append(f"the report has no prediction beside the answer: {error.message}")
    boundary = _boundary(lines, result, sizes)
    return Page(
        title=f"{result.workload} in {format_bytes(budget.device_total_bytes)}",
        answer=answer_in_words(result),
        facts=tuple(_facts_of_search(result)),
        sections=tuple(_placed(tune_sections(result, settings, notes=notes), boundary, step)),
        made=_made(result.versions, f"study {result.study}"),
    )


def _boundary(lines: Iterable[CurveLine], result: TuneResult, sizes: SizeMap | None) -> Iterator[Section]:
    yield from curves_section(lines, measured_points(result), result.budget.usable_bytes)
    yield from size_map_section(sizes)


def report_on_estimate(
    estimate: Estimate,
    predictor: Predictor,
    card: Card,
    *,
    gpu: Gpu | None = None,
    of_script: bool = False,
    epoch_samples: int | None = None,
    what_if: WhatIf | None = None,
    emit: EventSink = ignore,
) -> Page:
    """HTML report on one configuration, as data, with its peak against the batch size.

    Args:
        card: GPU that the estimate was predicted for.
        gpu: GPU that the user named, whose memory is the budget; None if the user named none.
        of_script: whether the step is that of a user's training script.
        epoch_samples: samples of an epoch, to state its duration; None if the user did not give them.
        what_if: memory that single changes of options would save; None to leave them out.
        emit: function to which the progress of the predictions is reported.
    """
    groups, num_ranks = estimate.communicators, estimate.num_ranks
    budget = None if gpu is None else budget_of(gpu, mesh=groups, num_ranks=num_ranks)
    budget_bytes = None if budget is None else budget.usable_bytes
    emit(Progress(stage="predicting the curve"))
    batch, called = estimate.batch_size, estimate.called_batch_size
    lines, notes = tuple[CurveLine, ...](), tuple[str, ...]()
    try:
        lines = curves_around(predictor.curve(estimate.knobs, card), called)
    except WorkloadFailedError as error:  # at other sizes than this one
        notes = (f"the curve cannot be predicted: {error.message}",)
    profile = predictor.profile(estimate.knobs, card, called)
    setting = estimate.knobs.conv_algo if estimate.convolves else ""
    step = _step_sections(profile, f"at batch {batch}{with_setting(setting)}", budget_bytes)
    levers = () if what_if is None else what_if_sections(what_if, {})
    names = PeakNames.of(estimate.architecture, runs_out=estimate.runs_out)
    peaks = estimate.peak_allocated_bytes, estimate.whole_peak_bytes, estimate.context_bytes
    sections = estimate_sections(estimate, gpu, of_script=of_script, epoch_samples=epoch_samples, notes=notes)
    return Page(
        title=f"{estimate.workload} at batch {batch}",
        answer=tuple(estimate_in_words(estimate, budget)),
        facts=(
            *_model(estimate.model_class, estimate.num_parameters),
            _setting(setting, setting_in_words(estimate, of_script=of_script)),
            *_peaks(names.peaks(*peaks)),
            *_step_time(estimate.step_seconds),
        ),
        sections=tuple(_placed((*sections, *levers), curves_section(lines, (), budget_bytes), step)),
        made=_made(estimate.versions),
    )


def report_on_profile(profile: Profile) -> Page:
    """Contents of the HTML report on a profile, which may be read from a file, as nothing is traced."""
    gpu = catalogue().get(profile.card)
    trace, phase = profile.trace, phase_of(profile, peak_position(profile))
    budget = None if gpu is None else budget_of(gpu, mesh=trace.groups, num_ranks=trace.num_ranks)
    where = f"in the {phase.in_words}" if phase.step else "while the model is built"
    allocated, reserved = profile.peak_allocated_bytes, profile.peak_reserved_bytes
    names = PeakNames.of(profile.architecture, runs_out=False)
    algorithm = profile.knobs.conv_algo if trace.convolves else ""
    at = "as recorded" if profile.recorded else f"at batch {trace.batch_size}{with_setting(algorithm)}"
    step = _step_sections(profile, at, None if budget is None else budget.usable_bytes)
    workspaces = (f"convolution workspaces: {profile.workspace_source}",) if trace.convolves else ()
    notes = (*(() if budget is None else budget.assumptions), *workspaces)
    if profile.recorded:
        said = (
            f"allocated {format_bytes(allocated)} at its peak, {where}, and reserved {format_bytes(reserved)}"
        )
        answer = f"{trace.workload} {said}, as a real run's memory snapshot shows."
        settings = "of a memory snapshot"
    else:
        answer = (
            f"{profile.title} allocates {format_bytes(allocated)} at its peak, {where}, and is likely to "
            f"reserve {format_bytes(reserved)} on {profile.card}; predicted, not measured."
        )
        settings = profile_in_words(profile)
    return Page(
        title=profile.title,
        answer=(answer,),
        facts=(
            *(() if trace.model is None else _model(trace.model.model_class, trace.model.num_parameters)),
            _setting(algorithm, settings),
            *_peaks(names.peaks(allocated, reserved, profile.context_bytes)),
            *_step_time(None if profile.timing is None else profile.timing.seconds),
        ),
        sections=tuple(_placed(_memory_of(profile, at, notes), (), step)),
        made=_made(profile.versions),
    )


def _memory_of(profile: Profile, at: str, notes: tuple[str, ...]) -> Iterator[Section]:
    """Yields the sections of a profile's report on the memory alive at the peak, and on what was assumed.

    Args:
        at: words for the title that name the configuration, such as `at batch 70`.
        notes: sentences on what was assumed; without them there is no section on it.
    """
    if profile.trace.events:
        position = peak_position(profile)
        (lane,) = timeline(profile, step=phase_of(profile, position).step, num_moments=_NUM_MOMENTS)
        yield memory_section(
            lane.peak.categories,
            at,
            reserved_bytes=profile.peak_reserved_bytes,
            context_bytes=profile.context_bytes,
            architecture=profile.architecture,
            exchanges=bool(profile.trace.groups),
        )
    if notes:
        yield Section(name="notes", title="Assumed and noted", blocks=(Bullets(notes),))


# ── the order of a page ─────────────────────────────────────────────────────────────────────────


def _placed(
    sections: Iterable[Section], boundary: Iterable[Section], step: Iterable[Section]
) -> Iterator[Section]:
    """Yields the sections of a page in order: largest batches, curves, other answers, the step, notes.

    Args:
        sections: sections of the answer; those whose content the page shows elsewhere are left out.
        boundary: sections with curves of the peak, which lead to the largest batch.
        step: sections on the profiled step.
    """
    shown = [section for section in sections if section.name not in _BESIDE]
    yield from (section for section in shown if section.name in _BEFORE_CURVES)
    yield from boundary
    yield from (section for section in shown if section.name not in _BEFORE_CURVES | _AFTER_STEP)
    yield from step
    yield from (section for section in shown if section.name in _AFTER_STEP)


def _step_sections(profile: Profile, at: str, budget_bytes: int | None) -> Iterator[Section]:
    """Yields figures of a profiled step: memory over time and by module, time by module, and workspaces.

    Yields nothing if the profile has no events.

    Args:
        at: words for titles that name the configuration, such as `at batch 70`.
        budget_bytes: memory that may be used, drawn as a line; None for no such line.
    """
    if not profile.trace.events:
        return
    (lane,) = timeline(profile, step=phase_of(profile, peak_position(profile)).step, num_moments=_NUM_MOMENTS)
    yield Section(
        name="step",
        title=f"Memory over the step {at}",
        blocks=(
            Paragraph(
                "Allocated memory after each allocator event, by what it holds, in the step with the peak. "
                "The dotted line is the reserved memory."
            ),
            Figure(StepMemory(lane=lane, budget_bytes=budget_bytes)),
        ),
    )
    root, *modules = scope_view(profile, Filters()).rows
    nodes = (
        Node(path="", own_bytes=root.own.peak_bytes),
        *(Node(path=row.name, own_bytes=row.own.peak_bytes) for row in modules),
    )
    said = "Memory alive at the peak, by the module that allocated or owns it. "
    zoom = "Click a module to zoom in, and the bar above to zoom out."
    yield Section(
        name="modules",
        title=f"Which module holds it {at}",
        blocks=(Paragraph(said + zoom), Figure(ModuleMemory(nodes=nodes))),
    )
    yield from time_sections(profile, at)
    layers = layer_workspaces(profile)
    if any(layer.largest_bytes for layer in layers):
        yield Section(
            name="workspaces",
            title=f"Workspaces of layers {at}",
            blocks=(
                Paragraph(
                    "Memory that a convolution needs besides its output while it runs. Only one is in use at "
                    "a time, but the allocator keeps the largest reserved."
                ),
                Figure(Workspaces(layers)),
            ),
        )


def _card(result: TuneResult) -> Card:
    """Card (GPU, with its context outside the allocator) that the predictions of a search assumed."""
    estimate = result.estimate_of_chosen
    name = result.device.name if estimate is None else estimate.device.name
    likely, *others = result.architectures
    return Card(
        name=name,
        architecture=likely,
        context_bytes=result.budget.context_bytes,
        may_be=tuple(result.architectures) if others else (),
    )


# ── words and numbers ───────────────────────────────────────────────────────────────────────────


def _facts_of_search(result: TuneResult) -> Iterator[Fact]:
    """Yields the facts at the head of a search's report, such as model, batch size and settings."""
    best, budget, estimate = result.chosen, result.budget, result.estimate_of_chosen
    if estimate is not None:
        yield from _model(estimate.model_class, estimate.num_parameters)
    if best is not None:
        yield Fact(
            name="batch size", value=str(best.batch_size), note=evidence_phrase(best.evidence, result.device)
        )
        mode = None if estimate is None else estimate.mode
        kind = None if estimate is None else estimate.batch_kind
        rank = 0 if estimate is None else estimate.rank
        settings = configuration(best.knobs, mode, kind, result.parallel, rank=rank)
        yield _setting(best.knobs.conv_algo if result.convolves else "", settings)
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


def _model(model_class: str | None, num_parameters: int | None) -> Iterator[Fact]:
    """Yields facts for a report's head: class of the model and its number of parameters.

    Yields nothing if either is None, as for a script, which builds the model itself.
    """
    if model_class is not None and num_parameters is not None:
        yield Fact(name="model", value=model_class, note=parameters_in_words(num_parameters))


def _setting(algorithm: str, configured: str) -> Fact:
    """Entry `setting` in the head of a report: the convolution algorithm, with the other knobs as its note.

    Args:
        algorithm: name of the convolution algorithm; empty for a step without convolutions.
        configured: the other knobs in words, joined by ` · `. Without an algorithm the first is the value.
    """
    first, _, others = (algorithm, "", configured) if algorithm else configured.partition(" · ")
    return Fact(name="setting", value=first, note=others)


def _peaks(peaks: Iterable[tuple[str, int, str]]) -> Iterator[Fact]:
    for name, num_bytes, note in peaks:
        yield Fact(name=name, value=format_bytes(num_bytes), note=note)


def _step_time(seconds: StepSeconds | None) -> Iterator[Fact]:
    if seconds is not None:
        likely, spread = likely_and_span(seconds)
        yield Fact(name="step time", value=likely, note=f"{spread} with 95% confidence")


def _made(versions: dict[str, str], *more: str) -> str:
    names = (f"{name} {version}" for name, version in versions.items())
    return " · ".join((f"made {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC", *names, *more))
