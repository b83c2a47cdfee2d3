"""What a search over several knobs costs: `python tests/bench/knob_search.py [MODEL …]`.

Three models, each with the product of precision, checkpointing, optimizer implementation and
memory format. The device is a stand-in that answers in no time: the likely prediction, off by a
share that the search does not know of. Compared, in evaluations (trials), are

- the exhaustive product: every setting's boundary by bisection, without predictions, nothing pruned;
- the search: guided by predictions, settings that cannot win pruned;
- Optuna's random search over settings and sizes, with as many trials as the search had.

The front that counts is the proved one: of every setting the largest size that the device lets
through, whatever bisection finds, since reserved memory is not monotone in the batch. Fails where
the search's front is another, or took more than a third of the exhaustive product's evaluations.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import optuna

from autofit.events import ignore
from autofit.hardware.card import card_named
from autofit.hardware.gpus import find_gpu
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import local_predictor
from autofit.search.agenda import Goal
from autofit.search.boundary import largest_fitting_batch
from autofit.search.curves import Curve
from autofit.search.pace import Pace
from autofit.search.pareto import Point, dominating
from autofit.search.pruning import Pruning
from autofit.search.sampler import no_curve
from autofit.search.space import BATCH_SIZE, SearchSpace
from autofit.settings.goals import Risk
from autofit.settings.workloads import refer
from autofit.study.study import TuningStudy
from autofit.tuning.curves import CurveSet
from autofit.tuning.frontier import Frontier
from autofit.tuning.tuner import Tuner
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)

MODELS = ("davenet", "resnet50", "gpt2")
GPU = "rtx-3090"
BUDGET_BYTES = 22 * 1024**3
MAX_BATCH = 2048
ERROR = 0.04  # the device takes so much more than was predicted
LARGEST_SHARE = 1 / 3
CHOICES = {
    "precision": ("fp32", "amp-bf16"),
    "memory_format": ("contiguous", "channels_last"),
    "optimizer_impl": ("foreach", "fused", "loop"),
    "set_to_none": (True, False),
}
Front = dict[Knobs, int]


class StandInDevice:
    """Answers trials from the likely prediction, which is off by `ERROR`, and counts them."""

    def __init__(self, curves: Mapping[Knobs, PredictedCurve]) -> None:
        self._curves = dict(curves)
        self._peaks: dict[tuple[Knobs, int], int] = {}
        self.num_evaluations = 0

    def fits(self, knobs: Knobs, batch_size: int) -> bool:
        self.num_evaluations += 1
        return self._peak_bytes(knobs, batch_size) <= BUDGET_BYTES

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        fits = self.fits(spec.knobs, spec.batch_size)
        peaks = Peaks(reserved_bytes=self._peak_bytes(spec.knobs, spec.batch_size))
        future: Future[TrialOutcome] = Future()
        future.set_result(
            TrialOutcome(
                verdict=Verdict.FITS if fits else Verdict.OOM,
                evidence=Evidence.MEASURED,
                device=Device(kind="cuda", name="a stand-in"),
                batch_size=spec.batch_size,
                knobs=spec.knobs,
                first_step=peaks,
                steady=peaks,
            )
        )
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        return 1

    def proved(self, space: SearchSpace) -> dict[Knobs, int]:
        """The largest batch of every setting, without an evaluation that counts."""
        within = int(BUDGET_BYTES / (1 + ERROR))
        found = {
            knobs: largest_fitting_batch(self._curves[knobs], within, sizes=space.sizes(knobs))
            for knobs in space.settings
        }
        return {knobs: scan.largest_batch for knobs, scan in found.items() if scan.largest_batch is not None}

    def _peak_bytes(self, knobs: Knobs, batch_size: int) -> int:
        if (knobs, batch_size) not in self._peaks:
            peak = self._curves[knobs].peak_reserved_bytes(batch_size)
            self._peaks[knobs, batch_size] = int((1 + ERROR) * peak)
        return self._peaks[knobs, batch_size]


def paces(space: SearchSpace) -> dict[Knobs, Pace]:
    architecture = find_gpu(GPU).architecture
    return {knobs: Pace.of(knobs, architecture) for knobs in space.settings}


def front_of(largest: Mapping[Knobs, int], space: SearchSpace) -> Front:
    """The Pareto front of settings with their largest batches."""
    by_knobs = paces(space)
    points = {
        knobs: Point(largest_batch=size, samples_per_second=None, pace=by_knobs[knobs])
        for knobs, size in largest.items()
    }
    dominated = dominating(points)
    return {knobs: size for knobs, size in largest.items() if knobs not in dominated}


def searched(
    space: SearchSpace,
    curves: CurveSet,
    device: StandInDevice,
    *,
    prior: Callable[[Knobs], Curve | None],
    pruning: Pruning | None,
) -> Front:
    """The front that a study finds."""
    workload = WorkloadRef(kind="builtin", target="davenet")
    spec = TrialSpec(workload=workload, batch_size=1, probe=Probe.CUDA, budget_bytes=BUDGET_BYTES)
    with (
        tempfile.TemporaryDirectory() as folder,
        TuningStudy.open(
            space,
            budget_bytes=BUDGET_BYTES,
            settings={},
            storage=str(Path(folder) / "study.journal"),
            curves=prior,
            seed=0,
            goal=Goal(),
            pruning=pruning,
        ) as study,
    ):
        frontier: Frontier = Tuner(spec=spec, study=study, curves=curves, trials=device, emit=ignore).run()
    largest = {entry.knobs: entry.largest_batch for entry in frontier.entries()}
    return front_of({knobs: size for knobs, size in largest.items() if size is not None}, space)


def random_search(space: SearchSpace, device: StandInDevice, num_trials: int) -> Front:
    """The front of what so many random trials find to fit."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize")
    largest: dict[Knobs, int] = {}
    for _ in range(num_trials):
        trial = study.ask()
        for name, values in space.choices.items():
            trial.suggest_categorical(name, values)
        batch_size = trial.suggest_int(BATCH_SIZE, space.min_batch, space.max_batch)
        knobs = space.to_knobs(trial.params)
        fits = device.fits(knobs, batch_size)
        study.tell(trial, batch_size if fits else 0)
        if fits:
            largest[knobs] = max(batch_size, largest.get(knobs, 0))
    return front_of(largest, space)


