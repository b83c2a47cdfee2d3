"""The text of a search's answer."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from autofit.cli.text import output
from autofit.cli.text.advice import print_fitting, what_may_help
from autofit.cli.text.output import bullets, code, exact, grid, headed, heading, indented, styled
from autofit.cli.text.script_lines import call_lines, script_lines
from autofit.cli.text.tune_parallels import print_parallels
from autofit.cli.text.tune_sections import (
    print_lengths,
    print_measured,
    print_plan,
    print_predicted,
    print_pruned,
    print_risks,
)
from autofit.hardware.budget import outside_allocator
from autofit.report.answer import answer_in_words
from autofit.report.words import assumptions
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.words import configuration, joined, with_setting
from autofit.tuning.found import Best, FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, Verdict
from autofit_workers.spec.setup import TRAIN, WORST, Parallel


def print_result(
    result: TuneResult,
    settings: TuneSettings,
    *,
    asked_memory: str | None,
    asked: Mapping[str, Any] | None = None,
) -> None:
    """Prints the answer of a search: its budget, frontier, best batch, reasons, and how to apply it.

    Args:
        asked_memory: `--gpu-mem` as it was typed, where it was.
        asked: all options as they were typed, for a command that tells what to change.
    """
    console = output.stdout()
    _budget(console, result, settings, asked_memory)
    if result.parallels:
        print_parallels(console, result)
    else:
        _frontier(console, result)
    chosen, estimate = result.chosen, result.estimate_of_chosen
    if chosen is None:
        _nothing_fits(console, result, settings, asked or {})
    else:
        _answer(console, result, chosen)
        if estimate is not None:
            at = f"{chosen.batch_size}{with_setting(result.setting_names[chosen.knobs])}"
            heading(console, f"Where the memory goes at batch {at}, predicted")
            output.print_memory(console, estimate)
    print_lengths(console, result)
    print_pruned(console, result)
    print_plan(console, result)
    print_measured(console, result)
    print_predicted(console, result)
    _why_not_larger(console, result)
    print_risks(console, result)
    if result.best is not None:
        _cards(console, result, result.best)
    if said := (*result.budget.assumptions, *_calibration(result), *result.notes):
        heading(console, "Assumed and noted")
        bullets(console, said)
    if chosen is not None:
        _apply(console, result, chosen, settings)
    _record(console, result)


# ── what was understood ─────────────────────────────────────────────────────────────────────────


def _budget(console: Console, result: TuneResult, settings: TuneSettings, asked_memory: str | None) -> None:
    budget = result.budget
    setup = settings.setup
    mode, kind = setup.mode, WORST if setup.is_worst_case else None
    if result.estimate is not None:
        mode, kind = result.estimate.mode, result.estimate.batch_kind
    knobs = result.frontier[0].knobs if result.frontier else settings.knobs
    setting = configuration(
        knobs,
        mode,
        kind,
        result.parallel,
        rank=setup.rank or 0,
        searched=result.searched,
        of_script=settings.script is not None,
    )
    console.print(Text.assemble((result.workload, "bold"), f" · {setting}"))
    console.print()
    table = grid("left", "right", "left")
    total = f"{_memory_of(result, settings, asked_memory)} = {exact(budget.device_total_bytes)}"
    table.add_row("", format_bytes(budget.device_total_bytes), total)
    percent = f"{(settings.margin * 100).normalize():f}%"
    exchanges = bool(Parallel.named(result.parallel).mesh)
    outside = outside_allocator(next(iter(result.architectures), None), exchanges=exchanges)
    for num_bytes, what in (
        (
            budget.context_bytes,
            f"{outside}, assumed",
        ),
        (budget.other_bytes, "reserve for other processes"),
        (budget.margin_bytes, f"margin of {percent}"),
    ):
        if num_bytes:
            table.add_row("−", format_bytes(num_bytes), what)
    user = "the process" if result.device.kind == "cpu" else "PyTorch's allocator"
    usable = styled(format_bytes(budget.usable_bytes), "bold")
    table.add_row("=", usable, f"usable by {user} = {exact(budget.usable_bytes)}")
    console.print(indented(table))


def _memory_of(result: TuneResult, settings: TuneSettings, asked_memory: str | None) -> str:
    """Text on where the device's total memory comes from: an option, or the device by name."""
    if settings.gpu is not None:
        return f"--gpu {settings.gpu.key}, {settings.gpu.name}"
    if settings.gpu_mem_bytes is not None:
        return "--gpu-mem" if asked_memory is None else f"--gpu-mem {asked_memory}"
    return result.device.name


