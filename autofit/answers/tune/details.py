"""Lays out details of a search's result: sample lengths, risks, pruned knob settings, convolution plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from autofit.answers.section import Paragraph, Section, left, right, table
from autofit.answers.tune.frontier import best_first, setting_column
from autofit.predict.convolutions.plan import LayerChoice
from autofit.settings.goals import Risk
from autofit.settings.words import joined
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes

# Consequences if a batch needs more memory than likely: if it still runs with the smallest plans, and if
# not. `try_configs` of ATen's Conv_v8.cpp tries the next plan if a workspace cannot be allocated; benchmark
# mode, in `generate_and_filter_plans`, first makes the allocator release its cache.
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


def lengths(result: TuneResult) -> Iterator[Section]:
    """Yields a table on data of different lengths: for each batch size, which lengths fit and which fail.

    It also says in what share of the epochs a batch is too long, and when. Yields nothing if the user gave no
    lengths.
    """
    found = result.lengths
    if found is None:
        return
    shown = table(
        (
            right("batch"),
            right("padded to,\non average"),
            right("fits up\nto"),
            right("samples\ntoo long"),
            right("epochs that\nrun out"),
            right("in half of\nthem by batch"),
        ),
        (
            (
                f"{each.batch_size:,}",
                f"{each.typical_length:,}",
                "–" if each.longest_fitting is None else f"{each.longest_fitting:,}",
                f"{each.num_too_long:,}",
                _percent(each.probability),
                "–" if each.median_batch is None else f"{each.median_batch:,} of {each.num_batches:,}",
            )
            for each in found.by_batch
        ),
    )
    capped = Paragraph(
        f"Cut to {found.cap_length:,} tokens, which 99% of the samples keep to, batch {found.capped_batch:,} "
        "always fits."
        if found.capped_batch is not None
        else ""
    )
    yield Section(
        name="lengths",
        title=f"{found.num_samples:,} samples, {found.batching}: "
        f"{found.median_length:,} tokens in the median, "
        f"{found.longest:,} at most",
        blocks=(shown, *((capped,) if capped.text else ())),
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.2%}"


def risks(result: TuneResult) -> Iterator[Section]:
    """Yields a table of the largest batch of each knob setting (precision, …) at each `--risk`.

    A risk says which level of the predicted peak has to fit, such as the likely one or the high end. A last
    column says what happens if a batch above the safe one needs more memory than is likely. Knob settings
    with the same batch at every risk are left out; yields nothing if all are.
    """
    names, rows = result.setting_names, dict[tuple[str, ...], list[str]]()
    for entry in best_first(result):
        by_risk = entry.largest_by_risk
        if by_risk is None or len(set(by_risk.values())) <= 1:
            continue
        batches = ("none" if by_risk[risk] is None else str(by_risk[risk]) for risk in Risk)
        between = _between(entry, by_risk, convolves=result.convolves)
        rows.setdefault((*batches, between), []).append(names[entry.knobs])
    if not rows:
        return
    shown = table(
        (
            setting_column(result),
            *(right(f"\n{risk}") for risk in Risk),
            left("if it needs more\nthan is likely"),
        ),
        ((joined(alike), *cells) for cells, alike in rows.items()),
        has_long_names=True,
    )
    yield Section(name="risks", title="At every --risk", blocks=(shown,))


def _between(entry: FrontierEntry, by_risk: Mapping[Risk, int | None], *, convolves: bool) -> str:
    safe, likely = by_risk[Risk.SAFE] or 0, by_risk[Risk.LIKELY] or 0
    if likely <= safe:
        return ""
    is_next = likely == safe + 1 or entry.knobs.global_batch is not None
    sizes = f"at {likely}" if is_next else f"from {safe + 1} to {likely}"
    family = entry.knobs.conv_algo.partition(":")[0]
    still_runs, fails = _BEYOND.get(family, _NO_PLANS) if convolves else _NO_CONVOLUTIONS
    return f"{sizes} {still_runs if entry.likely_still_runs else fails}"


def pruned(result: TuneResult) -> Iterator[Section]:
    """Yields a section on the mark ◆ of the Pareto front, and one on knob settings not searched to the end.

    A knob setting is a value for each knob: precision, optimizer, …. Its search is cut short if another
    setting fits as much and is usually no slower.
    """
    if not result.is_of_product:
        return
    if not result.parallels:  # the table of several kinds of parallelism has no marks
        if any(entry.samples_per_second is not None for entry in result.frontier):
            by = "measured samples a second"
        elif any(entry.predicted_samples_per_second is not None for entry in result.frontier):
            by = "predicted samples a second"
        else:
            by = "what its settings usually cost, as no step times are given"
        said = f"◆ on the Pareto front: no setting fits as much and is faster, judged by {by}."
        yield Section(name="front", blocks=(Paragraph(said),))
    if not result.pruned:
        return
    names = result.setting_names
    shown = table(
        (left("setting"), right("at most"), left("known by"), left("fits as much")),
        (
            (
                names[each.knobs],
                str(each.at_most or "none"),
                "prediction" if each.failing_batch is None else f"batch {each.failing_batch}, which failed",
                names[each.faster],
            )
            for each in result.pruned
        ),
        has_long_names=True,
    )
    title = "Search cut short: another setting fits at least as much and is usually no slower"
    yield Section(name="pruned", title=title, blocks=(shown,))


def conv_plan(result: TuneResult) -> Iterator[Section]:
    """Yields a table of the convolution algorithms of the layers, if the answer chose one for each layer."""
    plan = result.conv_plan
    if plan is None:
        return
    groups = (
        (algorithm, list(choices))
        for algorithm, choices in itertools.groupby(plan.layers, key=lambda choice: choice.algorithm)
    )
    shown = table(
        (left("layers"), left("algorithm"), right("workspace up to"), right("time")),
        (
            (
                _span(choices),
                algorithm,
                format_bytes(max(choice.workspace_bytes for choice in choices)),
                f"{sum(choice.cost for choice in choices):.1%}",
            )
            for algorithm, choices in groups
        ),
    )
    said = (
        f"Predicted: all convolutions together take {plan.relative_cost:.2f} of the time they take with the "
        "backend's own choice."
    )
    yield Section(
        name="plan",
        title=f"The algorithm of each layer at batch {plan.batch_size}",
        blocks=(shown, Paragraph(said)),
    )


def _span(choices: list[LayerChoice]) -> str:
    first, last = choices[0].layer or "(the model)", choices[-1].layer
    return first if len(choices) == 1 else f"{first} … {last} ({len(choices)})"
