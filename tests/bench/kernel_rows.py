"""Predicted times of single kernels beside NVIDIA's of ten cards: `python tests/bench/kernel_rows.py`.

Downloads the wheel `aiconfigurator-core` (82 MB, see `tests/bench/time/wheel.py`; `--wheel FOLDER` for an
unpacked one) and wants pyarrow. Constants are fitted on rows of four cards; the others are scored alone.
Prints for each card and kind of kernel the median and the 90th percentile of |predicted - measured| /
measured, and beside them a roofline: all FLOP at the peak that the card sustains, or all bytes at its
bandwidth. `--heuristics` asks `nvidia-matmul-heuristics` too, where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.collectives import Exchange, network_of  # noqa: E402
from autofit_workers.replay.time.constants import constants  # noqa: E402
from autofit_workers.replay.time.costs import Costs  # noqa: E402
from autofit_workers.replay.time.speeds import Speeds  # noqa: E402
from tests.bench.time import cards, wheel  # noqa: E402
from tests.bench.time.wheel import KernelRow  # noqa: E402

KINDS: dict[str, Callable[[Path, str, int], list[KernelRow]]] = {
    "products": wheel.products,
    "attention": wheel.attention,
    "collectives": wheel.collectives,
}
_ROWS = 1500
_LARGE_BYTES = 1_000_000
_LIBRARY = "nvMatmulHeuristics"
# Cards as NVIDIA's library names them, and its word for the types of a product.
_GPUS = {
    "a100_sxm": "A100_SXM_80GB",
    "h100_sxm": "H100_SXM",
    "h200_sxm": "H200_SXM",
    "b200_sxm": "B200",
    "gb200": "GB200_NVL",
    "b300_sxm": "B300",
    "gb300": "GB300_NVL",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX_PRO_6000",
}
_PRECISIONS = {"bfloat16": "TST", "fp8": "QST"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A row with what is predicted of it, and what a roofline says."""

    row: KernelRow
    predicted_seconds: float
    roofline_seconds: float


class Predictor:
    """Predicted seconds of rows of one card.

    Args:
        system: the card, as the wheel names it.
    """

    def __init__(self, system: str) -> None:
        self.speeds = cards.speeds(system)
        self._network = network_of(self.speeds.name, self.speeds.architecture)
        self._costs = Costs(self.speeds, constants(), network=self._network, is_repeated=True)

    def scored(self, row: KernelRow) -> Scored | None:
        """A row with its prediction; None where nothing joins cards of the kind."""
        if row.exchange is not None:
            if self._network is None:
                return None
            seconds = self._network.seconds(row.exchange, row.num_bytes, row.ranks, is_repeated=True)
            seconds += self.speeds.launch_seconds
            n = row.num_ranks
            times = 2 if row.exchange is Exchange.ALL_REDUCE else 1
            roofline = times * (n - 1) / n * row.num_bytes / self._network.peer
            return Scored(row=row, predicted_seconds=seconds, roofline_seconds=roofline)
        assert row.work is not None
        kernels = self._costs.kernels(row.work)
        seconds = sum(map(self._costs.seconds, kernels)) + wheel.beside_seconds(row)
        return Scored(row=row, predicted_seconds=seconds, roofline_seconds=self._roofline(row))

    def _roofline(self, row: KernelRow) -> float:
        assert row.work is not None
        moved = sum(each.num_bytes for each in (*row.work.inputs, *row.work.outputs))
        return max(moved / self.speeds.bandwidth, _flops(row) / _peak(self.speeds, row.work.inputs[0].dtype))


def _flops(row: KernelRow) -> float:
    if row.kind == "product":
        m, n, k = row.shape
        return 2.0 * m * n * k
    batch, queries, keys, heads, _, width, window = row.shape
    pairs = queries * (keys + 1) / 2 if row.kind == "context" else queries * keys
    if window:
        pairs = min(pairs, queries * window)
    return 4.0 * batch * heads * width * pairs


def _peak(speeds: Speeds, dtype: str) -> float:
    times = 2 if dtype.startswith("float8") else 1
    return speeds.flops.get(dtype) or times * speeds.product_flops("bfloat16")


def errors(ratios: Iterable[float]) -> tuple[float, float, float]:
    """Median and 90th percentile of the errors, and the median's bias, of predicted over measured."""
    found = sorted(ratios)
    off = sorted(abs(ratio - 1) for ratio in found)
    return statistics.median(off), off[int(0.9 * (len(off) - 1))], statistics.median(found) - 1


