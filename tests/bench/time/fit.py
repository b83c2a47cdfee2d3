"""Fits the constants of kernels' classes: `python tests/bench/time/fit.py matmul`, then copies by hand.

Each set of constants has rows of a table of single operators, from which an even sample is taken by card and
operator; simplex descent makes the mean of |log(predicted / measured)|, cut at 0.3, as small as it can. What
cards keep up is fitted beside, for the cards named. `--leave CARD` leaves the rows of a card out and prints
how well they are met then, as a card of which nothing but its data sheet is known. Starts at the constants in
use; the same rows give the same constants.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.constants import ClassConstants, Constants, constants  # noqa: E402
from autofit_workers.replay.time.costs import Costs  # noqa: E402
from autofit_workers.replay.time.speeds import Speeds, sustained  # noqa: E402
from autofit_workers.spec.work import Work  # noqa: E402
from tests.bench.step_times import EVENT_SECONDS, device_seconds  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402
from tests.bench.time import cards, neusight_kernels, vidur  # noqa: E402

_ROWS_OF_A_GROUP = 60
_CUT = 0.3
_EVALUATIONS = 200
_PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """What is fitted to."""

    group: str
    card: str
    works: tuple[Work, ...]
    seconds: float
    beside: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSet:
    """Constants that are fitted together.

    Attributes:
        rows: makes the rows.
        kind: the class whose constants these are.
        names: of the constants, those of its products behind `product.`.
        cards: whose shares are fitted beside, and which of `vector`, `tensor` and `memory`.
    """

    rows: Callable[[], Iterator[FitRow]]
    kind: str
    names: tuple[str, ...]
    cards: tuple[tuple[str, str], ...] = ()


def _neusight(*operators: str) -> Callable[[], Iterator[FitRow]]:
    def rows() -> Iterator[FitRow]:
        for row in neusight_kernels.of_device(neusight_kernels.read(DEFAULT_TABLES)):
            if row.operator in operators and row.split == "test":
                yield FitRow(
                    group=row.operator,
                    card=row.card,
                    works=(row.work,),
                    seconds=row.seconds,
                    beside=EVENT_SECONDS,
                )

    return rows


def _vidur(*operators: str, layer_norm: bool | None = None) -> Callable[[], Iterator[FitRow]]:
    def rows() -> Iterator[FitRow]:
        for row in vidur.read(DEFAULT_TABLES):
            has = any("layer_norm" in work.operator for work in row.works)
            if row.operator in operators and layer_norm in (None, has):
                yield FitRow(group=row.operator, card=row.card, works=row.works, seconds=row.seconds)

    return rows


_PRODUCT = ("half_intensity", "start", "quantized", "half_resident", "overlapped")
_OF_PRODUCT = ("bandwidth", *(f"product.{name}" for name in _PRODUCT))
_ELEMENTWISE = ("add", "mul", "div", "addu", "mulu", "divu", "relu", "gelu", "tanh")
SETS = {
    "matmul": FitSet(
        rows=_neusight("linear", "bmm"),
        kind="matmul",
        names=_OF_PRODUCT,
        cards=tuple(
            (card, "vector")
            for card in ("Tesla T4", "Tesla P4", "Tesla P100-PCIE-16GB", "NVIDIA A100-PCIE-40GB")
        ),
    ),
    "matmul tensor": FitSet(
        rows=_vidur(*_PRODUCTS),
        kind="matmul tensor",
        names=_OF_PRODUCT,
        cards=tuple((card, "tensor") for card in ("a100", "h100", "a40")),
    ),
    "elementwise": FitSet(
        rows=_neusight(*_ELEMENTWISE),
        kind="elementwise",
        names=("bandwidth",),
        cards=tuple((card, "memory") for card in ("Tesla T4", "Tesla P4", "Tesla P100-PCIE-16GB")),
    ),
    "softmax": FitSet(rows=_neusight("softmax"), kind="softmax", names=("bandwidth",)),
    "layer_norm": FitSet(rows=_neusight("ln"), kind="layer_norm", names=("bandwidth",)),
    "index": FitSet(
        rows=_vidur("emb"), kind="index", names=("bandwidth", "elements_per_clock", "least_seconds")
    ),
    "one by one": FitSet(
        rows=_vidur("attn_rope", "mlp_act"),
        kind="elementwise one_by_one",
        names=("bandwidth", "elements_per_clock", "least_seconds"),
    ),
    "norm one by one": FitSet(
        rows=_vidur("input_layernorm", "post_attention_layernorm", layer_norm=False),
        kind="layer_norm one_by_one",
        names=("bandwidth", "elements_per_clock", "least_seconds"),
    ),
}


class Fit:
    """One fit: from numbers to constants and shares, and how far the rows are from them."""

    def __init__(self, fit_set: FitSet, rows: Sequence[FitRow]) -> None:
        self._set = fit_set
        self._rows = rows
        self._cards = {row.card for row in rows}
        self._shares = [(card, which) for card, which in fit_set.cards if card in self._cards]
        known = constants().classes
        self._first = known.get(fit_set.kind) or known[fit_set.kind.split(" ")[0]]

    def start(self) -> list[float]:
        """The constants in use, and shares of 1: what is fitted is relative to what is in use."""
        values = dataclasses.asdict(self._first)
        found = [_at(values, name) for name in self._set.names]
        return [value or 1e-6 for value in found] + [1.0] * len(self._shares)

    def constants(self, numbers: Sequence[float]) -> tuple[Constants, Mapping[tuple[str, str], float]]:
        values = dict(zip(self._set.names, numbers, strict=False))
        product = self._first.product
        if product is not None:
            product = dataclasses.replace(
                product, **{n.removeprefix("product."): v for n, v in values.items() if "." in n}
            )
        changed = {name: value for name, value in values.items() if "." not in name}
        of_class: ClassConstants = dataclasses.replace(self._first, product=product, **changed)
        classes = {**constants().classes, self._set.kind: of_class}
        shares = dict(zip(self._shares, numbers[len(self._set.names) :], strict=True))
        return dataclasses.replace(constants(), classes=classes), shares

    def loss(self, numbers: Sequence[float]) -> float:
        if min(numbers) <= 0:
            return 10.0
        held = dict(zip(self._set.names, numbers, strict=False))
        if held.get("product.overlapped", 0) > 1 or held.get("product.quantized", 0) > 1.2:
            return 10.0
        by = defaultdict(list)
        for row, ratio in zip(self._rows, self.ratios(numbers, self._rows), strict=True):
            by[row.group, row.card].append(min(abs(math.log(ratio)), _CUT))
        return statistics.fmean(statistics.fmean(each) for each in by.values())

    def ratios(self, numbers: Sequence[float], rows: Sequence[FitRow]) -> list[float]:
        """Predicted over measured; a card that took no part has what its architecture has."""
        used, shares = self.constants(numbers)
        for card in {row.card for row in rows} - self._cards:
            shares = {**shares, **_as_unseen(card)}
        costs = {
            card: Costs(_with(cards.speeds(card), card, shares), used) for card in {r.card for r in rows}
        }
        return [(device_seconds(row.works, costs[row.card]) + row.beside) / row.seconds for row in rows]

    def found(self, most_evaluations: int) -> Sequence[float]:
        start = np.array(self.start())
        result = minimize(
            lambda relative: self.loss(list(start * relative)),
            np.ones(len(start)),
            method="Nelder-Mead",
            options={
                "maxfev": most_evaluations,
                "initial_simplex": np.vstack(
                    [np.ones(len(start)), np.ones((len(start),) * 2) - 0.25 * np.eye(len(start))]
                ),
                "xatol": 1e-3,
                "fatol": 1e-5,
            },
        )
        return [float(value) for value in start * result.x]


def _at(values: Mapping[str, object], name: str) -> float:
    for part in name.split("."):
        values = values[part]  # type: ignore[assignment]
    return float(values)  # type: ignore[arg-type]


def _as_unseen(card: str) -> dict[tuple[str, str], float]:
    """What takes a card's own shares back."""
    speeds = cards.speeds(card)
    own, usual = (sustained(name, speeds.architecture) for name in (speeds.name, ""))
    return {(card, which): usual[which] / own[which] for which in own}


