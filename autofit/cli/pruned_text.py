"""What the Pareto front of a search is, and which settings were not tried because of it."""

from __future__ import annotations

from rich.console import Console

from autofit.cli.output import headed, heading, indented
from autofit.tuning.result import TuneResult


def print_pruned(console: Console, result: TuneResult) -> None:
    """Prints what the marks of the frontier mean, and the settings that were not searched."""
    if not result.is_of_product:
        return
    measured = any(entry.samples_per_second is not None for entry in result.frontier)
    by = "measured samples a second" if measured else "what their knobs usually cost, as nothing was timed"
    console.print()
    console.print(f"◆ on the Pareto front of batch against time: none fits as much and is faster, by {by}.")
    if not result.pruned:
        return
    names = result.setting_names
    heading(console, "Not searched to the end: another fits at least as much and is usually no slower")
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
