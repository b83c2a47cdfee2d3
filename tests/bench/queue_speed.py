"""What a user of a full queue waits for: `submit`, `submit --batch` and `jobs`, beside an import of Ray.

    python tests/bench/queue_speed.py [--jobs 1000] [--others 200] [--batch 200] [--repeat 3]

`submit` is asked of an SQLite storage with `--others` jobs, and of a job server that answers at once, in
this process; `jobs` of one with `--jobs`, four of five with an answer. Times are processor seconds of the
command (the median), and as ratios to those of `python -c "import ray"`, so that another load or machine
changes them little.

Exits with 1 where `submit` takes more than 3 imports, or `jobs` more than 1.6.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from optuna.trial import TrialState, create_trial

from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobSpec, gist_of, packed
from autofit.jobs.stored.attributes import (
    ATTEMPTS,
    ENDED,
    GIST,
    JOB,
    JOB_ID,
    JOBS_STUDY,
    PACKED_RESULT,
    SCHEMA,
    spec_to_dict,
)
from tests.bench.smoke import WITHIN
from tests.conformance.dispatcher import ROOT
from tests.job_server import NUM_RUNNING, job_server

MOST_OF_SUBMIT, MOST_OF_JOBS = 3.0, 1.6

_FOUND = {"batch_size": 86, "knobs": {"conv_algo": "cudnn"}, "evidence": "predicted"}
_ANSWER = {"schema": "autofit.tune/1", "best": _FOUND, "frontier": [{"reason": "x" * 60}] * 40}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("jobs", 1000), ("others", 200), ("batch", 200), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="queue-speed-") as folder, job_server() as address:
        listed, others = f"sqlite:///{folder}/listed.db", f"sqlite:///{folder}/others.db"
        fill(listed, options.jobs)
        fill(others, options.others)
        lines = Path(folder, "batch.txt")
        texts = [f"davenet --gpu-mem {40_000 + number}M\n" for number in range(options.batch)]
        lines.write_text("".join(texts), encoding="utf-8")
        environment = {
            "AUTOFIT_STATE_DIR": folder,
            "AUTOFIT_STORAGE": others,
            "RAY_API_SERVER_ADDRESS": address,
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": str(ROOT),
        }
        autofit = [sys.executable, "-P", "-m", "autofit.cli"] if sys.version_info >= (3, 11) else []
        autofit = autofit or [sys.executable, "-m", "autofit.cli"]
        times: dict[str, list[float]] = {"import ray": [], "submit": [], "jobs": [], "jobs --newest 20": []}
        for number in range(options.repeat):
            commands = {
                "import ray": [sys.executable, "-c", "import ray"],
                "submit": [*autofit, "submit", "davenet", f"--gpu-mem={20_000 + number}M"],
                "jobs": [*autofit, "jobs", f"--storage={listed}"],
                "jobs --newest 20": [*autofit, "jobs", "--newest=20", f"--storage={listed}"],
            }
            for name, command in commands.items():
                times[name].append(processor_seconds(command, environment))
        times[f"submit --batch of {options.batch}"] = [
            processor_seconds([*autofit, "submit", f"--batch={lines}"], environment)
        ]
    return report({name: statistics.median(each) for name, each in times.items()})


def fill(storage: str, num_jobs: int) -> None:
    """Makes a queue in which four of five jobs have an answer, a few of the others run, and the rest wait."""
    with JobQueue.open(storage) as queue:
        spec = JobSpec(options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet", max_drivers=10**6)
        queue.enqueue("job-000000", spec)  # creates the study
        backend = queue.storage.backend
        study_id = backend.get_study_id_from_name(JOBS_STUDY)
        num_over = num_jobs * 4 // 5
        for number in range(1, num_jobs):
            job_id = f"job-{number:06}"
            attributes = {JOB_ID: job_id, JOB: spec_to_dict(spec)}
            state = TrialState.WAITING
            if number < num_over + NUM_RUNNING:
                state = TrialState.RUNNING
                attempt = {"schema": SCHEMA, "submission_id": f"{job_id}.1", "started_seconds": 1.0}
                attributes[ATTEMPTS] = [attempt]
            if number < num_over:
                state = TrialState.COMPLETE
                attributes |= {PACKED_RESULT: packed(_ANSWER), GIST: gist_of(_ANSWER), ENDED: 2.0}
            value = 86.0 if state is TrialState.COMPLETE else None
            template = create_trial(state=TrialState.COMPLETE, value=0.0, user_attrs=attributes)
            template.state, template.values = state, None if value is None else [value]
            backend.create_new_trial(study_id, template)


def processor_seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    """Processor time that a command takes, in seconds; raises an error where it fails."""
    before = os.times()
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    after = os.times()
    assert done.returncode == 0, done.stderr
    return after.children_user + after.children_system - before.children_user - before.children_system


def report(seconds: dict[str, float]) -> int:
    """Prints the table, and what exceeds its limit; returns the exit code."""
    unit = seconds["import ray"]
    print("| command | processor time | imports of Ray |\n|---|---|---|")
    for name, each in seconds.items():
        print(f"| {name} | {each:.2f} s | ×{each / unit:.2f} |")
    limits = {"submit": MOST_OF_SUBMIT, "jobs": MOST_OF_JOBS}
    exceeded = [
        f"{name} takes ×{seconds[name] / unit:.2f}, more than {limit}"
        for name, limit in limits.items()
        if seconds[name] > limit * unit
    ]
    print("; ".join(exceeded) or WITHIN)
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main())
