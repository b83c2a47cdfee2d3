"""Errors of predictors as a figure: `python tests/bench/accuracy_plot.py ROWS.csv … --out accuracy.svg`.

ROWS.csv is what `accuracy.py --rows` writes. For each table, the share of its rows (that have a peak)
whose error is at most so large, a line for each predictor that has a number for them. Wants matplotlib
beside the project.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

LIVE = "trace only"  # a column of the ablation: what trackers of live tensors count
FAKE_TENSOR = "FakeTensor and the constant"  # what such a tracker said, of a table that has its numbers
# Columns of the file with another predictor's bytes, and how the line of each is drawn: by its dashes too,
# so that it is told without its colour.
PREDICTORS = {
    "xMem": "--",
    "DNNMem": "-.",
    "SchedTune": ":",
    "LLMem": (0, (1, 3)),
    LIVE: (0, (6, 2, 1, 2, 1, 2)),
    FAKE_TENSOR: (0, (6, 2, 1, 2, 1, 2)),
}
NAMES = {LIVE: "live tensors alone", FAKE_TENSOR: "FakeTensor's live tensors"}
TITLES = {"xmem": "xMem's runs", "timm": "GPUMemNet's timm models"}
LARGEST = 0.4


def errors_of(path: Path) -> dict[str, dict[str, list[float]]]:
    """By table and predictor: absolute errors as shares of the measured peak, in ascending order."""
    rows: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["error"]:
                rows[row["table"]].append(row)
    return {
        table: {
            "autofit": sorted(abs(float(row["error"])) for row in of_table),
            **{name: errors for name in PREDICTORS if (errors := _errors_of(name, of_table))},
        }
        for table, of_table in rows.items()
    }


def _errors_of(name: str, rows: list[dict[str, str]]) -> list[float]:
    """Of another predictor; where a table has a constant, live tensors have one of their own."""
    said = [(float(row[name]), int(row["measured_bytes"])) for row in rows if row.get(name)]
    has_constant = name == LIVE and any(int(row["constant_bytes"]) for row in rows)
    constant = statistics.median(measured - live for live, measured in said) if has_constant and said else 0
    return sorted(abs((predicted + constant) / measured - 1) for predicted, measured in said)


def main() -> None:
    """Writes the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tables: dict[str, dict[str, list[float]]] = {}
    for path in options.rows:
        tables |= errors_of(path)
    mpl.rcParams["svg.hashsalt"] = "accuracy"  # the same rows make the same file
    figure, axes = plt.subplots(1, len(tables), figsize=(4.6 * len(tables), 3.4), sharey=True, squeeze=False)
    for axis, (table, by_predictor) in zip(axes[0], tables.items(), strict=True):
        for name, errors in by_predictor.items():
            shares = [(index + 1) / len(errors) for index in range(len(errors))]
            is_own = name == "autofit"
            axis.plot(
                [100 * error for error in errors],
                [100 * share for share in shares],
                color=f"C{['autofit', *PREDICTORS].index(name)}",
                linestyle="-" if is_own else PREDICTORS[name],
                linewidth=2.2 if is_own else 1.3,
                label=NAMES.get(name, name),
            )
        axis.set_title(f"{TITLES.get(table, table)}, {len(by_predictor['autofit'])} peaks", fontsize=10)
        axis.set_xlim(0, 100 * LARGEST)
        axis.set_ylim(0, 100)
        axis.set_xlabel("error at most, %")
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right", fontsize=8)
    axes[0][0].set_ylabel("rows, %")
    figure.tight_layout()
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