def compared(model: str, choices: Mapping[str, tuple[Any, ...]]) -> tuple[str, list[str]]:
    """The row of a model, and what it fails in."""
    space = SearchSpace(choices=choices, fixed=Knobs(optimizer="adam"), max_batch=MAX_BATCH)
    curves = CurveSet()
    predictor, card = local_predictor(refer(model)), card_named(GPU)
    for knobs in space.settings:
        curves.add(knobs, predictor.curve(knobs, card, risk=Risk.LIKELY))
    pruning = Pruning(
        space.settings,
        paces=paces(space),
        at_most=lambda knobs: curves.at_most(knobs, BUDGET_BYTES, space.sizes(knobs)),
    )
    devices = [StandInDevice(curves.by_knobs) for _ in range(3)]
    proved = front_of(devices[0].proved(space), space)
    searched(space, CurveSet(), devices[0], prior=no_curve, pruning=None)
    ours = searched(space, curves, devices[1], prior=curves.prior, pruning=pruning)
    at_random = random_search(space, devices[2], devices[1].num_evaluations)
    full, found = devices[0].num_evaluations, devices[1].num_evaluations
    num_hit = sum(at_random.get(knobs) == size for knobs, size in proved.items())
    row = (
        f"| {model} | {len(space.settings)} | {len(proved)} | {full} | {found} ({found / full:.0%}) "
        f"| {'the same' if ours == proved else 'another'} | {num_hit} of {len(proved)} "
        f"(best batch {max(at_random.values(), default=0)} of {max(proved.values())}) |"
    )
    failures = []
    if ours != proved:
        failures.append(f"{model}: the search found another front")
    if found > LARGEST_SHARE * full:
        failures.append(f"{model}: {found} evaluations are more than a third of {full}")
    return row, failures


def main() -> int:
    """Prints the table; 1 where a gate is not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="only these")
    parser.add_argument(
        "--vary", action="append", choices=CHOICES, help="a knob to search, repeatable; default: all four"
    )
    options = parser.parse_args()
    choices = {name: values for name, values in CHOICES.items() if name in (options.vary or CHOICES)}
    print("| model | settings | on the front | exhaustive | search | its front | random, as many trials |")
    print("|---|---|---|---|---|---|---|")
    failures = []
    for model in options.models:
        row, failed = compared(model, choices)
        print(row, flush=True)
        failures += failed
    print("\n".join(failures) or "the same fronts, each from at most a third of the evaluations")
    return bool(failures)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as state:
        os.environ["AUTOFIT_STATE_DIR"] = state
        sys.exit(main())
