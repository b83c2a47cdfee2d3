"""The text of what another risk would gain or cost, and what happens between the two."""

from __future__ import annotations

from rich.console import Console

from autofit.cli.output import by_setting, heading, indented
from autofit.settings.goals import Risk
from autofit.tuning.result import FrontierEntry, TuneResult

# What happens where a size needs more than is likely: if it still runs with the smallest plans, and if
# it does not. `try_configs` of ATen's Conv_v8.cpp goes on to the next plan when a workspace cannot be
# had; benchmark mode, in `generate_and_filter_plans`, first makes the allocator release its cache.
_CUDNN = (
    "cuDNN falls back to a smaller, slower plan instead of failing",
    "cuDNN falls back to smaller, slower plans, and may run out of memory all the same",
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


def print_risks(console: Console, result: TuneResult) -> None:
    """Prints the largest batch at every risk, where they differ, and what is between safe and likely."""
    entries = [entry for entry in result.frontier if len(set((entry.largest_by_risk or {}).values())) > 1]
    if not entries:
        return
    names = result.setting_names
    heading(console, "At every --risk")
    table = by_setting(
        *((f"\n{risk}", "right") for risk in Risk),
        ("if it needs more\nthan likely", "left"),
        is_of_product=result.is_of_product,
    )
    for entry in sorted(entries, key=lambda entry: -(entry.largest_batch or 0)):
        assert entry.largest_by_risk is not None
        batches = (entry.largest_by_risk[risk] for risk in Risk)
        table.add_row(
            names[entry.knobs],
            *("none" if batch is None else str(batch) for batch in batches),
            _between(entry),
        )
    console.print(indented(table))


def _between(entry: FrontierEntry) -> str:
    assert entry.largest_by_risk is not None
    safe, likely = entry.largest_by_risk[Risk.SAFE] or 0, entry.largest_by_risk[Risk.LIKELY] or 0
    if likely <= safe:
        return ""
    is_next = likely == safe + 1 or entry.knobs.global_batch is not None
    sizes = f"at {likely}" if is_next else f"from {safe + 1} to {likely}"
    still_runs, fails = _BEYOND.get(entry.knobs.conv_algo.partition(":")[0], _NO_PLANS)
    return f"{sizes} {still_runs if entry.likely_still_runs else fails}"
