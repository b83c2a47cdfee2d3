"""How often intervals hold, by what the step and the run have: `python tests/bench/coverage.py ROWS.csv …`.

Reads what `accuracy.py --rows` wrote. Each row is held against the interval that `calibrate.py` makes
without the row's family. Prints, for every bin of a feature with 30 rows or more, how many of its rows
the interval covers, how many lie above its high end, and how much that end gives away.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.calibrate import (  # noqa: E402
    MIN_FAMILIES,
    MIN_ROWS,
    Row,
    Shares,
    read_rows,
    shares_of,
    tail_of,
)

MIN_ROWS_OF_A_BIN = 30
_SHARES = ((0.0, "none"), (0.02, "up to 2 %"), (0.1, "2 to 10 %"), (float("inf"), "more than 10 %"))
_BATCHES = ((8, "up to 8"), (32, "9 to 32"), (128, "33 to 128"), (float("inf"), "more than 128"))
_PEAKS = ((4, "up to 4 GiB"), (16, "4 to 16 GiB"), (float("inf"), "more than 16 GiB"))

Held = tuple[Row, Shares]  # with the interval made without its family


def _bin(bounds: Sequence[tuple[float, str]], value: float) -> str:
    return next(name for bound, name in bounds if value <= bound)


FEATURES: dict[str, Callable[[Row], str]] = {
    "all": lambda _row: "",
    "class of model": lambda row: row.model_class.value,
    "largest workspace, of the peak": lambda row: _bin(_SHARES, row.workspace_bytes / row.likely_bytes),
    "batch": lambda row: _bin(_BATCHES, row.batch_size),
    "likely peak": lambda row: _bin(_PEAKS, row.likely_bytes / 1024**3),
    "card": lambda row: row.gpu,
    "PyTorch": lambda row: row.torch_release or "not said",
}


def held_out(rows: Sequence[Row]) -> Iterator[Held]:
    """Every row of a class with enough others, with the interval made without its family."""
    classes = defaultdict(list)
    for row in rows:
        classes[row.model_class, row.cards].append(row)
    for members in classes.values():
        families = {row.family for row in members}
        if len(members) < MIN_ROWS or len(families) < MIN_FAMILIES:
            continue
        tail = tail_of(members)
        for family in sorted(families):
            shares = shares_of([row for row in members if row.family != family], tail)
            yield from ((row, shares) for row in members if row.family == family)


def markdown(held: Sequence[Held]) -> Iterator[str]:
    """A line for every bin with enough rows."""
    yield "| feature | | rows | covered | above the high end | given away |"
    yield "|---|---|---|---|---|---|"
    for feature, bin_of in FEATURES.items():
        bins = defaultdict(list)
        for row, shares in held:
            bins[bin_of(row)].append((row, shares))
        for name, members in sorted(bins.items(), key=lambda item: -len(item[1])):
            if len(members) < MIN_ROWS_OF_A_BIN:
                continue
            covered = statistics.fmean(shares.covers(row) for row, shares in members)
            above = statistics.fmean(shares.is_unsafe_for(row) for row, shares in members)
            given_away = statistics.fmean(shares.given_away(row) for row, shares in members)
            yield (
                f"| {feature} | {name} | {len(members)} | {100 * covered:.1f} % | {100 * above:.1f} % "
                f"| {100 * given_away:.1f} % |"
            )


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="CSV of `accuracy.py --rows`")
    rows, num_left_out = read_rows(parser.parse_args().rows)
    print(f"{len(rows)} rows compare, {num_left_out} are left out\n")
    print("\n".join(markdown(list(held_out(rows)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
