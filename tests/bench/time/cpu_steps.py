"""Predicted against measured steps on this machine's CPU: `python tests/bench/time/cpu_steps.py [NAME …]`.

Eight workloads in float32 and bfloat16, six batch sizes each. The speeds of the CPU are measured before each,
and their medians count; the constants are of other workloads (`fit_cpu.py`). Prints how far the times of
three of the sizes are off, how often of two settings the faster one is predicted, and where the knee is.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from autofit.predict.predictor import Predictor  # noqa: E402
from autofit.search.choice import NEAR_THE_BEST_RATE  # noqa: E402
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES  # noqa: E402
from autofit_workers.replay.time.lines import WorkLines  # noqa: E402
from autofit_workers.replay.time.step import clocked  # noqa: E402
from autofit_workers.spec.knobs import Knobs  # noqa: E402
from autofit_workers.trials import door  # noqa: E402
from tests.bench.scoring import quantile  # noqa: E402
from tests.bench.time.cpu_costs import CpuCosts, CpuSpeeds  # noqa: E402
from tests.bench.time.cpu_runs import Run, median_speeds, reference, runs  # noqa: E402
from tests.bench.time.cpu_workloads import SCORED, sizes_of  # noqa: E402

PRECISIONS = ("fp32", "bf16")
_APART = 1.05  # of rates, from which on two settings are told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A step's seconds as they were and as they were predicted."""

    name: str
    precision: str
    batch_size: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def work_lines(name: str, precision: str) -> WorkLines:
    """The work of a workload's steps on a CPU."""
    predictor = Predictor(reference(name), door.run, for_host=True)
    return WorkLines.through(
        [predictor.trace(Knobs(precision=precision), size) for size in TRACED_BATCH_SIZES]
    )


def main() -> None:
    """Prints each step, and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=SCORED)
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="repeatable; default: both")
    parser.add_argument("--sizes", type=int, default=6, help="how many of the sizes, from the smallest [6]")
    arguments = parser.parse_args()
    lines = {
        (name, precision): work_lines(name, precision)
        for name, precision in itertools.product(arguments.names, arguments.precision or PRECISIONS)
    }
    measured = []
    for name, precision in lines:
        found = runs(name, precision, sizes_of(name)[: arguments.sizes])
        print(name, precision, ", ".join(f"{1e3 * run.seconds:.1f}" for run in found), "ms", flush=True)
        measured += found
    speeds = median_speeds(measured)
    print(_in_words(speeds))
    costs = CpuCosts(speeds)
    compared = [_compared(run, lines[run.name, run.precision], costs) for run in measured]
    for each in compared:
        print(
            f"{each.name:14} {each.precision} {each.batch_size:4}  measured {1e3 * each.measured:8.2f} ms  "
            f"predicted {1e3 * each.predicted:8.2f} ms  {each.error:+7.1%}"
        )
    print(_summary(compared))


def _compared(run: Run, lines: WorkLines, costs: CpuCosts) -> Compared:
    step = lines.at(run.batch_size)
    clock = clocked(step.calls, step.in_backward, costs, host_waits=step.host_waits)
    return Compared(
        name=run.name,
        precision=run.precision,
        batch_size=run.batch_size,
        measured=run.seconds,
        predicted=clock.seconds,
    )


def _summary(compared: Sequence[Compared]) -> str:
    by_setting: defaultdict[tuple[str, str], list[Compared]] = defaultdict(list)
    for each in compared:
        by_setting[each.name, each.precision].append(each)
    of_three = [abs(each.error) for steps in by_setting.values() for each in steps[::2]]
    of_all = [abs(each.error) for each in compared]
    rungs = [abs(_knee(steps, "measured") - _knee(steps, "predicted")) for steps in by_setting.values()]
    right, pairs = _order(compared)
    return "\n".join(
        (
            f"three sizes: median {statistics.median(of_three):.1%}, p90 {quantile(of_three, 0.9):.1%}; "
            f"all: median {statistics.median(of_all):.1%}, p90 {quantile(of_all, 0.9):.1%}",
            f"order of two settings of a workload: {right} of {pairs} right ({right / max(pairs, 1):.0%})",
            f"knee: {rungs.count(0)} of {len(rungs)} exact, {sum(each <= 1 for each in rungs)} within a rung",
        )
    )


def _knee(steps: Sequence[Compared], of: str) -> int:
    """The number of the smallest size whose rate is near the best."""
    rates = [each.batch_size / getattr(each, of) for each in steps]
    return next(rung for rung, rate in enumerate(rates) if rate >= NEAR_THE_BEST_RATE * max(rates))


def _order(compared: Sequence[Compared]) -> tuple[int, int]:
    """Of pairs of settings of one workload whose measured rates are apart, how many are predicted right."""
    right = pairs = 0
    for one, other in itertools.combinations(compared, 2):
        if one.name != other.name:
            continue
        measured, predicted = (
            (one.batch_size / getattr(one, of)) / (other.batch_size / getattr(other, of))
            for of in ("measured", "predicted")
        )
        if 1 / _APART < measured < _APART:
            continue
        pairs += 1
        right += (measured > 1) == (predicted > 1)
    return right, pairs


def _in_words(speeds: CpuSpeeds) -> str:
    flops = " ".join(f"{rate / 1e9:.0f}" for rate in speeds.flops.values())
    return (
        f"{flops} GFLOP/s {speeds.bandwidth / 1e9:.0f} GB/s call {1e6 * speeds.call_seconds:.1f} us "
        f"page {1e9 * speeds.page_seconds:.2f} ns/B"
    )


if __name__ == "__main__":
    main()
