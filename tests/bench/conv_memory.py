"""What convolution algorithms take, predicted and measured on the CPU: `python tests/bench/conv_memory.py`.

For every layer of a grid, the peak of PyTorch's CPU allocator over a step, forward alone and with
backward. Predictions come from a trace on a fake CPU, measurements from PyTorch's profiler in a
process of their own. A layer to which an algorithm does not apply is left out and counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Probe, TrialSpec
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials import door
from tests.bench.conv_layers import NUM_LAYERS, grid
from tests.workers.predicted import peaks_of

ALGORITHMS = ("onednn", "native", "im2col", "im2col-chunked:512", "fft", "matmul-1x1", "chunked:2")
MODES = ("infer", "train")
MEDIAN, NINTH = 0.03, 0.10
_BATCH_SIZE = 6
_LAYERS = Path(__file__).with_name("conv_layers.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer under one algorithm."""

    algorithm: str
    mode: str
    layer: int
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def spec_of(algorithm: str, mode: str, layer: int, probe: Probe) -> TrialSpec:
    """The step of one layer."""
    return TrialSpec(
        workload=parse_reference(f"{_LAYERS}:layer_{layer}"),
        batch_size=_BATCH_SIZE,
        probe=probe,
        knobs=Knobs(conv_algo=algorithm),
        setup=Setup(mode=mode),
        architecture=HOST_ARCHITECTURE,
        num_threads=1,
    )


def measured(algorithm: str, mode: str, layers: range) -> dict[int, int]:
    """The peaks of the layers to which an algorithm applies, from a process that runs them one by one."""
    run = subprocess.run(
        [sys.executable, "-P", __file__, "--measure", algorithm, mode, str(len(layers))],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"measuring {algorithm} failed: {run.stderr}")
    return {int(layer): peak for layer, peak in json.loads(run.stdout.splitlines()[-1]).items()}


def measure_here(algorithm: str, mode: str, num_layers: int) -> dict[int, int]:
    """What the process of `measured` does."""
    import torch

    from autofit_workers.spec import conv_algorithms as conv
    from autofit_workers.tracing.host.allocator_peak import allocator_peak_bytes
    from autofit_workers.trials.measure import steps
    from autofit_workers.trials.measure.cpu import ResidentSet
    from autofit_workers.workload.workload import resolve

    torch.set_num_threads(1)
    peaks = {}
    for layer in range(num_layers):
        spec = spec_of(algorithm, mode, layer, Probe.CPU)
        if not _applies(conv.find(algorithm), layer):
            continue
        device = torch.device("cpu")
        with steps.conditions(spec, device, {}) as rewriting:
            workload = resolve(spec.workload)
            trial = steps.Trial(workload, spec, device, ResidentSet(), steps.Progress(), rewriting=rewriting)
            trial.step()
            trial.drop_gradients()
            peaks[layer] = allocator_peak_bytes(trial.step)
        del trial
    return peaks


def _applies(algorithm: object, layer: int) -> bool:
    return getattr(algorithm, "name", "") != "matmul-1x1" or grid()[layer].filter_size == 1


def rows_of(algorithm: str, mode: str, layers: range) -> Iterator[Row]:
    """The rows of one algorithm."""
    for layer, peak in measured(algorithm, mode, layers).items():
        outcome = door.run(spec_of(algorithm, mode, layer, Probe.PREDICT))
        if outcome.trace_json is None:
            raise SystemExit(f"{algorithm}, layer {layer}: {outcome.error}")
        yield Row(
            algorithm=algorithm,
            mode=mode,
            layer=layer,
            predicted_bytes=peaks_of(outcome).allocated_bytes,
            measured_bytes=peak,
        )


def ninth_decile(values: list[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


def main() -> int:
    """Prints a row per algorithm and mode, and the worst layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--layers", type=int, default=NUM_LAYERS, help="so many of the grid, from its begin")
    parser.add_argument("--worst", type=int, default=3, help="name so many layers of each row")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        algorithm, mode, num_layers = options.measure
        print(json.dumps(measure_here(algorithm, mode, int(num_layers))))
        return 0
    layers = range(options.layers)
    within = True
    print(f"{len(layers)} layers, batch {_BATCH_SIZE}\n")
    print("| algorithm | pass | layers | median error | 90th percentile | largest |")
    print("|---|---|---|---|---|---|")
    notes = []
    for algorithm in options.algorithms.split(","):
        for mode in MODES:
            rows = list(rows_of(algorithm, mode, layers))
            errors = [abs(row.error) for row in rows]
            median, ninth = statistics.median(errors), ninth_decile(errors)
            within = within and median <= MEDIAN and ninth <= NINTH
            what = "forward" if mode == "infer" else "forward and backward"
            print(
                f"| {algorithm} | {what} | {len(rows)} | {median:.1%} | {ninth:.1%} | {max(errors):.1%} |",
                flush=True,
            )
            worst = sorted(rows, key=lambda row: -abs(row.error))[: options.worst]
            notes += [
                f"{algorithm}, {what}: {row.error:+.1%} at {row.predicted_bytes:,} predicted, "
                f"{row.measured_bytes:,} measured: {grid()[row.layer]}"
                for row in worst
                if abs(row.error) > MEDIAN
            ]
    print("\n" + "\n".join(notes))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
