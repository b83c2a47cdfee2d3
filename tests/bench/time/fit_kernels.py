"""Fits rates of tensor cores, attention and links on NVIDIA's wheel: `fit_kernels.py products`.

Prints lines for constants.toml and links.toml, and how near the constants come to the rows that they are
fitted on, to rows of the same cards whose shapes had no part (a fifth), and to cards that are never fitted.
The forms are those of `autofit_workers.replay.time`, of all rows at once; least squares of log(predicted /
measured), softened for rows that are far off. `kernel_rows.py` scores what the product makes of the
constants. Wants pyarrow and scipy.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.products import SPLITS, TILES  # noqa: E402
from autofit_workers.replay.time.speeds import Speeds  # noqa: E402
from tests.bench.time import cards, wheel  # noqa: E402
from tests.bench.time.wheel import KernelRow  # noqa: E402

_RESIDENT = 32768
_SOFT = 0.1
_FOLDS = 5
Values = Mapping[str, float]
GENERATIONS = {
    "a100_sxm": "ampere tensor",
    "h100_sxm": "hopper tensor",
    "b200_sxm": "blackwell tensor",
    "rtx_pro_6000_server": "small blackwell tensor",
}
_LIKE = {"h200_sxm": "h100_sxm", "l40s": "rtx_pro_6000_server"} | dict.fromkeys(
    ("gb200", "b300_sxm", "gb300"), "b200_sxm"
)
_NO_LIMIT = 50.0
# Where each fit begins, and the largest value of what is a share.
_PRODUCT = {
    "efficiency": 0.85, "half_intensity": 4.0, "start": 150.0, "half_resident": 4000.0, "overlapped": 0.8,
    "bandwidth": 0.85, "launch": 1.5e-6, "wave_seconds": 3e-7, "split_seconds": 2.5e-6, "kept": 0.05,
    "fill_seconds": 5e-7,
}  # fmt: skip
_FLOAT8 = ("efficiency", "half_intensity", "start", "half_resident", "overlapped", "bandwidth")
_FIXED = {"quantized": 0.55, "kept_per_clock": 8.0}
_PROMPT = {
    "efficiency": 0.6, "softmax": 1.5, "start": 1e-6, "tail": 0.5, "overlapped": 0.8, "bandwidth": 0.7,
    "launch": 4e-6,
}  # fmt: skip
_DECODE = {
    "block": 3e-7, "softmax": 3e-7, "start": 1e-6, "split": 2e-6, "overlapped": 0.8, "bandwidth": 0.85,
    "launch": 4e-6, "kept": 0.3, "kept_per_clock": 16.0,
}  # fmt: skip
# Queries of a tile: the best of 64, 128 and 256 on each fitted card.
_TILES = {"a100_sxm": 128, "h100_sxm": 128, "b200_sxm": 256, "rtx_pro_6000_server": 64}
_MOST = {"efficiency": 1.2, "overlapped": 1.0, "bandwidth": 1.05, "tail": 2.0, "kept": 1.1}


class Rows:
    """Rows of one card as columns of numbers."""

    def __init__(self, system: str, rows: Sequence[KernelRow]) -> None:
        self.system = system
        self.speeds: Speeds = cards.speeds(system)
        self.rows = list(rows)
        self.measured = np.array([row.seconds for row in rows])
        self.columns = np.array([row.shape for row in rows], float).T
        self.beside = np.array([wheel.beside_seconds(row) for row in rows])

    def part(self, keep: Any) -> Rows:
        return Rows(self.system, [row for row, kept in zip(self.rows, keep, strict=True) if kept])

    @property
    def is_held(self) -> Any:
        """Whether each row's shape has no part in a fit."""
        return np.array([hash(row.shape) % _FOLDS == 0 for row in self.rows])


def traffic(of: Values, speeds: Speeds, moved: Any) -> Any:
    """Seconds of memory traffic of kernels that run again and again on the same operands."""
    bandwidth = speeds.bandwidth * of["bandwidth"]
    found = np.zeros_like(moved)
    if of.get("kept"):
        found = np.clip(2 - moved / (of["kept"] * speeds.cache_bytes), 0.0, 1.0)
    fast = max(bandwidth, of.get("kept_per_clock", 0.0) * speeds.num_units * speeds.clock)
    return (1 - found) * (moved / bandwidth + of.get("fill_seconds", 0.0)) + found * moved / fast


