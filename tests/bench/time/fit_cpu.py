"""Fits the constants of CPUs: `python tests/bench/time/fit_cpu.py RUNS.jsonl … [--write]`.

First each class of operators on what its operators took, then all classes together on the steps, which holds
what operators cost each other. A file of runs, one in each line, is measured where it is missing; the speeds
of the CPU are the medians of each file. Prints what is left of each workload by constants it had no part in.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit_workers.replay.time.lines import StepWork, WorkLines  # noqa: E402
from autofit_workers.replay.time.step import clocked  # noqa: E402
from tests.bench.scoring import quantile  # noqa: E402
from tests.bench.time.cpu_costs import CpuConstants, CpuCosts, CpuSpeeds, Demand, demand_of  # noqa: E402
from tests.bench.time.cpu_runs import Run, median_speeds, runs  # noqa: E402
from tests.bench.time.cpu_steps import PRECISIONS, work_lines  # noqa: E402
from tests.bench.time.cpu_workloads import FITTED, sizes_of  # noqa: E402

_TOML = ROOT / "tests/bench/time/cpu.toml"
_NAMES = ("calls", "products", "moved", "weights", "operations")
_USUAL = {"calls": 4.0, "products": 1.1, "moved": 1.5, "weights": 2.0, "operations": 50.0}
_HELD_TO_USUAL, _HELD_TO_OPERATORS = 0.01, 0.1  # weights of those beside the measured ones
_NEGLIGIBLE = 0.02
_LEAST_SHARE = 1e-5
_BY_PRODUCTS = ("matmul", "convolution", "grouped_convolution", "depthwise_convolution")
Classes = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A run with the work of its step, the operators that both have, and the speeds of its CPU."""

    run: Run
    speeds: CpuSpeeds
    step: StepWork
    operators: tuple[tuple[Demand, float], ...]


def main() -> None:
    """Prints what is left, and writes the constants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help=f"write {_TOML.name}")
    parser.add_argument(
        "--name", action="append", choices=FITTED, help="a workload to measure, repeatable; default: all"
    )
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="repeatable; default: both")
    parser.add_argument("--sizes", type=int, default=3, help="how many of each to measure, at most 3 [3]")
    arguments = parser.parse_args()
    lines = functools.cache(work_lines)
    timed = []
    for file in arguments.files:
        if not file.exists():
            _measure(file, arguments.name or FITTED, arguments.precision or PRECISIONS, arguments.sizes)
        of_file = [Run.from_json(row) for row in file.read_text(encoding="utf-8").splitlines()]
        speeds = median_speeds(of_file)
        timed += [_aligned(run, lines(run.name, run.precision), speeds) for run in of_file]
    of_all = fitted(timed)
    print("in all:", _in_words(_errors(timed, of_all)))
    apart = []
    for name in dict.fromkeys(each.run.name for each in timed):
        others = [each for each in timed if each.run.name != name]
        own = [each for each in timed if each.run.name == name]
        errors = _errors(own, fitted(others))
        print(f"{name:14}", " ".join(f"{error:+5.0%}" for error in errors), flush=True)
        apart += errors
    print("each left out:", _in_words(apart))
    if arguments.write:
        _write(of_all)


def _measure(path: Path, names: Sequence[str], precisions: Sequence[str], num_sizes: int) -> None:
    rows = []
    for name in names:
        for precision in precisions:
            sizes = sizes_of(name)[:5:2][:num_sizes]
            found = runs(name, precision, sizes, with_operators=True)
            rows += [each.to_json() for each in found]
            print(name, precision, ", ".join(f"{1e3 * each.seconds:.1f} ms" for each in found), flush=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _aligned(run: Run, lines: WorkLines, speeds: CpuSpeeds) -> Timed:
    """The run with its operators' work: the real step may run a few others at a size, as views are."""
    step = lines.at(run.batch_size)
    traced, real = [call.work.operator for call in step.calls], [name for name, _ in run.operators]
    blocks = difflib.SequenceMatcher(None, traced, real, autojunk=False).get_matching_blocks()
    operators = [
        (demand_of(step.calls[block.a + number].work), run.operators[block.b + number][1])
        for block in blocks
        for number in range(block.size)
    ]
    return Timed(run=run, speeds=speeds, step=step, operators=tuple(operators))


def fitted(timed: Sequence[Timed]) -> Classes:
    """The constants of all classes."""
    return _on_steps(timed, _on_operators(timed))


def _terms(demand: Demand, speeds: CpuSpeeds) -> list[float]:
    """What each constant of a class is multiplied by, in seconds."""
    return [
        demand.calls * speeds.call_seconds,
        demand.flops / speeds.product_flops(demand.dtype),
        demand.moved_bytes / speeds.bandwidth,
        demand.weight_bytes / speeds.bandwidth,
        demand.num_elements / speeds.vector_flops,
    ]


