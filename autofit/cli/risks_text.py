"""The text of what another risk would gain or cost, and what happens between the two."""

from __future__ import annotations

from rich.console import Console

from autofit.cli.output import headed, heading, indented
from autofit.confidence import Risk
from autofit.report.result import FrontierEntry, TuneResult

# What PyTorch does where a workspace turns out larger than likely: `try_configs` and
# `generate_and_filter_plans` of ATen's Conv_v8.cpp. Native convolutions have one workspace.
_BEYOND = {
    "cudnn": "cuDNN falls back to a smaller, slower plan instead of failing",
    "cudnn-deterministic": "cuDNN falls back to a smaller, slower plan instead of failing",
    "cudnn-benchmark": "benchmark mode makes the allocator release its cache for the workspaces that it "
    "times: it thrashes, or runs out of memory",
    "native": "there is no other plan: it runs out of memory, or thrashes",
}


def print_risks(console: Console, result: TuneResult) -> None:
    """Prints the largest batch at every risk, where they differ, and what is between safe and likely."""
    entries = [entry for entry in result.frontier if len(set((entry.largest_by_risk or {}).values())) > 1]
    if not entries:
        return
    heading(console, "At every --risk")
    table = headed(
        ("conv\nalgorithm", "left"),
        *((f"\n{risk}", "right") for risk in Risk),
        ("if it needs more\nthan likely", "left"),
    )
    for entry in sorted(entries, key=lambda entry: -(entry.largest_batch or 0)):
        assert entry.largest_by_risk is not None
        batches = (entry.largest_by_risk[risk] for risk in Risk)
        table.add_row(
            entry.knobs.conv_algo,
            *("none" if batch is None else str(batch) for batch in batches),
            _between(entry),
        )
    console.print(indented(table))


def _between(entry: FrontierEntry) -> str:
    assert entry.largest_by_risk is not None
    safe, likely = entry.largest_by_risk[Risk.SAFE] or 0, entry.largest_by_risk[Risk.LIKELY] or 0
    if likely <= safe:
        return ""
    sizes = f"at {likely}" if likely == safe + 1 else f"from {safe + 1} to {likely}"
    return f"{sizes} {_BEYOND[entry.knobs.conv_algo]}"
