"""Puts together the sections of a search's result, in the order in which they are shown."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autofit.answers.memory import memory_sections
from autofit.answers.section import Bullets, Code, Paragraph, Section, grid, left, right, row, strong, table
from autofit.answers.tune.answer import answer_in_words
from autofit.answers.tune.details import conv_plan, lengths, pruned, risks
from autofit.answers.tune.frontier import best_first, frontier
from autofit.answers.tune.help import what_may_help
from autofit.answers.tune.parallels import parallels
from autofit.answers.tune.script_lines import call_lines, script_lines
from autofit.answers.tune.speed import measured_speed, predicted_speed
from autofit.answers.words.commands import fitting_commands
from autofit.answers.words.numbers import exact
from autofit.answers.words.phrases import assumptions
from autofit.answers.words.run import growth_in_words
from autofit.hardware.budget import outside_allocator
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.words import configuration, with_setting
from autofit.tuning.found import Best, FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from autofit_workers.spec.protocol import Evidence
from autofit_workers.spec.setup import TRAIN, WORST, Parallel


def tune_sections(
    result: TuneResult,
    settings: TuneSettings,
    *,
    asked_memory: str | None = None,
    asked: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Iterator[Section]:
    """Yields the sections of a search's result: budget, largest batches, the answer, reasons, and its use.

    Args:
        settings: settings of the search.
        asked_memory: value of `--gpu-mem` as it was typed; None if it was not given.
        asked: typed options, from parameter name to value, to repeat in commands that the answer suggests.
        notes: further notes, shown after those of the result.
    """
    chosen = result.chosen
    yield from _budget(result, settings, asked_memory)
    yield from parallels(result) if result.parallels else frontier(result)
    yield _answer(result, chosen)
    if chosen is None and result.stopped_by is None:
        yield _help(result, settings, asked or {})
    estimate = result.estimate_of_chosen if chosen is not None else result.estimate
    if estimate is not None and (chosen is not None or result.stopped_by is None):
        yield from memory_sections(estimate, configuration_of(result))
    yield from lengths(result)
    yield from pruned(result)
    yield from conv_plan(result)
    yield from measured_speed(result)
    yield from predicted_speed(result)
    yield from _why_not_larger(result)
    yield from risks(result)
    yield from _cards(result)
    if said := (*result.budget.assumptions, *_calibration(result), *result.notes, *notes):
        yield Section(name="notes", title="Assumed and noted", blocks=(Bullets(tuple(dict.fromkeys(said))),))
    if chosen is not None:
        yield _apply(result, chosen, settings)
    yield _record(result)


def configuration_of(result: TuneResult) -> str:
    """Phrase for titles that names the recommended configuration: `at batch 70 with cudnn`.

    If nothing fits, it names the smallest batch that was predicted; empty without a prediction. For a script,
    the batch size is the value that the script is called with.
    """
    if result.detailed is None:
        return ""
    knobs, batch_size = result.detailed
    return f"at batch {batch_size}{with_setting(result.setting_name(knobs))}"


def _budget(result: TuneResult, settings: TuneSettings, asked_memory: str | None) -> Iterator[Section]:
    """Yields the section with a search's heading and its memory budget."""
    budget = result.budget
    setup = settings.setup
    mode, kind = setup.mode, WORST if setup.is_worst_case else None
    if result.estimate is not None:
        mode, kind = result.estimate.mode, result.estimate.batch_kind
    setting = configuration(
        result.frontier[0].knobs if result.frontier else settings.knobs,
        mode,
        kind,
        result.parallel,
        rank=setup.rank or 0,
        searched=result.searched,
        of_script=settings.script is not None,
    )
    text = f"{result.workload} · {setting}"
    yield Section(name="configuration", blocks=(Paragraph(text, "strong", (result.workload,)),))
    total = f"{_memory_of(result, settings, asked_memory)} = {exact(budget.device_total_bytes)}"
    percent = f"{(settings.margin * 100).normalize():f}%"
    exchanges = bool(Parallel.named(result.parallel).mesh)
    outside = outside_allocator(next(iter(result.architectures), None), exchanges=exchanges)
    user = "the process" if result.device.kind == "cpu" else "PyTorch's allocator"
    kept_free = (
        (budget.context_bytes, f"{outside}, assumed"),
        (budget.other_bytes, "reserve for other processes"),
        (budget.margin_bytes, f"margin of {percent}"),
    )
    rows = (
        row("", format_bytes(budget.device_total_bytes), total),
        *(row("−", format_bytes(num_bytes), what) for num_bytes, what in kept_free if num_bytes),
        row(
            "=",
            strong(format_bytes(budget.usable_bytes)),
            f"usable by {user} = {exact(budget.usable_bytes)}",
        ),
    )
    yield Section(name="budget", title="The budget", blocks=(grid("<><", rows),), is_leading=True)


def _memory_of(result: TuneResult, settings: TuneSettings, asked_memory: str | None) -> str:
    """Text on how the device's total memory is known: `--gpu t4, …`, `--gpu-mem 16G`, or the device's name.

    Args:
        asked_memory: value of `--gpu-mem` as it was typed; None if it was not given.
    """
    if settings.gpu is not None:
        return f"--gpu {settings.gpu.key}, {settings.gpu.name}"
    if settings.gpu_mem_bytes is not None:
        return "--gpu-mem" if asked_memory is None else f"--gpu-mem {asked_memory}"
    return result.device.name


