"""Fits the constants of convolutions, norms and copies on timm's training steps, and scores them.

    python tests/bench/time/fit_steps.py               print constants.toml's lines, fitted on all rows
    python tests/bench/time/fit_steps.py --folds 6     and how families fare that were left out of the fit

Forward passes of the same PyTorch, of networks with grouped convolutions in channels last, have a part in the
fit: a step alone does not tell how long the passes of a convolution take. They are not scored.

A step's seconds are the sum of its kernels' (large batches: the device decides). Kernels of classes that have
tables of their own keep their constants; the others' are found by least squares of log(predicted / measured),
softened for rows that are far off, and drawn towards where they start. The forms are those of
`autofit_workers.replay.time.costs`, of all kernels of a class at once.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, sparse

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.constants import constants  # noqa: E402
from autofit_workers.replay.time.costs import Costs  # noqa: E402
from autofit_workers.replay.time.kernels import Kernel, KernelClass, Product, kernels_of  # noqa: E402
from autofit_workers.replay.time.products import SPLITS, TILES  # noqa: E402
from autofit_workers.replay.time.tiles import tiles_of  # noqa: E402
from autofit_workers.spec.work import WorkCall  # noqa: E402
from tests.bench import libraries  # noqa: E402
from tests.bench.tables.folder import DEFAULT_TABLES  # noqa: E402
from tests.bench.time import cards, timm_steps  # noqa: E402
from tests.bench.time.timm_steps import TimedRow  # noqa: E402
from tests.bench.time.works import Works  # noqa: E402

CARD = "rtx-3090"
FIXED = (KernelClass.LAYER_NORM, KernelClass.SOFTMAX, KernelClass.INDEX, KernelClass.ATTENTION)
_PRODUCTS = ("matmul", "convolution")
_QUANTIZED = {"matmul": 0.64}
_BANDWIDTHS = {"matmul": 0.8, "elementwise": 0.87, "copy": 0.8, "reorder": 0.5}
_OF_CONVOLUTIONS = {"depthwise_convolution": 0.4, "grouped_convolution": 0.4}
_HIGHEST = {"bandwidth": 1.0, "copied": 1.0, "vector": 1.2, "efficiency": 1.5, "most": 0.9, "overlapped": 1.0}
# Groups that cuDNN 8 has kernels of their width for: their channels, and what their number is a multiple of.
_OWN = {
    "fprop channels_last": ((4, 8, 32), 2),
    "backward channels_last": ((4, 8, 16, 32), 8),
    "wide backward channels_last": ((), 1),
    "contiguous": ((4, 8, 16, 24, 32, 48, 64), 8),
}
_EVALUATIONS = 16
_SOFT = 0.06  # from this error on a row counts less
_PRIOR_WEIGHT = 0.03
_RESIDENT = 32768


class Rows:
    """Rows with the kernels of their steps, each different kernel once.

    Args:
        rows: with the work of each.
    """

    def __init__(self, rows: Sequence[tuple[TimedRow, Sequence[WorkCall]]]) -> None:
        self.rows = [row for row, _ in rows]
        self.measured = np.array([row.step_seconds for row in self.rows])
        numbers: dict[Kernel, int] = {}
        entries = []
        for place, (_, calls) in enumerate(rows):
            times: Counter[Kernel] = Counter()
            for work, times_called in Counter(call.work for call in calls).items():
                for kernel in kernels_of(work, allow_tf32=True):
                    times[kernel] += times_called
            entries += [(place, numbers.setdefault(each, len(numbers)), n) for each, n in times.items()]
        self.kernels = list(numbers)
        where, which, times_run = zip(*entries, strict=True)
        self.times = sparse.csr_matrix((times_run, (where, which)), shape=(len(rows), len(numbers)))
        self.moved = np.array([each.moved_bytes for each in self.kernels], float)
        self.copied = np.array([each.copied_bytes for each in self.kernels], float)
        self.launches = np.array([each.num_launches for each in self.kernels], float)
        products = [each.product or Product(0, 0, 0, 0) for each in self.kernels]
        sides = np.array([(each.m, each.n, each.k, each.batch) for each in products], float)
        self.m, self.n, self.k, self.batch = sides.T
        self.names = np.array([class_name(each) for each in self.kernels])
        self.taps = np.array([max(each.num_taps, 1) for each in self.kernels], float)
        self.is_dilated = np.array([each.is_dilated for each in self.kernels])
        self.is_strided = np.array([each.is_strided for each in self.kernels])


def class_name(kernel: Kernel) -> str:
    """What constants are named by."""
    return f"{kernel.kind} {kernel.variant}".strip()


class Model:
    """The seconds of rows as a function of constants, of which all are logarithms.

    Attributes:
        names: of the constants, `CLASS|CONSTANT`.
        start: where the fit begins.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._speeds = cards.speeds(CARD)
        costs = Costs(self._speeds, constants(), allow_tf32=True, of_pytorch_1=True)
        is_fixed = [k.kind in FIXED or "one_by_one" in k.variant for k in rows.kernels]
        fixed = zip(rows.kernels, is_fixed, strict=True)
        self._fixed = np.array([costs.seconds(kernel) if keeps else 0.0 for kernel, keeps in fixed])
        self._is_fixed = np.array(is_fixed)
        self.classes = sorted(set(rows.names[~self._is_fixed]))
        self._places = {name: np.flatnonzero(rows.names == name) for name in self.classes}
        self._flops = np.array([self._speeds.product_flops(each.dtype) for each in rows.kernels])
        self._known: dict[str, tuple[Any, Any]] = {}
        started = dict(self._starts())
        self.names = list(started)
        self.start = np.log([value for value, _ in started.values()])
        self._spread = np.array([spread for _, spread in started.values()])

    def _starts(self) -> Any:
        """Each constant with where it begins, and how far from there it may go."""
        for name in self.classes:
            kind, *variant = name.split()
            known = _BANDWIDTHS | _OF_CONVOLUTIONS
            yield f"{name}|bandwidth", (known.get(kind, 0.7), 0.6)
            if self._rows.copied[self._places[name]].any():
                yield f"{name}|copied", (0.7, 0.6)
            if kind in _PRODUCTS:
                yield f"{name}|efficiency", ((0.88, 0.2) if kind == "matmul" else (0.8, 0.6))
            if kind == "grouped_convolution":
                yield f"{name}|rate", (0.02, 1.0)
                yield f"{name}|most", (0.5, 0.5)
                yield f"{name}|width_power", ((1.0, 0.1) if "wide" in name else (0.5, 0.5))
                if "contiguous" in name:
                    yield f"{name}|groups_power", (0.5, 0.5)
                else:
                    yield f"{name}|strided", (0.5, 1.0)
                if self._own_of(name)[0]:
                    yield f"{name}|own", (2.0, 1.0)
            if kind == "depthwise_convolution":
                yield f"{name}|vector", (0.3, 0.6)
                yield f"{name}|taps_power", (0.1, 1.0)
            del variant
        tight, loose = 0.1, 0.7
        yield "matmul|half_intensity", (3.8, tight)
        yield "matmul|start", (92.0, tight)
        yield "matmul|half_resident", (6000.0, tight)
        yield "matmul|overlapped", (0.75, tight)
        yield "convolution|half_intensity", (5.0, loose)
        yield "convolution|start", (30.0, loose)
        yield "convolution|half_resident", (4000.0, loose)
        yield "convolution|overlapped", (0.6, 0.3)
        yield "|launch", (self._speeds.launch_seconds, 0.5)

    def _own_of(self, name: str) -> tuple[tuple[int, ...], int]:
        """Channels of groups with kernels of their own, and what the number of groups is a multiple of."""
        return _OWN[name.partition(" ")[2]]

    def seconds(self, point: Any) -> Any:
        """Of each different kernel."""
        values = dict(zip(self.names, np.exp(point), strict=True))
        seconds = self._rows.launches * values["|launch"]
        for name in self.classes:
            kind = name.split()[0]
            of = {key: value for key, value in values.items() if key.split("|")[0] in (name, kind)}
            known = self._known.get(name)
            if known is None or known[0] != of:
                own = {key.split("|")[1]: value for key, value in of.items()}
                known = self._known[name] = (of, self._of_class(name, own))
            seconds[self._places[name]] += known[1]
        return np.where(self._is_fixed, self._fixed, seconds)

    def _of_class(self, name: str, of: dict[str, float]) -> Any:
        rows, places, bandwidth = self._rows, self._places[name], self._speeds.bandwidth
        m, n, k, batch = rows.m[places], rows.n[places], rows.k[places], rows.batch[places]
        flops = 2 * m * n * k * batch
        moved = rows.moved[places] / (bandwidth * of["bandwidth"])
        arithmetic, overlapped = np.zeros(len(places)), 1.0
        if "vector" in of:
            taps = np.maximum(np.where(m < k, n, k), 1)
            arithmetic = flops / (self._speeds.vector_flops * of["vector"] * (9 / taps) ** of["taps_power"])
        elif "rate" in of:
            width = np.minimum(m, n)
            share = of["rate"] * width ** of["width_power"] * batch ** of.get("groups_power", 0.0)
            if "wide" in name:  # as long for each element, whatever the filter
                share *= rows.taps[places] / 9
            widths, multiple = self._own_of(name)
            has_own = np.isin(width, widths) & (batch % multiple == 0) & ~rows.is_dilated[places]
            strided = np.where(rows.is_strided[places], of.get("strided", 1.0), 1.0)
            share *= np.where(has_own, of.get("own", 1.0), strided)
            share = np.minimum(share, of["most"])
            arithmetic = flops / (self._flops[places] * share)
        elif "efficiency" in of:
            kind = name.split(maxsplit=1)[0]
            tiles = TILES
            if kind == "matmul":
                tiles = tiles_of("float16", self._speeds.architecture, is_batched="batched" in name)
            sides = (m, n, k, batch)
            arithmetic = self._product(sides, self._flops[places], tiles, of, _QUANTIZED.get(kind, 1.0))
            overlapped = min(of["overlapped"], 1.0)
        shorter = np.minimum(moved, arithmetic)
        seconds = np.maximum(moved, arithmetic) + (1 - overlapped) * shorter
        return seconds + (rows.copied[places] / (bandwidth * of["copied"]) if "copied" in of else 0.0)

    def _product(self, sides: Any, flops: Any, tiles: Any, of: dict[str, float], quantized: float) -> Any:
        """`autofit_workers.replay.time.products.product_seconds` of many products."""
        m, n, k, batch = sides
        units = self._speeds.num_units
        best = np.full(m.shape, np.inf)
        longest, to_add = np.maximum(1, k // 64), 4 * m * n * batch / self._speeds.bandwidth
        for width, height in tiles:
            num_tiles = np.ceil(m / height) * np.ceil(n / width) * batch
            intensity = height * width / (height + width)
            rate = flops * of["efficiency"] / units * intensity / (intensity + of["half_intensity"])
            for split in SPLITS:
                fits = (split <= longest) & (num_tiles * split <= 8 * units) if split > 1 else m >= 0
                whole = np.ceil(num_tiles * split / units)
                filled = quantized * whole + (1 - quantized) * np.maximum(num_tiles * split / units, 1.0)
                seconds = filled * 2 * height * width / rate * (k / split + of["start"])
                resident, half = np.minimum(whole * height * width, _RESIDENT), of["half_resident"]
                seconds /= resident / (resident + half) * (_RESIDENT + half) / _RESIDENT
                seconds += (split + 1) * to_add if split > 1 else 0.0
                best = np.where(fits, np.minimum(best, seconds), best)
        return best

    def predicted(self, point: Any) -> Any:
        """Seconds of each row."""
        return self._rows.times @ self.seconds(point)

    def fitted(self, rows: Any = slice(None)) -> Any:
        """The constants that suit rows best."""
        measured = np.log(self._rows.measured[rows])
        highest = np.array(
            [
                math.log(_HIGHEST.get(n.split("|")[1], np.exp(s + 2.5)))
                for n, s in zip(self.names, self.start, strict=True)
            ]
        )
        lowest = np.minimum(self.start, highest) - 3.0

        def residuals(point: Any) -> Any:
            error = np.log(self.predicted(point)[rows]) - measured
            soft = np.sign(error) * _SOFT * np.sqrt(2 * (np.sqrt(1 + (error / _SOFT) ** 2) - 1))
            return np.concatenate([soft, _PRIOR_WEIGHT * (point - self.start) / self._spread])

        start = np.clip(self.start, lowest + 1e-3, highest - 1e-3)
        found = optimize.least_squares(
            residuals,
            start,
            bounds=(lowest, highest),
            diff_step=0.02,
            max_nfev=_EVALUATIONS,
            ftol=1e-4,
            xtol=1e-4,
        )
        return found.x


def left_out(model: Model, rows: Rows, num_folds: int) -> Any:
    """log(predicted / measured) of each row, by constants that its family had no part in."""
    families = sorted({row.family for row in rows.rows})
    random.Random(0).shuffle(families)
    fold_of = {family: number % num_folds for number, family in enumerate(families)}
    folds = np.array([fold_of[row.family] for row in rows.rows])
    errors = np.zeros(len(rows.rows))
    for fold in range(num_folds):
        point = model.fitted(np.flatnonzero(folds != fold))
        held = folds == fold
        errors[held] = np.log(model.predicted(point)[held] / rows.measured[held])
    return errors


def layouts_chosen(scored: Sequence[tuple[TimedRow, float]]) -> str:
    """How often the faster of two layouts is found where they differ enough, and what the choice costs."""
    pairs: defaultdict[Any, dict[str, tuple[float, float]]] = defaultdict(dict)
    for row, error in scored:
        real = row.step_seconds / row.batch_size
        pairs[row.model, row.setting.image_size][row.layout] = (real, real * math.exp(error))
    both = [each for each in pairs.values() if len(each) > 1]
    chosen = [
        min(each.values(), key=lambda times: times[1])[0] / min(t[0] for t in each.values()) for each in both
    ]
    apart = [max(t[0] for t in each.values()) / min(t[0] for t in each.values()) > 1.1 for each in both]
    right = [ratio == 1.0 for ratio, counts in zip(chosen, apart, strict=True) if counts]
    return (
        f"layouts: {statistics.mean(right):.1%} of {len(right)} pairs that differ by more than 10 % right, "
        f"mean regret {statistics.mean(chosen) - 1:.2%} of {len(chosen)}"
    )


def traced(rows: Sequence[TimedRow]) -> Iterator[tuple[TimedRow, Sequence[WorkCall]]]:
    """Rows with the work of their steps, without those that cannot be traced."""
    works = Works()
    for row in rows:
        if row.setting.release:
            libraries.install(row.setting.release)
        calls = works.of(row.setting, row.batch_size)
        if not isinstance(calls, str):
            yield row, calls


def has_groups(calls: Sequence[WorkCall]) -> bool:
    """Whether there are convolutions in groups of more than a channel."""
    return any(
        each.groups > 1 and each.weight_shape[1] > 1 for call in calls for each in call.work.convolutions
    )


def parsed_arguments(description: str | None) -> argparse.Namespace:
    """Arguments of a fit to rows of timm: the tables' folder, the parts to leave out, the models."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=DEFAULT_TABLES, help="where the tables are")
    parser.add_argument("--folds", type=int, default=0, help="leave families out, in so many parts")
    parser.add_argument("--model", action="append", help="repeatable; default: all")
    return parser.parse_args()


def main() -> None:
    arguments = parsed_arguments(__doc__)
    steps = timm_steps.read(arguments.folder, mode="train", card=CARD, torch_release="1.12")
    passes = timm_steps.read(arguments.folder, mode="infer", card=CARD, torch_release="1.12", layout="nhwc")
    read = [row for row in steps + passes if row.model in (arguments.model or [row.model])]
    rows = Rows([(row, calls) for row, calls in traced(read) if row in steps or has_groups(calls)])
    model = Model(rows)
    for name, value in zip(model.names, np.exp(model.fitted()), strict=True):
        print(f"{name:50} {value:.3g}")
    if arguments.folds:
        errors = left_out(model, rows, arguments.folds)
        scored = [(r, e) for r, e in zip(rows.rows, errors, strict=True) if r.setting.mode == "train"]
        for layout in ("nchw", "nhwc", ""):
            of = [abs(math.expm1(e)) for r, e in scored if layout in r.layout]
            median, ninth = statistics.median(of), np.quantile(of, 0.9)
            print(f"{layout or 'all':5} median {median:.1%}, p90 {ninth:.1%}, {len(of)} rows")
        print(layouts_chosen(scored))


if __name__ == "__main__":
    main()
