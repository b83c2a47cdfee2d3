"""Predicted seconds of servers beside measured ones: `python tests/bench/serving_rows.py`.

Downloads the wheel `aiconfigurator-core` (82 MB, see `tests/bench/serving/loads.py`; `--wheel FOLDER` for an
unpacked one) and wants transformers. Prints for systems, models and engines the median and the 90th
percentile of |predicted - measured| / measured of the time of a token and of the time to the first token, how
many lie in their intervals of 80 %, and how often the faster of two servers of a model is told right; then
the spreads for serving.toml, of rows that had no part in the constants. These are fitted on two systems
(`serving/fit.py`); the others, and two models, are scored alone.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.serving import (  # noqa: E402
    ServingCosts,
    engine_constants,
    served,
    serving_spread,
)
from tests.bench.serving.loads import ENGINES, FITTED, HELD_MODELS, LoadRow, Loads, costs  # noqa: E402
from tests.bench.time import wheel  # noqa: E402

_LEVEL = 0.8
_CLOSE = 0.1  # servers that differ by less are counted apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A row with what is predicted of it."""

    row: LoadRow
    first_seconds: float
    token_seconds: float

    @property
    def token_ratio(self) -> float:
        return self.token_seconds / self.row.token_seconds

    @property
    def first_ratio(self) -> float:
        return self.first_seconds / self.row.first_seconds


def scored(row: LoadRow) -> Scored | None:
    """A row with its prediction; None where no constants are known of engine and card."""
    of_card = costs(row.system)
    engine = engine_constants(row.engine, of_card.speeds.generation)
    if engine is None:
        return None
    found = served(ServingCosts(of_card, row.decoder, engine), row.load)
    return Scored(row=row, first_seconds=found.first_seconds, token_seconds=found.token_seconds)


def errors(ratios: Iterable[float]) -> str:
    """Median and 90th percentile of the errors, and the median's bias, of predicted over measured."""
    found = sorted(ratios)
    if not found:
        return "–"
    off = sorted(abs(ratio - 1) for ratio in found)
    ninth = off[int(0.9 * (len(off) - 1))]
    return f"{statistics.median(off):.1%}, {ninth:.1%} ({statistics.median(found) - 1:+.1%})"


def _held(members: Sequence[Scored]) -> str:
    """Share of the times of a token that lie in their intervals, where intervals are known."""
    inside = []
    for each in members:
        spread = serving_spread(each.row.engine)
        if spread is not None:
            factor = spread.factor(spread.token_sigma, _LEVEL)
            inside.append(1 / factor <= each.token_ratio <= factor)
    return f"{sum(inside) / len(inside):.0%}" if inside else "–"


def groups(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Rows by what they are scored as."""
    found: defaultdict[str, list[Scored]] = defaultdict(list)
    for each in rows:
        row = each.row
        part = "fitted" if row.is_fitted else "never fitted"
        found[f"all {part}"].append(each)
        if row.system not in FITTED:
            found["systems never fitted"].append(each)
            found[f"systems never fitted, {row.engine}"].append(each)
        if row.model in HELD_MODELS:
            found["models never fitted"].append(each)
        found[f"{row.system}, {part}"].append(each)
        found[f"{row.model}, {part}"].append(each)
        found[f"{row.engine}, {part}"].append(each)
    return dict(sorted(found.items()))


def table(rows: Sequence[Scored]) -> Iterator[str]:
    """Lines of a table in Markdown; times to the first token only where memory has room for all requests."""
    yield "| rows | number | time of a token | in intervals of 80 % | time to the first token |"
    yield "|---|---|---|---|---|"
    for name, members in groups(rows).items():
        token = errors(each.token_ratio for each in members)
        first = errors(each.first_ratio for each in members if each.row.has_room)
        yield f"| {name} | {len(members):,} | {token} | {_held(members)} | {first} |"


Seconds = Callable[[Scored], tuple[float, float]]


def orders(rows: Sequence[Scored], seconds: Seconds) -> tuple[int, int, int, int]:
    """Pairs of servers of one model and load whose order is right, and their number; twice.

    The first two are of all pairs, the others of those whose measured times differ by a tenth.
    """
    alike: defaultdict[tuple[object, ...], dict[object, Scored]] = defaultdict(dict)
    for each in rows:
        row, load = each.row, each.row.load
        key = row.model, load.prompt, load.answer, load.requests
        alike[key].setdefault((row.system, row.engine, row.precision, row.ranks), each)
    right = number = right_apart = apart = 0
    for members in alike.values():
        for one, other in itertools.combinations(members.values(), 2):
            (predicted, measured), (predicted_other, measured_other) = seconds(one), seconds(other)
            if measured == measured_other:
                continue
            is_right = (predicted < predicted_other) == (measured < measured_other)
            number, right = number + 1, right + is_right
            if abs(math.log(measured / measured_other)) > _CLOSE:
                apart, right_apart = apart + 1, right_apart + is_right
    return right, number, right_apart, apart


def order_lines(rows: Sequence[Scored]) -> Iterator[str]:
    """Lines on pairs of servers of one model and load that differ in card, engine, precision or ranks."""
    parts = {
        "all": rows,
        "systems never fitted": [each for each in rows if each.row.system not in FITTED],
        "one system, engine and precision": None,
    }
    kinds: dict[str, Seconds] = {
        "time of a token": lambda each: (each.token_seconds, each.row.token_seconds),
        "time to the first token": lambda each: (each.first_seconds, each.row.first_seconds),
    }
    for kind, seconds in kinds.items():
        for name, part in parts.items():
            members = [part] if part is not None else _alike(rows)
            right, number, right_apart, apart = map(
                sum, zip(*(orders(each, seconds) for each in members), strict=True)
            )
            if number and apart:
                yield (
                    f"order of {kind}, {name}: {right / number:.1%} of {number:,} pairs, "
                    f"{right_apart / apart:.1%} of the {apart:,} that differ by a tenth"
                )


def _alike(rows: Sequence[Scored]) -> list[list[Scored]]:
    found: defaultdict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    for each in rows:
        found[each.row.system, each.row.engine, each.row.precision].append(each)
    return list(found.values())


def spread_lines(rows: Sequence[Scored]) -> Iterator[str]:
    """Lines of serving.toml: sigmas with which four fifths of the rows without a part are in intervals."""
    for name in ENGINES:
        members = [each for each in rows if each.row.engine == name and not each.row.is_fitted]
        with_room = [each for each in members if each.row.has_room]
        if not with_room:
            continue
        yield f"[spreads.{name}]"
        yield f"token_sigma = {_sigma(each.token_ratio for each in members):.2f}"
        yield f"first_sigma = {_sigma(each.first_ratio for each in with_room):.2f}"
        yield f"num_rows = {len(members)}"


def _sigma(ratios: Iterable[float]) -> float:
    off = sorted(abs(math.log(ratio)) for ratio in ratios)
    return off[int(_LEVEL * (len(off) - 1))] / statistics.NormalDist().inv_cdf((1 + _LEVEL) / 2)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, help="folder of the unpacked wheel; default: it is downloaded")
    given = parser.parse_args()
    loads = Loads(wheel.unpacked(given.wheel))
    rows = [each for each in map(scored, loads.rows) if each is not None]
    for line in table(rows):
        print(line)
    for line in order_lines(rows):
        print(line)
    for line in spread_lines(rows):
        print(line)
    without = sum(not each.row.has_room for each in rows)
    print(f"rows with more requests than memory has room for, as predicted: {without:,}")
    print(f"left out: {', '.join(f'{name} {number:,}' for name, number in loads.left_out.most_common())}")


if __name__ == "__main__":
    main()
