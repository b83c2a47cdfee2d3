"""Sections of the text of a search's answer: lengths, measured and predicted speed, risks, plan."""

from __future__ import annotations

import itertools

from rich.console import Console

from autofit.cli.text.output import by_setting, headed, heading, indented
from autofit.predict.convolutions.plan import LayerChoice
from autofit.report.words import rate, seconds_in_words, slower_in_words, span_of_seconds
from autofit.settings.goals import Risk
from autofit.settings.words import joined, with_setting
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes

# What happens where a size needs more than is likely: if it still runs with the smallest plans, and if
# it does not. `try_configs` of ATen's Conv_v8.cpp goes on to the next plan when a workspace cannot be
# had; benchmark mode, in `generate_and_filter_plans`, first makes the allocator release its cache.
_CUDNN = (
    "cuDNN falls back to a smaller, slower plan instead of failing",
    "cuDNN falls back to smaller, slower plans, and may still run out of memory",
)
_BEYOND = {
    "cudnn": _CUDNN,
    "cudnn-deterministic": _CUDNN,
    "cudnn-capped": _CUDNN,
    "cudnn-benchmark": (
        "benchmark mode does not fall back quietly: it would thrash",
        "benchmark mode does not fall back quietly: it would thrash or run out of memory",
    ),
}
_NO_PLANS = (
    "there is no smaller plan: it would thrash",
    "there is no smaller plan: it would run out of memory",
)
_NO_CONVOLUTIONS = ("it would thrash", "it would run out of memory")


def print_lengths(console: Console, result: TuneResult) -> None:
    """Prints the batch lengths of the user's data, and when in an epoch a batch would not fit."""
    found = result.lengths
    if found is None:
        return
    heading(
        console,
        f"{found.num_samples:,} samples, {found.batching}: {found.median_length:,} tokens in the median, "
        f"{found.longest:,} at most",
    )
    table = headed(
        ("batch", "right"),
        ("padded to,\non average", "right"),
        ("fits up\nto", "right"),
        ("samples\ntoo long", "right"),
        ("epochs that\nrun out", "right"),
        ("in half of\nthem by batch", "right"),
    )
    for row in found.by_batch:
        table.add_row(
            f"{row.batch_size:,}",
            f"{row.typical_length:,}",
            "–" if row.longest_fitting is None else f"{row.longest_fitting:,}",
            f"{row.num_too_long:,}",
            _percent(row.probability),
            "–" if row.median_batch is None else f"{row.median_batch:,} of {row.num_batches:,}",
        )
    console.print(indented(table))
    if found.capped_batch is not None:
        console.print(
            f"  Cut to {found.cap_length:,} tokens, which 99% of the samples keep to, batch "
            f"{found.capped_batch:,} always fits."
        )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.2%}"


def print_measured(console: Console, result: TuneResult) -> None:
    """Prints the measured speed of every setting at its largest batch, and the throughput knee.

    Prints nothing where no setting was timed.
    """
    timed = [entry for entry in result.frontier if entry.samples_per_second is not None]
    if not timed:
        return
    names = result.setting_names
    heading(console, "As measured at the largest batch")
    is_predicted = any(entry.predicted_bytes is not None for entry in timed)
    table = by_setting(
        result,
        ("\nbatch", "right"),
        ("\nstep", "right"),
        ("samples\na second", "right"),
        *((("peak\npredicted", "right"), ("prediction\noff by", "right")) if is_predicted else ()),
    )
    for entry in sorted(timed, key=lambda entry: -(entry.largest_batch or 0)):
        table.add_row(
            names[entry.knobs],
            str(entry.largest_batch),
            seconds_in_words(entry.step_seconds or 0),
            rate(entry.samples_per_second or 0),
            *(_prediction(entry) if is_predicted else ()),
        )
    console.print(indented(table))
    _print_knee(console, result)
    if any(entry.step_time_error is not None for entry in timed):
        errors = [abs(entry.step_time_error) for entry in timed if entry.step_time_error is not None]
        console.print(f"  Predicted step times were off by {100 * max(errors):.0f}% at most.")


def print_predicted(console: Console, result: TuneResult) -> None:
    """Prints knob settings' predicted speeds or speed order at their largest batches, if none was timed."""
    if any(entry.samples_per_second is not None for entry in result.frontier):
        return
    timed = [entry for entry in result.frontier if entry.relative_sample_time is not None]
    stated = [entry for entry in timed if entry.predicted_step_seconds is not None]
    if not stated and len(timed) < 2:
        return
    names = result.setting_names
    heading(console, "Speed at the largest batch, predicted" if stated else "Which is faster, predicted")
    columns = (("\nstep (95 %)", "right"), ("samples\na second", "right")) if stated else ()
    table = by_setting(result, ("\nbatch", "right"), *columns, ("\nspeed", "left"), is_folded=True)
    rows: dict[tuple[str, ...], list[str]] = {}
    for entry in sorted(timed, key=lambda entry: entry.relative_sample_time or 0.0):
        cells = [str(entry.largest_batch)]
        seconds, per_second = entry.predicted_step_seconds, entry.predicted_samples_per_second
        if stated:
            cells.append("–" if seconds is None else span_of_seconds(seconds))
            cells.append("–" if per_second is None else rate(per_second))
        cells.append(slower_in_words(entry.relative_sample_time or 1.0))
        rows.setdefault(tuple(cells), []).append(names[entry.knobs])
    for cells_of_row, alike in rows.items():
        table.add_row(joined(alike), *cells_of_row)
    console.print(indented(table))
    _print_knee(console, result)