# ── the frontier ────────────────────────────────────────────────────────────────────────────────


def _frontier(console: Console, result: TuneResult) -> None:
    if not result.frontier:
        return
    held = {entry.knobs: _held_bytes(result, entry) for entry in result.frontier}
    unit, unit_bytes = _unit(bytes_ for bytes_ in held.values() if bytes_ is not None)
    columns: dict[str, dict[Knobs, int | None]] = {}
    if result.device.kind == "cpu":
        columns["resident"] = {entry.knobs: entry.device_peak_bytes for entry in result.frontier}
        if columns["resident"] != held:
            columns["private"] = held  # what the kernel limits: pages that were never written to count too
    else:
        columns["reserved"] = {entry.knobs: entry.peak_reserved_bytes for entry in result.frontier}
        if columns["reserved"] != held:
            columns["up to"] = held
        columns["device"] = {entry.knobs: entry.device_peak_bytes for entry in result.frontier}
    names = result.setting_names
    table = output.by_setting(
        result,
        ("max\nbatch", "right"),
        *((f"{name}\n{unit}", "right") for name in columns),
        ("of\nbudget", "right"),
        ("fails\nat", "right"),
        *((("Pareto\nfront", "left"),) if result.is_of_product else ()),
        ("\nevidence", "left"),
        is_folded=True,
    )
    for alike in _folded(result):
        entry = alike[0]
        peaks = [_largest_of(column[each.knobs] for each in alike) for column in columns.values()]
        held_bytes = _largest_of(held[each.knobs] for each in alike)
        is_chosen = result.chosen is not None and result.chosen.knobs in [each.knobs for each in alike]
        table.add_row(
            joined(names[each.knobs] for each in alike),
            "none" if entry.largest_batch is None else str(entry.largest_batch),
            *("–" if peak is None else f"{peak / unit_bytes:.2f}" for peak in peaks),
            "–" if held_bytes is None else output.share(held_bytes, result.budget.usable_bytes),
            "–" if entry.first_failing_batch is None else str(entry.first_failing_batch),
            *((_on_front(entry),) if result.is_of_product else ()),
            entry.evidence,
            style="bold" if is_chosen else "",
        )
    console.print()
    console.print(indented(table))


def _folded(result: TuneResult) -> list[list[FrontierEntry]]:
    """Frontier entries by table row: those with one boundary share a row, unless they were timed.

    Entries that differ in evidence, or in being on the Pareto front, do not share one either.
    """
    rows: dict[Any, list[FrontierEntry]] = {}
    for entry in _best_first(result):
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
    """Peak bytes, compared with the budget, of an entry's largest batch; None without a fitting trial."""
    peaks = [
        trial.budgeted_bytes
        for trial in result.trials
        if (trial.knobs, trial.batch_size) == (entry.knobs, entry.largest_batch)
        and trial.verdict is Verdict.FITS
    ]
    return peaks[-1] if peaks else None


def _unit(sizes: Iterable[int]) -> tuple[str, int]:
    """Unit for all sizes of a table, GiB or MiB, and its number of bytes."""
    return ("GiB", 1024**3) if max(sizes, default=1024**3) >= 1000 * 1024**2 else ("MiB", 1024**2)


# ── the answer ──────────────────────────────────────────────────────────────────────────────────


def _answer(console: Console, result: TuneResult, chosen: Best) -> None:
    found, *more = map(Text, answer_in_words(result))
    found.highlight_words(
        [f"batch {chosen.batch_size}", with_setting(result.setting_names[chosen.knobs]).strip()], "bold green"
    )
    console.print()
    for sentence in (found, *more):
        console.print(sentence)


def _calibration(result: TuneResult) -> tuple[str, ...]:
    """Sentences on the coverage and basis of a predicted answer's interval; empty for a measured answer."""
    is_predicted = result.chosen is None or result.chosen.evidence is Evidence.PREDICTED
    estimate = result.estimate_of_chosen
    if estimate is None or not is_predicted:
        return ()
    is_timed = any(entry.relative_sample_time is not None for entry in result.frontier)
    return (*assumptions(estimate), *((estimate.step_time_note,) if is_timed else ()))