def table(scored: Sequence[Scored]) -> Iterator[str]:
    """Lines of a table in Markdown: each group on each card, then fitted and unseen cards together."""
    yield "| rows | card | | number | median | p90 | bias | roofline |"
    yield "|---|---|---|---|---|---|---|---|"
    groups: defaultdict[tuple[str, str], list[Scored]] = defaultdict(list)
    for each in scored:
        for name in _names(each.row):
            groups[name, each.row.system].append(each)
            part = "all fitted" if each.row.system in wheel.FITTED else "all unseen"
            groups[name, part].append(each)
            if part == "all unseen" and each.row.system != "b60":
                groups[name, "unseen of NVIDIA"].append(each)
    order = (*wheel.FITTED, "all fitted", *wheel.SCORED, "unseen of NVIDIA", "all unseen")
    for (name, card), members in sorted(
        groups.items(), key=lambda each: (each[0][0], order.index(each[0][1]))
    ):
        median, ninth, bias = errors(each.predicted_seconds / each.row.seconds for each in members)
        roof, roof_ninth, _ = errors(each.roofline_seconds / each.row.seconds for each in members)
        part = "fitted" if card in wheel.FITTED else ("never fitted" if card in wheel.SCORED else "")
        yield (
            f"| {name} | {card} | {part} | {len(members):,} | {median:.1%} | {ninth:.1%} | {bias:+.1%} "
            f"| {roof:.1%}, {roof_ninth:.1%} |"
        )


def _names(row: KernelRow) -> Iterator[str]:
    if row.kind == "collective":
        size = "from 1 MB" if row.num_bytes >= _LARGE_BYTES else "below 1 MB"
        yield f"{row.group} {size}"
        yield f"collectives {size}"
    elif row.kind == "product":
        yield f"products {row.group}"
        yield f"products {row.group}, {row.source}"
    else:
        yield f"attention {row.group}"
        yield "attention"


def heuristics(rows: Sequence[KernelRow]) -> Iterator[str]:
    """A line for each card and type: what NVIDIA's library says of its products."""
    from tests.bench.matmul_heuristics import library_seconds  # whose tables want PyTorch

    groups: defaultdict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in rows:
        if row.kind == "product" and row.system in _GPUS and row.group in _PRECISIONS:
            groups[row.system, row.group].append(row)
    for (system, dtype), members in groups.items():
        shapes = [(row.shape[0], row.shape[1], row.shape[2]) for row in members]
        try:
            seconds = library_seconds(_GPUS[system], _PRECISIONS[dtype], shapes)
        except (BrokenProcessPool, KeyError, AttributeError, IndexError, RuntimeError, ValueError) as error:
            yield f"heuristics {system} {dtype}: none, {type(error).__name__}: {error}"
            continue
        median, ninth, bias = errors(s / row.seconds for s, row in zip(seconds, members, strict=True))
        yield f"heuristics {system} {dtype}: {len(members)} rows, {median:.1%}, {ninth:.1%}, bias {bias:+.1%}"


def main() -> int:
    """Prints the tables; 1 where pyarrow is not installed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = (*wheel.FITTED, *wheel.SCORED)
    parser.add_argument("--wheel", type=Path, help="folder of the unpacked wheel; default: it is downloaded")
    parser.add_argument("--kind", action="append", choices=KINDS, help="repeatable; default: all")
    parser.add_argument("--card", action="append", choices=every, help="repeatable; default: all")
    parser.add_argument("--rows", type=int, default=_ROWS, help=f"at most so many of each group [{_ROWS}]")
    parser.add_argument("--heuristics", action="store_true", help="NVIDIA's library beside, for products")
    given = parser.parse_args()
    if importlib.util.find_spec("pyarrow") is None:
        print(
            "pyarrow is not installed, which reads the wheel's tables: pip install pyarrow", file=sys.stderr
        )
        return 1
    folder = wheel.unpacked(given.wheel)
    scored, rows = [], []
    for system in given.card or every:
        predictor = Predictor(system)
        for kind in given.kind or KINDS:
            found = KINDS[kind](folder, system, given.rows)
            rows += found
            scored += [each for each in map(predictor.scored, found) if each is not None]
    for line in table(scored):
        print(line)
    if given.heuristics and importlib.util.find_spec(_LIBRARY) is not None:
        for line in heuristics(rows):
            print(line)
    elif given.heuristics:
        print(f"{_LIBRARY} is not installed: pip install nvidia-matmul-heuristics", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