def product_seconds(of: Values, rows: Rows, dtype: str) -> Any:
    """`products.product_seconds` of many products, with traffic and launches."""
    speeds, (m, n, k) = rows.speeds, rows.columns
    element = 1 if dtype.startswith("float8") else 2
    by_unit = speeds.rated_flops(dtype) * of["efficiency"] / speeds.num_units
    best = np.full(m.shape, np.inf)
    to_add = 4 * m * n / speeds.bandwidth
    longest = np.maximum(1, k // 64)
    for width, height in TILES:
        tiles = np.ceil(m / height) * np.ceil(n / width)
        intensity = height * width / (height + width)
        of_one = 2 * height * width / (by_unit * intensity / (intensity + of["half_intensity"]))
        for split in SPLITS:
            fits = (split <= longest) & (tiles * split <= 8 * speeds.num_units) if split > 1 else m > 0
            waves = tiles * split / speeds.num_units
            whole = np.ceil(waves)
            seconds = of["quantized"] * whole + (1 - of["quantized"]) * np.maximum(waves, 1)
            seconds = seconds * (of_one * (k / split + of["start"]) + of["wave_seconds"])
            resident, half = np.minimum(whole * height * width, _RESIDENT), of["half_resident"]
            seconds = seconds / (resident / (resident + half) * (_RESIDENT + half) / _RESIDENT)
            if split > 1:
                seconds = seconds + (split + 1) * to_add + of["split_seconds"]
            best = np.where(fits, np.minimum(best, seconds), best)
    return _together(of, best, traffic(of, speeds, element * (m * k + k * n) + 2.0 * m * n)) + rows.beside


def _together(of: Values, arithmetic: Any, moved: Any) -> Any:
    shorter = np.minimum(arithmetic, moved)
    return np.maximum(arithmetic, moved) + (1 - of["overlapped"]) * shorter + of["launch"]


def prompt_seconds(of: Values, rows: Rows) -> Any:
    """`attention.PromptConstants.seconds` of many prompts, with traffic and launches."""
    speeds, (batch, queries, _, heads, kv_heads, width, window) = rows.speeds, rows.columns
    side = np.where(queries <= of["rows"] / 2, of["rows"] / 2, of["rows"])
    tiles, every = np.ceil(queries / side), np.ceil(queries / 128)
    is_short = (window > 0) & (window < queries)
    most = np.where(is_short, np.minimum(every, np.ceil(window / 128) + 1), every)
    # A tile of a causal prompt goes through the keys before its end, those of a window at most.
    ends = np.arange(1, int(tiles.max()) + 1)
    of_tiles = np.minimum(np.ceil(ends * side[:, None] / 128), most[:, None])
    blocks = np.where(ends <= tiles[:, None], of_tiles, 0).sum(axis=1)
    of_products = 4 * width * speeds.num_units / (speeds.rated_flops("bfloat16") * of["efficiency"])
    of_block = side * 128 * (of_products + of["softmax"] / 100 / (speeds.clock * speeds.exponentials))
    slowest, num_tiles = most * of_block + of["start"], batch * heads * tiles
    waves = num_tiles / speeds.num_units
    evenly = (batch * heads * blocks * of_block + num_tiles * of["start"]) / speeds.num_units
    seconds = np.maximum(evenly + of["tail"] * slowest * (np.ceil(waves) - waves) / 2, slowest)
    moved = 4.0 * batch * queries * width * (heads + kv_heads)
    return _together(of, seconds, traffic(of, speeds, moved))


def decode_seconds(of: Values, rows: Rows) -> Any:
    """`attention.DecodeConstants.seconds` of many single queries, with traffic and launches."""
    speeds, (batch, _, keys, heads, kv_heads, width, window) = rows.speeds, rows.columns
    seen = np.where(window > 0, np.minimum(keys, window), keys)
    is_older = "cudnn" not in rows.rows[0].work.operator
    sharing = heads / kv_heads
    tiles = batch * kv_heads * np.where((window > 0) & is_older, sharing, np.ceil(sharing / 64))
    blocks = np.ceil(seen / 128)
    of_block = of["block"] * width / 128 + of["softmax"]
    best = np.full(batch.shape, np.inf)
    for split in (1, 2, 4, 8, 16, 32, 64, 128):
        waves = np.ceil(tiles * split / (2 * speeds.num_units))
        seconds = waves * (np.ceil(blocks / split) * of_block + of["start"]) + (
            of["split"] if split > 1 else 0.0
        )
        best = np.where((split == 1) | (split <= blocks), np.minimum(best, seconds), best)
    return _together(of, best, traffic(of, speeds, 4.0 * batch * width * (heads + seen * kv_heads)))


def fitted(
    seconds: Callable[[Values, Rows], Any], rows: Rows, start: Values, fixed: Values, most_steps: int
) -> dict[str, float]:
    """The constants that suit rows best, of those that `start` names."""
    names = list(start)
    highest = np.log([_MOST.get(name, start[name] * _NO_LIMIT) for name in names])
    first = np.minimum(np.log([start[name] for name in names]), highest - 1e-3)
    measured = np.log(rows.measured)

    def residuals(point: Any) -> Any:
        error = np.log(seconds({**fixed, **dict(zip(names, np.exp(point), strict=True))}, rows)) - measured
        return np.sign(error) * _SOFT * np.sqrt(2 * (np.sqrt(1 + (error / _SOFT) ** 2) - 1))

    found = optimize.least_squares(
        residuals, first, bounds=(first - math.log(_NO_LIMIT), highest), diff_step=0.02, max_nfev=most_steps
    )
    return {**fixed, **dict(zip(names, map(float, np.exp(found.x)), strict=True))}


def _said(predicted: Any, rows: Rows) -> str:
    ratio = predicted / rows.measured
    off = np.abs(ratio - 1)
    return (
        f"{len(off)} rows {np.median(off):.1%}, {np.quantile(off, 0.9):.1%}, bias {np.median(ratio) - 1:+.1%}"
    )


def _line(name: str, of: Values, part: str) -> str:
    own = ("bandwidth", "launch", "fill_seconds", "kept", "kept_per_clock")
    plain = ", ".join(f"{key} = {of[key]:.3g}" for key in own if key in of)
    inner = ", ".join(f"{key} = {value:.3g}" for key, value in of.items() if key not in own)
    return f'"{name}" = {{ is_rated = true, {plain}, {part} = {{ {inner} }} }}'


def _fit_kind(  # noqa: PLR0917 - all of one fit
    name: str, part: str, seconds: Callable[[Values, Rows], Any], tables: Mapping[str, Rows],
    starts: Mapping[str, Values], fixed: Mapping[str, Values], most_steps: int,
) -> Iterator[str]:  # fmt: skip
    found = {}
    for system, generation in GENERATIONS.items():
        if system not in tables or not tables[system].rows:
            continue
        rows = tables[system]
        held = rows.is_held
        if held.all():
            held = ~held  # too few to hold any back
        found[system] = fitted(seconds, rows.part(~held), starts[system], fixed[system], most_steps)
        yield _line(name.format(generation), found[system], part)
        for words, keep in (("fitted", ~held), ("shapes without a part", held)):
            some = rows.part(keep)
            if some.rows:
                yield f"#   {system}, {words}: {_said(seconds(found[system], some), some)}"
    for system, like in _LIKE.items():
        if system in tables and like in found and tables[system].rows:
            yield f"#   {system}, never fitted: {_said(seconds(found[like], tables[system]), tables[system])}"


def fit_products(folder: Path, most: int, most_steps: int) -> Iterator[str]:
    every = {system: wheel.products(folder, system, most) for system in (*wheel.FITTED, *_LIKE)}
    tables = {
        dtype: {system: Rows(system, [r for r in rows if r.group == dtype]) for system, rows in every.items()}
        for dtype in ("bfloat16", "fp8")
    }
    plain = tables["bfloat16"]
    starts, nothing = dict.fromkeys(GENERATIONS, _PRODUCT), dict.fromkeys(GENERATIONS, _FIXED)
    in_16, in_8 = (functools.partial(product_seconds, dtype=each) for each in ("bfloat16", "float8_e4m3fn"))
    of_plain = {
        s: fitted(in_16, plain[s], _PRODUCT, _FIXED, most_steps) for s in GENERATIONS if plain[s].rows
    }
    yield from _fit_kind("matmul {}", "product", in_16, plain, starts, nothing, most_steps)
    starts8 = {s: {key: of_plain[s][key] for key in _FLOAT8} for s in of_plain}
    fixed8 = {s: {key: v for key, v in of_plain[s].items() if key not in _FLOAT8} for s in of_plain}
    yield from _fit_kind("matmul {} of fp8", "product", in_8, tables["fp8"], starts8, fixed8, most_steps)


def fit_attention(folder: Path, most: int, most_steps: int) -> Iterator[str]:
    every = {system: wheel.attention(folder, system, most) for system in (*wheel.FITTED, *_LIKE)}
    for kind, part, seconds, start in (
        ("context", "prompt", prompt_seconds, _PROMPT),
        ("generation", "decode", decode_seconds, _DECODE),
    ):
        tables = {system: Rows(system, [r for r in rows if r.kind == kind]) for system, rows in every.items()}
        starts = dict.fromkeys(GENERATIONS, start)
        fixed: dict[str, Values] = {s: {"rows": _TILES[s]} if kind == "context" else {} for s in GENERATIONS}
        variant = "forward" if kind == "context" else "decode"
        yield from _fit_kind(f"attention {{}} {variant}", part, seconds, tables, starts, fixed, most_steps)


_FAMILIES = {
    "all_reduce": ("all_reduce",),
    "gather": ("all_gather", "reduce_scatter"),
    "to_all": ("alltoall",),
}
_LINKS = {"a100_sxm": "nvlink3", "h100_sxm": "nvlink4", "b200_sxm": "nvlink5", "rtx_pro_6000_server": "pcie5"}
_SMALL_BYTES, _SMALL_WEIGHT = 1_000_000, 0.5


def collective_seconds(point: Any, rows: Rows, is_reduced: bool) -> Any:
    """`collectives.Network.seconds` of many collectives: the quickest of three protocols."""
    n, num_bytes = rows.columns
    times = 2 if is_reduced else 1
    *protocols, fewer = point
    on_link = times * (n - 1) / n * num_bytes * (1 + fewer / n**2)
    each = np.exp(np.array(protocols)).reshape(-1, 3)
    quickest = np.min([start + times * (n - 1) * hop + on_link / bus for start, hop, bus in each], axis=0)
    return quickest + rows.speeds.launch_seconds


def fit_collectives(folder: Path, most: int, most_steps: int) -> Iterator[str]:
    every = {system: wheel.collectives(folder, system, 10**9) for system in (*wheel.FITTED, *_LIKE)}
    for system, link in _LINKS.items():
        for family, operations in _FAMILIES.items():
            rows = Rows(system, [row for row in every[system] if row.group in operations])
            weights = np.where(rows.columns[1] >= _SMALL_BYTES, 1.0, _SMALL_WEIGHT)
            highest = 5e10 if link.startswith("pcie") else 1.2e12
            bounds = [
                (3e-6, 4e-5), (1e-8, 4e-6), (1e9, highest), (5e-6, 1e-4), (1e-8, 1e-5), (5e9, highest),
                (1e-5, 4e-4), (1e-8, 3e-5), (1e10, highest),
            ]  # fmt: skip

            def loss(point: Any, rows: Rows = rows, weights: Any = weights, family: str = family) -> float:
                error = np.log(collective_seconds(point, rows, family == "all_reduce") / rows.measured)
                return float(np.sum(weights * np.minimum(np.abs(error), 0.5)) / np.sum(weights))

            found = optimize.differential_evolution(
                loss, [*((math.log(a), math.log(b)) for a, b in bounds), (-1.0, 2.6)],
                seed=0, maxiter=most_steps, popsize=10, tol=1e-8,
            ).x  # fmt: skip
            yield f"[links.{link}.{family}]  # fewer_ranks = {found[-1]:.3g}"
            for start, hop, bus in np.exp(found[:-1]).reshape(-1, 3):
                yield f"  {{ start = {start:.3g}, hop = {hop:.3g}, bus = {bus:.3g} }},"
            for other in (system, *(each for each, like in _LIKE.items() if like == system)):
                of = [r for r in every[other] if r.group in operations and r.num_bytes >= _SMALL_BYTES]
                large = Rows(other, of)
                said = _said(collective_seconds(found, large, family == "all_reduce"), large)
                yield f"#   {other} from 1 MB: {said}"


FITS = {"products": fit_products, "attention": fit_attention, "collectives": fit_collectives}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fit", choices=FITS, help="which constants")
    parser.add_argument("--wheel", type=Path, help="folder of the unpacked wheel; default: it is downloaded")
    parser.add_argument(
        "--rows", type=int, default=4000, help="at most so many of each card and group [4000]"
    )
    parser.add_argument(
        "--steps", type=int, default=40, help="at most so many of a fit; of collectives 350 [40]"
    )
    given = parser.parse_args()
    for line in FITS[given.fit](wheel.unpacked(given.wheel), given.rows, given.steps):
        print(line, flush=True)


if __name__ == "__main__":
    main()
