"""How far real runs were off, by class of model: writes `autofit/data/residuals.toml`.

    python tests/bench/accuracy.py --rows rows.csv
    python tests/bench/calibrate.py rows.csv [more.csv …] [--class CLASS …] [--write]

A row is a real run with its prediction. Columns that are read:

    table, model, family, batch_size     what ran
    gpu, torch_release                   where, and with which PyTorch
    groups                               wider classes of it, such as the one whose runs ended early
    model_class, architecture            of `autofit.predict.confidence.classify`, and `sm_XY`
    measured_bytes                       the real peak as it was measured
    real_bytes                           the same of the allocator alone, and of all that it had
    low_bytes, likely_bytes, high_bytes  the predicted reserved peak over the span of the workspaces
    else_low_bytes, …                    the same of what may have run instead; the nearer one counts
    workspace_likely_bytes               the largest workspace of any one convolution, cuDNN's in these tables
    failure                              why there is no prediction; such rows are left out and counted

Each end of the interval is moved by a quantile of what real runs lie beyond it, as a share of that end
(conformalized quantile regression: Romano, Patterson and Candès, 2019). The ends are the likely peak, and
that with as much of the largest workspace as then gives least away. Every family of a class weighs the
same, however many rows it has, because rows of one family are off together. A family that no row is known
of may be off further than all that are: so the quantile is the first of `TAILS` with which families that
are left out are above the high end no more often than `TAIL` says. No end is moved by less than identical
runs differ. The coverage is that of intervals made without the family that they are tried on.

Which runs are left out, `tests/bench/left_out.py` says.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autofit.predict.confidence import SCHEMA, ModelClass, cards_of  # noqa: E402
from tests.bench.accuracy_report import OR_ELSE  # noqa: E402
from tests.bench.left_out import REPEATED, left_out  # noqa: E402

DATA_FILE = ROOT / "autofit" / "data" / "residuals.toml"
TAIL = 0.025  # beyond either end of a 95 % interval
TAILS = (TAIL, 0.0225, 0.02, 0.0175, 0.015)  # of a few hundred rows less is one or two of them
WORKSPACE_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Fewer than this say nothing of a class: it counts as one that no real runs are known of.
MIN_ROWS, MIN_FAMILIES = 20, 2
# Of a class without real runs: half as much again, and as much as identical runs differ by.
UNMEASURED_FACTOR, UNMEASURED_EXTRA_SHARE = 1.5, REPEATED
# Smaller peaks are left out: a table's constant is known to some 100 MiB, and where a small batch has
# little, one plan of a few GB, as real runs have them now and then, is a multiple. By the prediction: by
# the real peak those would be chosen that took more than they should.
_MIN_PREDICTED_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A real run, and what was predicted for it.

    Attributes:
        low_bytes, high_bytes: the ends before they are moved, without what the largest workspace adds.
        workspace_bytes: the largest workspace of any one convolution.
    """

    table: str
    family: str
    model_class: ModelClass
    cards: str
    gpu: str
    torch_release: str
    batch_size: int
    real_bytes: int
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    workspace_bytes: int

    @property
    def beyond_low(self) -> float:
        """Below 0 where the run took less than the low end."""
        return self.real_bytes / self.low_bytes - 1

    def high_end(self, workspace_share: float) -> float:
        """The high end with so much of the largest workspace."""
        return self.high_bytes + workspace_share * self.workspace_bytes

    def beyond_high(self, workspace_share: float) -> float:
        """Above 0 where the run took more than that."""
        return self.real_bytes / self.high_end(workspace_share) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is added to both ends, as in `autofit.predict.confidence.Calibration`."""

    low: float
    high: float
    workspace: float

    def covers(self, row: Row) -> bool:
        return self.low <= row.beyond_low and not self.is_unsafe_for(row)

    def is_unsafe_for(self, row: Row) -> bool:
        """Whether the run took more than the high end."""
        return row.beyond_high(self.workspace) > self.high

    def given_away(self, row: Row) -> float:
        """By how much the high end is above the real run, as a share of it."""
        return (1 + self.high) * row.high_end(self.workspace) / row.real_bytes - 1


def spans(model_class: ModelClass) -> bool:
    """Whether the ends of a class are those of a replay with the smallest and the largest workspaces."""
    return model_class is ModelClass.WITHOUT_CONVOLUTIONS


def read_rows(paths: Iterable[Path]) -> tuple[list[Row], int]:
    """The rows that compare, and how many do not: without a prediction, or implausible as they are.

    Raises:
        KeyError: a column is missing.
    """
    rows, num_failed = [], 0
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.DictReader(file) if line["measured_bytes"]]
            for line, is_left_out in zip(lines, left_out(lines), strict=True):
                if line["failure"] or is_left_out:
                    num_failed += 1
                    continue
                model_class = ModelClass(line["model_class"])
                low_bytes, likely_bytes, high_bytes = _nearer(line)
                row = Row(
                    table=line["table"],
                    family=line["family"],
                    model_class=model_class,
                    cards=cards_of(model_class, line["architecture"]),
                    gpu=line["gpu"],
                    torch_release=line.get("torch_release", ""),
                    batch_size=int(line["batch_size"]),
                    real_bytes=int(line["real_bytes"]),
                    low_bytes=low_bytes if spans(model_class) else likely_bytes,
                    likely_bytes=likely_bytes,
                    high_bytes=high_bytes if spans(model_class) else likely_bytes,
                    workspace_bytes=int(line["workspace_likely_bytes"]),
                )
                if row.high_bytes >= _MIN_PREDICTED_BYTES and row.real_bytes > 0:
                    rows.append(row)
    return rows, num_failed


def _nearer(line: dict[str, str]) -> list[int]:
    """The low, likely and high prediction of what ran: of two steps the one that took about as much."""
    names = ("low_bytes", "likely_bytes", "high_bytes")
    steps = [[int(line[name]) for name in names]]
    if line.get(OR_ELSE[0]):
        steps.append([int(line[name]) for name in OR_ELSE])
    return min(steps, key=lambda step: abs(step[1] - int(line["real_bytes"])))


def shares_of(rows: Sequence[Row], tail: float = TAIL) -> Shares:
    """The shares that leave out so much at either end, and give least away at the high one."""
    families = Counter(row.family for row in rows)
    weighted = [(row, 1 / (len(families) * families[row.family])) for row in rows]
    low = _quantile([(row.beyond_low, weight) for row, weight in weighted], tail)
    tried = [
        Shares(low=_outwards(-low, -1), high=_outwards(high, 1), workspace=workspace_share)
        for workspace_share in WORKSPACE_SHARES
        for high in [
            -_quantile([(-row.beyond_high(workspace_share), weight) for row, weight in weighted], tail)
        ]
    ]
    return min(tried, key=lambda shares: sum(weight * shares.given_away(row) for row, weight in weighted))


def _outwards(share: float, sign: int) -> float:
    """An end's share, rounded so that the rows which set it stay inside; not less than runs differ by."""
    return sign * math.ceil(max(share, REPEATED) * 1e4) / 1e4