def _with(speeds: Speeds, card: str, shares: Mapping[tuple[str, str], float]) -> Speeds:
    """A card that keeps up other shares of what it does now."""
    vector, tensor, memory = (shares.get((card, which), 1.0) for which in ("vector", "tensor", "memory"))
    flops = {dtype: each * (vector if dtype == "float32" else tensor) for dtype, each in speeds.flops.items()}
    return dataclasses.replace(
        speeds, flops=flops, vector_flops=speeds.vector_flops * vector, bandwidth=speeds.bandwidth * memory
    )


def sample(rows: Sequence[FitRow]) -> list[FitRow]:
    """As many rows of each operator and card, evenly over their times."""
    by = defaultdict(list)
    for row in rows:
        by[row.group, row.card].append(row)
    kept = []
    for _, members in sorted(by.items()):
        members.sort(key=lambda row: row.seconds)
        places = np.linspace(0, len(members) - 1, min(len(members), _ROWS_OF_A_GROUP)).round().astype(int)
        kept += [members[place] for place in places]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=SETS, help="which constants")
    parser.add_argument("--leave", action="append", default=[], help="a card to leave out, or `each`")
    parser.add_argument(
        "--evaluations", type=int, default=_EVALUATIONS, help=f"of the loss, at most [{_EVALUATIONS}]"
    )
    arguments = parser.parse_args()
    fit_set = SETS[arguments.set]
    rows = sample(list(fit_set.rows()))
    every = sorted({row.card for row in rows})
    left_out = every if arguments.leave == ["each"] else arguments.leave
    if not left_out:
        _print(fit_set, Fit(fit_set, rows), rows, arguments.evaluations)
    for card in left_out:
        print(f"without {card}")
        kept = [row for row in rows if row.card != card]
        scored = [row for row in rows if row.card == card]
        _print(fit_set, Fit(fit_set, kept), scored, arguments.evaluations)


def _print(fit_set: FitSet, fit: Fit, scored: Sequence[FitRow], most_evaluations: int) -> None:
    numbers = fit.found(most_evaluations)
    print(f"  loss {fit.loss(numbers):.4f}, before {fit.loss(fit.start()):.4f}")
    for name, value in zip(fit_set.names, numbers, strict=False):
        print(f"  {name} = {value:.4g}")
    for (card, which), share in fit.constants(numbers)[1].items():
        print(f"  {card}: {which} × {share:.3f}")
    by = defaultdict(list)
    for row, ratio in zip(scored, fit.ratios(numbers, scored), strict=True):
        by[row.group, row.card].append(ratio)
    for (group, card), ratios in sorted(by.items()):
        errors = sorted(abs(ratio - 1) for ratio in ratios)
        print(
            f"  {group:24} {card:24} {statistics.median(errors):6.1%} {errors[int(0.9 * len(errors))]:6.1%}"
            f" bias {statistics.median(ratios) - 1:+6.1%}"
        )


if __name__ == "__main__":
    main()
