"""What Ray costs: `python tests/bench/dispatch_speed.py [MODEL …]`.

Wants the project installed; starts a local Ray of two CPUs. First what a real trial on the CPU costs
beyond its own process: from `submit` to the supervisor's first line, and from the supervisor's last
line to the outcome in the caller's hands; beside an empty Ray task in the same run. Then what trials
cost that are predicted, and so need no Ray: 1,000 of one built-in at as many batch sizes, from three traces.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time

import ray

import autofit
from autofit.dispatch.ray import RayDispatcher
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials import door

NUM_TRIALS = 5
NUM_EVALUATIONS = 1000
OVERHEAD_LIMIT_SECONDS = 0.150
EVALUATIONS_LIMIT_SECONDS = 60.0
NUM_CPUS = 2


def spec_of(model: str, batch_size: int, probe: Probe, **settings: object) -> TrialSpec:
    workload = WorkloadRef(kind="builtin", target=model)
    return TrialSpec(workload=workload, batch_size=batch_size, probe=probe, **settings)  # type: ignore[arg-type]


def timed(spec: TrialSpec) -> TrialOutcome:
    """Runs a trial in the supervisor, and says when by the machine's one monotonic clock."""
    import dataclasses
    import time

    begun = time.monotonic()
    outcome = door.run(spec)
    times = {"begun": repr(begun), "ended": repr(time.monotonic())}
    return dataclasses.replace(outcome, environment={**outcome.environment, **times})


def overheads(num_trials: int) -> list[tuple[float, float, float]]:
    """Seconds before, during and after the trials in the supervisor, one after the other.

    Of one trial more, which comes first: Ray starts a worker for it.
    """
    found = []
    with RayDispatcher(runner=timed) as dispatcher:
        for _ in range(num_trials + 1):
            submitted = time.monotonic()
            outcome = dispatcher.submit(spec_of("davenet-audio", 1, Probe.CPU, num_threads=1)).result()
            told = time.monotonic()
            assert outcome.verdict is Verdict.FITS, outcome.error
            begun, ended = (float(outcome.environment[name]) for name in ("begun", "ended"))
            found.append((begun - submitted, ended - begun, told - ended))
    return found


def empty_tasks() -> list[float]:
    """Seconds of tasks that do nothing, in warm workers."""

    @ray.remote
    def nothing() -> None:
        return

    ray.get(nothing.remote())
    seconds = []
    for _ in range(100):
        started = time.monotonic()
        ray.get(nothing.remote())
        seconds.append(time.monotonic() - started)
    return seconds


def evaluation_seconds(model: str, num_evaluations: int) -> float:
    """Seconds of the traces and of all evaluations, as a search that only predicts makes them."""
    started = time.monotonic()
    curve = autofit.peak_curve(model)
    outcomes = [curve.outcome(size, 16 * 1024**3) for size in range(1, num_evaluations + 1)]
    assert all(outcome.verdict.is_about_memory for outcome in outcomes)
    return time.monotonic() - started


def machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load}"


def milliseconds(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f} | {1000 * max(seconds):.0f}"


def main() -> int:
    """Prints the tables; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["davenet-audio", "resnet50"])
    parser.add_argument("--trials", type=int, default=NUM_TRIALS, help=f"measured ones [{NUM_TRIALS}]")
    parser.add_argument(
        "--evaluations", type=int, default=NUM_EVALUATIONS, help=f"predicted ones [{NUM_EVALUATIONS}]"
    )
    options = parser.parse_args()
    print(f"{machine()}; Python {platform.python_version()}, Ray {ray.__version__}\n")
    ray.init(
        address="local",
        num_cpus=NUM_CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    first, *others = overheads(options.trials)
    sums = [before + after for before, _, after in others]
    print(f"| a trial, {options.trials} times | median ms | largest ms |\n|---|---|---|")
    print(f"| dispatch to supervisor | {milliseconds([before for before, _, _ in others])} |")
    print(f"| result to caller | {milliseconds([after for _, _, after in others])} |")
    print(f"| **both: what Ray costs** | {milliseconds(sums)} |")
    print(f"| the trial's own process between them | {milliseconds([inside for _, inside, _ in others])} |")
    print(f"| an empty Ray task | {milliseconds(empty_tasks())} |")
    print(f"| (both, of the first trial: Ray starts a worker) | {1000 * (first[0] + first[2]):.0f} | |\n")
    ray.shutdown()
    print(f"| {options.evaluations} predicted evaluations | s |\n|---|---|")
    exceeded = []
    if statistics.median(sums) > OVERHEAD_LIMIT_SECONDS:
        exceeded.append(f"Ray costs a trial more than {1000 * OVERHEAD_LIMIT_SECONDS:.0f} ms")
    for model in options.models:
        seconds = evaluation_seconds(model, options.evaluations)
        print(f"| {model}, {machine()} | {seconds:.1f} |", flush=True)
        if seconds > EVALUATIONS_LIMIT_SECONDS:
            exceeded.append(f"{model} took {seconds:.1f} s, more than {EVALUATIONS_LIMIT_SECONDS:.0f}")
    print("\n" + ("\n".join(exceeded) or "within the limits"))
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main())