def _quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """The smallest value up to which the weights exceed a share; the least of all where few are."""
    total = 0.0
    for value, weight in sorted(weighted):
        total += weight
        if total > share:
            return value
    raise ValueError("no values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How intervals made without a family did on it; means over families.

    Attributes:
        covered, unsafe: share of rows inside the interval, and above its high end.
        given_away: by how much the high end is above the real run, on average.
    """

    covered: float
    unsafe: float
    given_away: float


def tail_of(rows: Sequence[Row]) -> float:
    """The first of `TAILS` that holds for families that are left out, or comes nearest to that."""
    return min(TAILS, key=lambda tail: max(TAIL, cross_validated(rows, tail).unsafe))


def cross_validated(rows: Sequence[Row], tail: float = TAIL) -> Coverage:
    """Leaves every family out once."""
    covered, unsafe, given_away = [], [], []
    for name in sorted({row.family for row in rows}):
        held_out = [row for row in rows if row.family == name]
        shares = shares_of([row for row in rows if row.family != name], tail)
        covered.append(statistics.fmean(shares.covers(row) for row in held_out))
        unsafe.append(statistics.fmean(shares.is_unsafe_for(row) for row in held_out))
        given_away.append(statistics.fmean(shares.given_away(row) for row in held_out))
    return Coverage(
        covered=statistics.fmean(covered),
        unsafe=statistics.fmean(unsafe),
        given_away=statistics.fmean(given_away),
    )


def calibrated(
    rows: Sequence[Row], classes: Iterable[ModelClass] = ModelClass
) -> Iterable[tuple[str, list[str]]]:
    """For every pair of class and cards its line in the report and its entry in the file."""
    for model_class in classes:
        for cards in sorted({row.cards for row in rows}):
            some = [row for row in rows if (row.model_class, row.cards) == (model_class, cards)]
            families = sorted({row.family for row in some})
            if not some:
                continue
            name = f"{model_class} on {cards}: {len(some)} rows, {len(families)} families"
            if len(some) < MIN_ROWS or len(families) < MIN_FAMILIES:
                yield f"{name}: too few, counts as unmeasured", []
                continue
            tail = tail_of(some)
            shares, tried = shares_of(some, tail), cross_validated(some, tail)
            said = (
                f"{100 * tried.covered:.1f} % of rows covered, {100 * tried.unsafe:.1f} % above the high "
                f"end, which gives {100 * tried.given_away:.1f} % away"
            )
            yield (
                f"{name}: {100 * shares.workspace:.0f} % of the largest workspace, "
                f"{100 * shares.low:+.2f} % to {100 * shares.high:+.2f} %; family left out: {said}",
                [
                    f"# {', '.join(families)}",
                    f"# Family left out: {said}.",
                    "[[residuals]]",
                    f'model_class = "{model_class}"',
                    f'cards = "{cards}"',
                    f"low_share = {shares.low}",
                    f"high_share = {shares.high}",
                    f"workspace_share = {shares.workspace}",
                    f"spans = {str(spans(model_class)).lower()}",
                    f"num_rows = {len(some)}",
                    f"num_families = {len(families)}",
                    "sources = [" + ", ".join(f'"{t}"' for t in sorted({row.table for row in some})) + "]",
                ],
            )


_HEADER = """\
# How far real runs lie beyond what is predicted, by class of model and generation of cards;
# `autofit/predict/confidence.py` says what for. Written by `tests/bench/calibrate.py`: not by hand.
"""
_UNMEASURED = f"""
# Of a class without real runs: so many times the shares of the widest class, and so much beyond.
[unmeasured]
factor = {UNMEASURED_FACTOR}
extra_share = {UNMEASURED_EXTRA_SHARE}
"""


def entries_of(text: str, classes: Iterable[ModelClass]) -> list[list[str]]:
    """The entries of some classes as they stand in a data file, each with its comments."""
    lines = [f'model_class = "{model_class}"' for model_class in classes]
    parts = [part.splitlines() for part in text.split("\n\n")]
    return [part for part in parts if any(line in part for line in lines)]


def note_of(text: str) -> str:
    """The note that a data file has; empty without one."""
    first = text.removeprefix(_HEADER).splitlines()[0]
    return first.removeprefix("# ") if first.startswith("# ") else ""


def document(entries: Iterable[list[str]], *, note: str) -> str:
    """The data file."""
    said = f"# {note}\n" if note else ""
    tables = "\n".join("\n".join(["", *entry]) for entry in entries if entry)
    return f'{_HEADER}{said}\nschema = "{SCHEMA}"\n{_UNMEASURED}{tables}\n'


def main() -> int:
    """Prints the shares and their coverage, and writes the file where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="CSV of `accuracy.py --rows`")
    parser.add_argument("--write", action="store_true", help=f"writes {DATA_FILE.relative_to(ROOT)}")
    parser.add_argument(
        "--class",
        dest="classes",
        type=ModelClass,
        choices=list(ModelClass),
        action="append",
        help="only this class of models; the entries of the others stay. Repeatable",
    )
    parser.add_argument("--note", default="", help="a line to say in the file; else the one there")
    options = parser.parse_args()
    rows, num_failed = read_rows(options.rows)
    print(f"{len(rows)} rows compare, {num_failed} are left out")
    classes = options.classes or list(ModelClass)
    answered = list(calibrated(rows, classes))
    print("\n".join(line for line, _ in answered))
    if options.write:
        others = [model_class for model_class in ModelClass if model_class not in classes]
        present = DATA_FILE.read_text(encoding="utf-8")
        entries = [*entries_of(present, others), *(entry for _, entry in answered)]
        DATA_FILE.write_text(document(entries, note=options.note or note_of(present)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