def _nothing_fits(
    console: Console, result: TuneResult, settings: TuneSettings, asked: Mapping[str, Any]
) -> None:
    said, *more = map(Text, answer_in_words(result))
    said.highlight_words(["Nothing fits", "Nothing is known to fit"], "bold red")
    console.print()
    for sentence in (said, *more):
        console.print(sentence)
    if result.stopped_by is not None:
        return
    heading(console, "What may help")
    bullets(console, what_may_help(result, settings))
    if result.advice is not None:
        print_fitting(console, result.advice, "tune", asked)
    if result.estimate is not None:
        at = f"{result.estimate.batch_size}{with_setting(result.setting_name(result.estimate.knobs))}"
        heading(console, f"Where the memory goes at batch {at}, predicted")
        output.print_memory(console, result.estimate)


# ── the reasons ─────────────────────────────────────────────────────────────────────────────────


def _why_not_larger(console: Console, result: TuneResult) -> None:
    if not result.frontier:
        return
    if result.best is not None:
        heading(console, "Why not one larger")
    else:
        heading(console, "Why nothing fits" if result.stopped_by is None else "What is known")
    names = result.setting_names
    names_by_reason: dict[str, list[str]] = {}
    for entry in _best_first(result):
        names_by_reason.setdefault(_why(entry), []).append(names[entry.knobs])
    table = grid("left", "left")
    for why, alike in names_by_reason.items():
        table.add_row("\n".join(alike), why)
    console.print(indented(table))
    if any(entry.largest_thrashing_batch is not None for entry in result.frontier):
        console.print(
            indented(
                styled("Thrashing: the allocator empties its cache and tries again, which is slow.", "dim")
            )
        )


def _best_first(result: TuneResult) -> list[FrontierEntry]:
    return sorted(result.frontier, key=lambda entry: -(entry.largest_batch or 0))


def _why(entry: FrontierEntry) -> str:
    first, last = entry.first_failing_batch, entry.largest_thrashing_batch
    if last is None:
        return f"{entry.reason}."
    sizes = f"{last}" if last == first else f"{first} to {last}"
    return f"{entry.reason}. Batch {sizes} would still run, but thrash."


def _cards(console: Console, result: TuneResult, best: Best) -> None:
    if not result.cards:
        return
    total = format_bytes(result.budget.device_total_bytes)
    setting = with_setting(result.setting_names[best.knobs])
    heading(console, f"The same on cards sold with about {total}{setting and ','}{setting}")
    table = headed(("batch", "right"), ("CUDA reports", "left"), ("cards", "left"))
    for batch, cards in itertools.groupby(result.cards, key=lambda card: card.largest_batch):
        group = list(cards)
        table.add_row(
            "none" if batch is None else str(batch),
            _range(group[0].total_bytes, group[-1].total_bytes),
            ", ".join(card.gpu for card in group),
        )
    console.print(indented(table))


def _range(low_bytes: int, high_bytes: int) -> str:
    low, high = format_bytes(low_bytes), format_bytes(high_bytes)
    return low if low == high else f"{low.removesuffix(' GiB')} – {high}"


# ── how to go on ────────────────────────────────────────────────────────────────────────────────


def _apply(console: Console, result: TuneResult, chosen: Best, settings: TuneSettings) -> None:
    training = _mode(result) in (None, TRAIN)
    heading(console, "In your training script" if training else "In your script")
    if settings.script is not None:
        code(console, call_lines(settings, chosen))
        return
    lines = script_lines(
        chosen.knobs,
        batch_size=chosen.batch_size,
        device_kind=result.device.kind,
        training=training,
        parallel=Parallel.named(result.parallel),
    )
    code(console, lines)


def _mode(result: TuneResult) -> str | None:
    return None if result.estimate is None else result.estimate.mode


def _record(console: Console, result: TuneResult) -> None:
    versions = f"autofit {result.versions.get('autofit', '?')}, torch {result.versions.get('torch', '?')}"
    trials = "1 trial" if len(result.trials) == 1 else f"{len(result.trials)} trials"
    console.print()
    console.print(styled(f"{result.wall_seconds:.1f} s, {trials} in the study · {versions}", "dim"))
    console.print(styled(f"study {result.study}", "dim"), soft_wrap=True)
    if result.cached:
        when = f"{dt.datetime.fromtimestamp(result.answered_seconds, dt.UTC):%Y-%m-%d %H:%M} UTC"
        console.print(styled(f"Answer of {when}: nothing was run. --fresh runs it again.", "dim"))
        return
    again = "answers from the study" if result.stopped_by is None else "continues the study"
    console.print(styled(f"The same command {again}; --fresh starts over.", "dim"))