def _print_knee(console: Console, result: TuneResult) -> None:
    knee = result.knee
    if knee is None:
        return
    how = "predicted" if knee.is_predicted else "measured"
    console.print(
        f"  Throughput knee: batch {knee.batch_size}{with_setting(result.setting_names[knee.knobs])}, the "
        f"smallest {how} within 5% of the best rate: {rate(knee.samples_per_second)} samples a second, "
        f"{100 * knee.samples_per_second / knee.best_samples_per_second:.0f}% of it."
    )


def _prediction(entry: FrontierEntry) -> tuple[str, str]:
    """Texts of an entry's predicted peak, and of its error in percent of the measured peak; else dashes."""
    if entry.predicted_bytes is None or entry.prediction_error is None:
        return "–", "–"
    return format_bytes(entry.predicted_bytes), f"{100 * entry.prediction_error:+.1f}%"


def print_risks(console: Console, result: TuneResult) -> None:
    """Prints the largest batch at every risk, if these differ, and what happens between safe and likely."""
    entries = [entry for entry in result.frontier if len(set((entry.largest_by_risk or {}).values())) > 1]
    if not entries:
        return
    names = result.setting_names
    heading(console, "At every --risk")
    table = by_setting(
        result,
        *((f"\n{risk}", "right") for risk in Risk),
        ("if it needs more\nthan is likely", "left"),
        is_folded=True,
    )
    rows: dict[tuple[str, ...], list[str]] = {}
    for entry in sorted(entries, key=lambda entry: -(entry.largest_batch or 0)):
        assert entry.largest_by_risk is not None
        batches = (entry.largest_by_risk[risk] for risk in Risk)
        said = ("none" if batch is None else str(batch) for batch in batches)
        rows.setdefault((*said, _between(entry, convolves=result.convolves)), []).append(names[entry.knobs])
    for cells, alike in rows.items():
        table.add_row(joined(alike), *cells)
    console.print(indented(table))


def _between(entry: FrontierEntry, *, convolves: bool) -> str:
    assert entry.largest_by_risk is not None
    safe, likely = entry.largest_by_risk[Risk.SAFE] or 0, entry.largest_by_risk[Risk.LIKELY] or 0
    if likely <= safe:
        return ""
    is_next = likely == safe + 1 or entry.knobs.global_batch is not None
    sizes = f"at {likely}" if is_next else f"from {safe + 1} to {likely}"
    family = entry.knobs.conv_algo.partition(":")[0]
    still_runs, fails = _BEYOND.get(family, _NO_PLANS) if convolves else _NO_CONVOLUTIONS
    return f"{sizes} {still_runs if entry.likely_still_runs else fails}"


def print_pruned(console: Console, result: TuneResult) -> None:
    """Prints the meaning of the frontier's marks, and the knob settings whose search was cut short."""
    if not result.is_of_product:
        return
    if not result.parallels:  # whose table has no marks
        if any(entry.samples_per_second is not None for entry in result.frontier):
            by = "measured samples a second"
        elif any(entry.predicted_samples_per_second is not None for entry in result.frontier):
            by = "predicted samples a second"
        else:
            by = "what its settings usually cost, as no step times are given"
        console.print()
        console.print(f"◆ on the Pareto front: no setting fits as much and is faster, judged by {by}.")
    if not result.pruned:
        return
    names = result.setting_names
    heading(console, "Search cut short: another setting fits at least as much and is usually no slower")
    table = headed(
        ("setting", "left"),
        ("at most", "right"),
        ("known by", "left"),
        ("fits as much", "left"),
        has_long_names=True,
    )
    for setting in result.pruned:
        at_most = "none" if not setting.at_most else str(setting.at_most)
        failing = setting.failing_batch
        how = "prediction" if failing is None else f"batch {failing}, which failed"
        table.add_row(names[setting.knobs], at_most, how, names[setting.faster])
    console.print(indented(table))


def print_plan(console: Console, result: TuneResult) -> None:
    """Prints the convolution algorithm of each layer, if the answer has a convolution plan."""
    plan = result.conv_plan
    if plan is None:
        return
    heading(console, f"The algorithm of each layer at batch {plan.batch_size}")
    table = headed(("layers", "left"), ("algorithm", "left"), ("workspace up to", "right"), ("time", "right"))
    for algorithm, grouped in itertools.groupby(plan.layers, key=lambda choice: choice.algorithm):
        choices = list(grouped)
        table.add_row(
            _span(choices),
            algorithm,
            format_bytes(max(choice.workspace_bytes for choice in choices)),
            f"{sum(choice.cost for choice in choices):.1%}",
        )
    console.print(indented(table))
    console.print(
        "  Predicted: all convolutions together take "
        f"{plan.relative_cost:.2f} of the time they take with the backend's own choice."
    )


def _span(choices: list[LayerChoice]) -> str:
    first, last = choices[0].layer or "(the model)", choices[-1].layer
    return first if len(choices) == 1 else f"{first} … {last} ({len(choices)})"