def _names_of(name: str) -> tuple[str, ...]:
    """Which constants a class has."""
    kind, *variant = name.split()
    if kind in _BY_PRODUCTS:
        return "calls", "products", "moved", "weights"
    if kind in ("attention", "recurrent"):
        return "calls", "products"
    if kind == "pool" or "random" in variant:
        return "calls", "operations"
    if kind in ("batch_norm", "softmax", "layer_norm") or "transcendental" in variant:
        return "calls", "moved", "operations"
    return "calls", "moved"


def _on_operators(timed: Iterable[Timed]) -> Classes:
    """Class by class, by the relative errors of operators, each weighted by its share of its step."""
    by_class: defaultdict[str, list[_Row]] = defaultdict(list)
    for each in timed:
        alike: defaultdict[Demand, list[float]] = defaultdict(list)
        for demand, seconds in each.operators:
            alike[demand].append(seconds)
        in_all = sum(seconds for _, seconds in each.operators)
        for demand, found in alike.items():
            row = _Row(demand, each.speeds, sum(found) / len(found), sum(found) / in_all)
            by_class[demand.name].append(row)
    return {name: _of_class(name, rows) for name, rows in by_class.items()}


@dataclass(frozen=True, slots=True)
class _Row:
    """What alike operators of a step took each, and their share of all operators' time."""

    demand: Demand
    speeds: CpuSpeeds
    seconds: float
    share: float


def _of_class(name: str, rows: Sequence[_Row]) -> dict[str, float]:
    names = _names_of(name)
    places = [_NAMES.index(each) for each in names]
    terms = np.array([[_terms(row.demand, row.speeds)[place] for place in places] for row in rows])
    seconds = np.array([row.seconds for row in rows])
    fresh = np.array([row.demand.fresh_bytes * row.speeds.page_seconds for row in rows])
    weights = np.sqrt([row.share + _LEAST_SHARE for row in rows])
    usual = np.log([_USUAL[each] for each in names])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        left = weights * np.log((terms @ np.exp(logs) + fresh) / seconds)
        return np.concatenate([left, _HELD_TO_USUAL * (logs - usual)])

    relative = weights / seconds
    start, _ = nnls(terms * relative[:, None], np.maximum(seconds - fresh, 0.3 * seconds) * relative)
    found = least_squares(residuals, np.log(np.clip(start, 1e-2, 1e3)), loss="soft_l1", f_scale=0.02)
    values = np.exp(found.x)
    kept = {each: float(value) for each, value in zip(names, values, strict=True) if value > _NEGLIGIBLE}
    return {"calls": 0.0, **kept}


def _on_steps(timed: Sequence[Timed], classes: Classes) -> Classes:
    """All together, by the relative errors of steps, near what operators say."""
    places = {(name, each): 0 for name, values in classes.items() for each, value in values.items() if value}
    places = {key: place for place, key in enumerate(places)}
    terms, beside = np.zeros((len(timed), len(places))), np.zeros(len(timed))
    for row, each in enumerate(timed):
        speeds = each.speeds
        costs = _costs(classes, speeds)
        for call in each.step.calls:
            demand = demand_of(call.work)
            name = costs.class_of(demand)
            for constant, term in zip(_NAMES, _terms(demand, speeds), strict=True):
                if (name, constant) in places:
                    terms[row, places[name, constant]] += term
            beside[row] += demand.fresh_bytes * speeds.page_seconds + costs.host.call
            beside[row] += call.num_views * costs.host.view
    seconds = np.array([each.run.seconds for each in timed])
    start = np.log([classes[name][constant] for name, constant in places])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        left = np.log((terms @ np.exp(logs) + beside) / seconds)
        return np.concatenate([left, _HELD_TO_OPERATORS * (logs - start)])

    found = least_squares(residuals, start, loss="soft_l1", f_scale=0.1)
    result: Classes = {name: {"calls": 0.0} for name in classes}
    for (name, constant), value in zip(places, np.exp(found.x), strict=True):
        result[name][constant] = float(value)
    return result


def _costs(classes: Classes, speeds: CpuSpeeds) -> CpuCosts:
    return CpuCosts(speeds, {name: CpuConstants(**values) for name, values in classes.items()})


def _errors(timed: Iterable[Timed], classes: Classes) -> list[float]:
    return [
        clocked(each.step.calls, each.step.in_backward, _costs(classes, each.speeds)).seconds
        / each.run.seconds
        - 1
        for each in timed
    ]


def _in_words(errors: Collection[float]) -> str:
    sizes = [abs(error) for error in errors]
    sigma = math.sqrt(sum(math.log1p(error) ** 2 for error in errors) / len(errors))
    return f"median {quantile(sizes, 0.5):.1%}, p90 {quantile(sizes, 0.9):.1%}, sigma {sigma:.2f}"


def _write(classes: Mapping[str, Mapping[str, float]]) -> None:
    head = _TOML.read_text(encoding="utf-8").partition("[classes]")[0]
    rows = [
        f'"{name}" = {{ {", ".join(f"{each} = {values[each]:.3g}" for each in _NAMES if each in values)} }}'
        for name, values in sorted(classes.items())
    ]
    _TOML.write_text(f"{head}[classes]\n" + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