def _answer(result: TuneResult, chosen: Best | None) -> Section:
    first, *others = answer_in_words(result)
    if chosen is None:
        said = Paragraph(first, "bad", ("Nothing fits", "Nothing is known to fit"))
    else:
        setting = with_setting(result.setting_names[chosen.knobs]).strip()
        said = Paragraph(first, "good", (f"batch {chosen.batch_size}", setting))
    return Section(name="answer", blocks=(said, *map(Paragraph, others)))


def _help(result: TuneResult, settings: TuneSettings, asked: Mapping[str, Any]) -> Section:
    commands = fitting_commands(result.advice, "tune", asked)
    blocks = (Bullets(what_may_help(result, settings)), *((Code(commands),) if commands else ()))
    return Section(name="help", title="What may help", blocks=blocks)


def _calibration(result: TuneResult) -> tuple[str, ...]:
    """Notes on what the interval of a predicted peak covers, and on which real runs it is based.

    Empty if the answer was measured, or if there is no prediction.
    """
    is_predicted = result.chosen is None or result.chosen.evidence is Evidence.PREDICTED
    estimate = result.estimate_of_chosen
    if estimate is None or not is_predicted:
        return ()
    is_timed = any(entry.relative_sample_time is not None for entry in result.frontier)
    return (
        *assumptions(estimate),
        *((growth_in_words(estimate.growth, estimate.seen),) if estimate.growth else ()),
        *((estimate.step_time_note,) if is_timed else ()),
    )


# ── the reasons ─────────────────────────────────────────────────────────────────────────────────


def _why_not_larger(result: TuneResult) -> Iterator[Section]:
    """Yields a section with the reason why each knob setting's next larger batch does not fit."""
    if not result.frontier:
        return
    title = "Why nothing fits" if result.stopped_by is None else "What is known"
    if result.best is not None:
        title = "Why not one larger"
    names = result.setting_names
    names_by_reason: dict[str, list[str]] = {}
    for entry in best_first(result):
        names_by_reason.setdefault(_why(entry), []).append(names[entry.knobs])
    reasons = grid("<<", (("\n".join(alike), why) for why, alike in names_by_reason.items()))
    thrashing = Paragraph(
        "Thrashing: the allocator empties its cache and tries again, which is slow.", "quiet"
    )
    thrashes = any(entry.largest_thrashing_batch is not None for entry in result.frontier)
    yield Section(name="why", title=title, blocks=(reasons, *((thrashing,) if thrashes else ())))


def _why(entry: FrontierEntry) -> str:
    first, last = entry.first_failing_batch, entry.largest_thrashing_batch
    if last is None:
        return f"{entry.reason}."
    sizes = f"{last}" if last == first else f"{first} to {last}"
    return f"{entry.reason}. Batch {sizes} would still run, but thrash."


def _cards(result: TuneResult) -> Iterator[Section]:
    """Yields a section with the largest batch on each card that is sold with the memory of `--gpu-mem`."""
    if not result.cards or result.best is None:
        return
    setting = with_setting(result.setting_names[result.best.knobs])
    groups = (
        (batch, list(cards))
        for batch, cards in itertools.groupby(result.cards, key=lambda card: card.largest_batch)
    )
    rows = (
        (
            "none" if batch is None else str(batch),
            _range(cards[0].total_bytes, cards[-1].total_bytes),
            ", ".join(card.gpu for card in cards),
        )
        for batch, cards in groups
    )
    total = format_bytes(result.budget.device_total_bytes)
    yield Section(
        name="cards",
        title=f"The same on cards sold with about {total}{setting and ','}{setting}",
        blocks=(table((right("batch"), left("CUDA reports"), left("cards")), rows),),
    )


def _range(low_bytes: int, high_bytes: int) -> str:
    low, high = format_bytes(low_bytes), format_bytes(high_bytes)
    return low if low == high else f"{low.removesuffix(' GiB')} – {high}"


# ── how to go on ────────────────────────────────────────────────────────────────────────────────


def _apply(result: TuneResult, chosen: Best, settings: TuneSettings) -> Section:
    """Section with code to run the recommended configuration in the user's script."""
    training = result.estimate is None or result.estimate.mode in (None, TRAIN)
    lines = (
        call_lines(settings, chosen)
        if settings.script is not None
        else script_lines(
            chosen.knobs,
            batch_size=chosen.batch_size,
            device_kind=result.device.kind,
            training=training,
            parallel=Parallel.named(result.parallel),
            torch_release=result.versions.get("torch_followed"),
        )
    )
    title = "In your training script" if training else "In your script"
    return Section(name="apply", title=title, blocks=(Code(tuple(lines)),))


def _record(result: TuneResult) -> Section:
    """Section on a search's duration, study and versions, and on how to repeat or continue it."""
    versions = f"autofit {result.versions.get('autofit', '?')}, torch {result.versions.get('torch', '?')}"
    if (followed := result.versions.get("torch_followed")) is not None:
        versions += f", predicting {followed}"
    trials = "1 trial" if len(result.trials) == 1 else f"{len(result.trials)} trials"
    again = "answers from the study" if result.stopped_by is None else "continues the study"
    last = f"The same command {again}; --fresh starts over."
    if result.cached:
        when = f"{dt.datetime.fromtimestamp(result.answered_seconds, dt.timezone.utc):%Y-%m-%d %H:%M} UTC"
        last = f"Answer of {when}: nothing was run. --fresh runs it again."
    return Section(
        name="record",
        blocks=(
            Paragraph(f"{result.wall_seconds:.1f} s, {trials} in the study · {versions}", "quiet"),
            Paragraph(f"study {result.study}", "quiet", is_whole=True),
            Paragraph(last, "quiet"),
        ),
    )
