"""Holds predicted collectives against vidur's: `python tests/bench/time/collectives.py --tables DIR`.

DIR is `data/profiling/network` of a checkout of microsoft/vidur (MIT), made by
`vidur/profiling/collectives`: the median of the durations of NCCL's kernel on rank 0, as PyTorch's profiler
records them, in three rounds of 11 calls. `size` is in bytes of float16. Rows of a link are those whose ranks
it joins: of a `pairwise_nvlink` node two ranks have bridges, and four go over PCIe. Its H100's `send_recv` is
a copy of its A100's and is left out; so are rows between nodes unless `--between` asks for them: what joins
those nodes is not told.

`--fit` prints the constants of links.toml that meet the all-reduces best: the mean of |log(predicted /
measured)|, with a third of the weight for messages below a megabyte.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.collectives import Exchange, Network, Protocol, network_of  # noqa: E402
from autofit_workers.spec.work import Group  # noqa: E402

_EXCHANGES = {"all_reduce": Exchange.ALL_REDUCE, "send_recv": Exchange.SEND}
_A100, _H100 = ("NVIDIA A100-SXM4-80GB", "sm_80"), ("NVIDIA H100 80GB HBM3", "sm_90")
# By table and ranks in a node, the card whose links join them: bridges are as fast as an A100's NVLink.
_LINKS = {
    ("a100_dgx", 2): _A100,
    ("a100_dgx", 4): _A100,
    ("a100_dgx", 8): _A100,
    ("h100_dgx", 2): _H100,
    ("h100_dgx", 4): _H100,
    ("h100_dgx", 8): _H100,
    ("a100_pairwise_nvlink", 2): _A100,
    ("a100_pairwise_nvlink", 4): ("NVIDIA A100-PCIE-40GB", "sm_80"),
    ("h100_pairwise_nvlink", 2): _A100,
    ("h100_pairwise_nvlink", 4): ("NVIDIA H100 NVL", "sm_90"),
}
_COPIED = ("h100_pairwise_nvlink", "send_recv")
_CLASSES = ((0, 250_000), (250_000, 4_000_000), (4_000_000, 2**63))  # of bytes
# What eight H100 reach with gigabytes (NVIDIA/nccl-tests#212); vidur's messages do not show where that ends.
_MOST_BUS = 4.8e11
_SMALL_BYTES, _SMALL_WEIGHT = 1_000_000, 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRow:
    """One collective.

    Attributes:
        table: the folder that it is of.
        num_on_node: of its ranks, on each node.
    """

    table: str
    exchange: Exchange
    num_ranks: int
    num_on_node: int
    num_bytes: int
    seconds: float

    @property
    def network(self) -> Network | None:
        """What joins its ranks; None between nodes, and where that is not known."""
        if self.num_on_node < self.num_ranks:
            return None
        card = _LINKS.get((self.table, self.num_ranks))
        return None if card is None else network_of(*card)

    @property
    def predicted_seconds(self) -> float:
        assert self.network is not None
        return self.network.seconds(self.exchange, self.num_bytes, Group(self.num_ranks))


def read(folder: Path) -> list[ExchangeRow]:
    """All rows of all tables that are there, but for the copied ones."""
    rows = []
    for path in sorted(folder.glob("*/*.csv")):
        table, name = path.parent.name, path.stem
        if name not in _EXCHANGES or (table, name) == _COPIED:
            continue
        with path.open(encoding="utf-8", newline="") as file:
            rows += [
                ExchangeRow(
                    table=table,
                    exchange=_EXCHANGES[name],
                    num_ranks=int(line["num_workers"]),
                    num_on_node=int(line["devices_per_node"]),
                    num_bytes=int(line["size"]),
                    seconds=float(line[f"time_stats.{name}.median"]) * 1e-3,
                )
                for line in csv.DictReader(file)
            ]
    return rows


def print_errors(rows: Sequence[ExchangeRow]) -> None:
    """Median, 90th percentile and deviation of predicted from measured, by link and by size."""
    print("| table | collective | ranks | bytes | rows | median % | p90 % | too long by % | sigma |")
    print("|---|---|---|---|---|---|---|---|---|")
    groups = defaultdict(list)
    for row in rows:
        for low, high in _CLASSES:
            if low <= row.num_bytes < high:
                groups[row.table, row.exchange, row.num_ranks, low].append(row)
    for (table, exchange, num_ranks, low), found in groups.items():
        print(f"| {table} | {exchange} | {num_ranks} | from {low:,} | {_errors(found)} |")
    for low, _ in _CLASSES:
        found = [row for row in rows if row.exchange is Exchange.ALL_REDUCE and row.num_bytes >= low]
        print(f"| all | all_reduce | | from {low:,} | {_errors(found)} |")


def _errors(rows: Sequence[ExchangeRow]) -> str:
    logs = [math.log(row.predicted_seconds / row.seconds) for row in rows]
    errors = sorted(abs(math.expm1(each)) for each in logs)
    p90 = errors[int(0.9 * (len(errors) - 1))]
    bias = math.expm1(statistics.median(logs))
    sigma = math.sqrt(statistics.fmean(each**2 for each in logs))
    return f"{len(rows)} | {statistics.median(errors):.1%} | {p90:.1%} | {bias:+.1%} | {sigma:.2f}"


def print_between(rows: Sequence[ExchangeRow]) -> None:
    """The bandwidth of large collectives between nodes, for each card of a node."""
    groups = defaultdict(list)
    for row in rows:
        if row.num_on_node < row.num_ranks and row.num_bytes >= _CLASSES[-1][0]:
            n = row.num_ranks
            share = 2 * (n - 1) / n if row.exchange is Exchange.ALL_REDUCE else 1.0
            bandwidth = share * row.num_bytes / row.seconds / row.num_on_node
            groups[row.table, row.exchange, n, row.num_on_node].append(bandwidth)
    for (table, exchange, n, on_node), found in groups.items():
        print(
            f"{table}: {exchange} of {n} ranks, {on_node} a node: {max(found) / 1e9:.1f} GB/s a card at most"
        )


def fit(rows: Sequence[ExchangeRow]) -> None:
    """Prints bandwidths, and what links of a kind have in common."""
    for kind in ("nvlink", "pcie"):
        reduced = (row for row in rows if row.exchange is Exchange.ALL_REDUCE)
        joined = [row for row in reduced if row.network is not None and row.network.name.startswith(kind)]
        if joined:
            _fit_kind(kind, joined)


def _fit_kind(kind: str, rows: Sequence[ExchangeRow]) -> None:
    from scipy.optimize import differential_evolution  # which scoring does without

    cards = sorted({_LINKS[row.table, row.num_ranks] for row in rows})
    own = np.array([cards.index(_LINKS[row.table, row.num_ranks]) for row in rows])
    n = np.array([row.num_ranks for row in rows], dtype=float)
    on_link = 2 * (n - 1) / n * np.array([row.num_bytes for row in rows])
    measured = np.log([row.seconds for row in rows])
    weights = np.where([row.num_bytes < _SMALL_BYTES for row in rows], _SMALL_WEIGHT, 1.0)
    # Each table and number of ranks counts as much as any other.
    num_rows = Counter((row.table, row.num_ranks) for row in rows)
    weights /= np.array([num_rows[row.table, row.num_ranks] for row in rows])

    def loss(logs: np.ndarray) -> float:
        *bus, start, hop, share, later, later_hop, tree = np.exp(logs)
        bandwidth = np.array(bus)[own]
        times = [
            at + steps * step + on_link / (bandwidth * part * of_tree)
            for at, step, part in ((start, hop, share), (later, later_hop, 1.0))
            for steps, of_tree in ((2 * (n - 1), 1.0), (2 * np.log2(n), tree))
        ]
        error = np.abs(np.log(np.min(times, axis=0)) - measured)
        return float(np.sum(weights * error) / np.sum(weights))

    bounds = [
        *[(1e10, _MOST_BUS)] * len(cards),
        (5e-6, 6e-5), (1e-7, 1e-5), (0.1, 1.0), (5e-6, 1e-4), (1e-7, 3e-5), (0.3, 1.0),
    ]  # fmt: skip
    found = differential_evolution(
        loss, [tuple(map(math.log, each)) for each in bounds], seed=0, maxiter=300, popsize=12, tol=1e-7
    )
    values = np.exp(found.x)
    for (name, _), bus in zip(cards, values, strict=False):
        print(f"{kind}: {name}: bus = {bus:.3g}")
    start, hop, share, later, later_hop, tree = values[len(cards) :]
    first = Protocol(start=start, hop=hop, share=share)
    second = Protocol(start=later, hop=later_hop, share=1.0)
    for each in (first, second):
        print(
            f"{kind}: "
            + ", ".join(f"{name} = {value:.2g}" for name, value in dataclasses.asdict(each).items())
        )
    print(f"{kind}: tree = {tree:.2g}; off by {found.fun:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--between", action="store_true")
    given = parser.parse_args()
    rows = read(given.tables)
    if not rows:
        parser.error(f"{given.tables} has no all_reduce.csv or send_recv.csv in its folders")
    if given.fit:
        fit(rows)
        return
    print_errors([row for row in rows if row.network is not None])
    if given.between:
        print_between(rows)


if __name__ == "__main__":
    main()
