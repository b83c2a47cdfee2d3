"""Predicted against measured peaks on the CPU: `python tests/bench/host_accuracy.py [--sizes 1] [NAME …]`.

Every size runs for real, in a fresh process without a limit. The prediction knows nothing of these
runs: it has the blocks of three traces, and what a process costs that does next to nothing.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from autofit.predict.host_curve import HostCurve, HostPeak, HostProcess, baseline_spec
from autofit.predict.predictor import Predictor
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials import door
from autofit_workers.trials.outcomes import processor_name

_FILE = Path(__file__).with_name("host_workloads.py")
_MIB = 1024**2
_DEADLINE_SECONDS = 1800.0
_SIZES = {
    "mlp": (32, 1024, 8192),
    "vgg_like": (8, 32, 96),
    "transformer": (4, 32, 96),
    "recurrent": (16, 64, 256),
    "davenet-audio": (4, 32, 80),
}


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(_SIZES), help="workloads; all unless named")
    parser.add_argument("--sizes", type=int, default=3, help="how many of the sizes of each")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    baseline = door.run(baseline_spec(num_threads=arguments.threads, deadline_seconds=_DEADLINE_SECONDS))
    process = HostProcess.of(baseline)
    print(f"{processor_name()}, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}; in MiB")
    print(
        f"process: {process.resident_bytes / _MIB:.1f} resident, {process.private_bytes / _MIB:.1f} private"
    )
    print(f"{'workload':14} {'batch':>6} | {'resident':^24} | {'private':^24} | interval")
    for name in arguments.names:
        reference = _reference(name)
        predictor = Predictor(reference, door.run, for_host=True, num_threads=arguments.threads)
        steps = predictor.host_steps(Knobs())
        assert not steps.needs_traces, f"{name} allocates differently at every batch size"
        curve = HostCurve(steps, lambda: process)
        for batch_size in _SIZES[name][: arguments.sizes]:
            outcome = door.run(
                TrialSpec(
                    workload=reference,
                    batch_size=batch_size,
                    probe=Probe.CPU,
                    num_steps=2,
                    num_threads=arguments.threads,
                    deadline_seconds=_DEADLINE_SECONDS,
                )
            )
            assert outcome.verdict is Verdict.FITS, outcome.error
            print(f"{name:14} {batch_size:6} | {_row(curve(batch_size), outcome)}", flush=True)


def _reference(name: str) -> WorkloadRef:
    if name in ("mlp", "vgg_like", "transformer", "recurrent"):
        return WorkloadRef(kind="file", target=f"{_FILE}:{name}")
    return WorkloadRef(kind="builtin", target=name)


def _row(predicted: HostPeak, outcome: TrialOutcome) -> str:
    measured = outcome.peaks
    pairs = [
        (predicted.resident_bytes, measured.device_bytes),
        (predicted.private_bytes, measured.private_bytes),
    ]
    told = [
        "–" if real is None else f"{guess / _MIB:8.1f} {real / _MIB:8.1f} {guess / real - 1:+6.1%}"
        for guess, real in pairs
    ]
    held_bytes = outcome.budgeted_bytes or 0
    inside = predicted.low_bytes <= held_bytes <= predicted.high_bytes
    interval = f"{predicted.low_bytes / _MIB:.0f}–{predicted.high_bytes / _MIB:.0f}"
    return f"{told[0]:24} | {told[1]:24} | {interval} {'holds' if inside else 'MISSED'}"


if __name__ == "__main__":
    main()
