"""What 10,000 jobs, a million trials and 1,000 workers cost: a queue, `autofit serve`, and one coordinator.

    python tests/bench/scale.py [--jobs 100,1000,10000] [--trials 10000,100000] [--studies-of 500]
                                [--workers 10,100,1000] [--trial-seconds 2] [journal sqlite postgresql]

- Jobs: a storage is filled with copies of real jobs, four of five with an answer. Then a few are enqueued,
  claimed and ended by the queue itself, and the queue is listed, and counted as `autofit serve` does.
- Trials: a storage is filled with studies that are copies of a real one, and the reader of `autofit serve`
  reads it, in a process of its own.
- Workers: `Tuner`, which coordinates a search, runs trials on workers that only wait, seconds each, and then
  answer as measured trials do. So many workers of trials of half a minute it keeps busy, by its own
  processor time a trial.

Exits with 1 where a step of one job takes more than `--most` times as long in the largest queue as in the
smallest, or a trial that much more with the most workers than with the fewest. Times are processor time of
this process, so that another load changes them little; a database server's own is not among them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import heapq
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobSpec
from autofit.jobs.stored.database import listed_jobs
from autofit.search.curves import CachedCurve
from autofit.serve.metrics import Metrics
from autofit.serve.reader import StorageReader
from autofit.study.storage import quiet_optuna
from autofit.study.study import TuningStudy
from autofit.tuning.curves import CurveSet
from autofit.tuning.tuner import Limits, Tuner
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CONV_ALGOS
from autofit_workers.spec.knobs.memory_format import MEMORY_FORMATS
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, WorkloadRef
from tests.bench import serve_load, storage_copies, study_load
from tests.bench.smoke import WITHIN

_MIB = 2**20
_SETTINGS = {"conv_algo": CONV_ALGOS, "precision": PRECISIONS, "memory_format": MEMORY_FORMATS}
_NUM_REPEATS = 7
_USUAL_TRIAL_SECONDS = 30.0  # of a trial as it is measured on a GPU
_MOST = 4.0
_ANSWER = {
    "schema": "autofit.tune/1",
    "best": {"batch_size": 86, "knobs": {"conv_algo": "cudnn"}, "evidence": "measured"},
    "frontier": [{"reason": "x" * 60}] * 40,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backends", nargs="*", metavar="STORAGE", default=list(study_load.STORAGES))
    parser.add_argument("--jobs", type=_numbers, default=_numbers("100,1000,10000"))
    parser.add_argument("--trials", type=_numbers, default=_numbers("10000,100000"))
    parser.add_argument("--studies-of", type=int, default=500, metavar="TRIALS")
    parser.add_argument("--workers", type=_numbers, default=_numbers("10,100,1000"))
    parser.add_argument("--trial-seconds", type=float, default=2.0, help="of a simulated trial")
    parser.add_argument("--most", type=float, default=_MOST)
    parser.add_argument("--read", metavar="STORAGE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(dataclasses.asdict(read(options.read))))
        return 0
    exceeded = []
    for title, table in (("Jobs", jobs_table), ("Trials", trials_table), ("Workers", workers_table)):
        print(f"\n{title}\n", flush=True)
        exceeded += table(options)
    print(f"\n{'; '.join(exceeded) or WITHIN}")
    return bool(exceeded)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def timed(call: Callable[[], Any]) -> float:
    """Processor seconds of a call in this process, as the median of a few."""
    return statistics.median(once(call) for _ in range(_NUM_REPEATS))


def once(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class JobCosts:
    """Seconds of the steps of one job, and of what reads all of them."""

    enqueue: float
    claim: float
    note_driver: float
    keep_result: float
    list_all: float
    list_newest: float
    count: float

    @property
    def of_one_job(self) -> float:
        return self.enqueue + self.claim + self.note_driver + self.keep_result


def jobs_table(options: argparse.Namespace) -> list[str]:
    """Prints a row for each storage and number of jobs; returns what exceeds the limit."""
    steps = [field.name.replace("_", " ") for field in dataclasses.fields(JobCosts)]
    print(f"| storage | jobs | {' | '.join(steps)} | bytes a job |\n|---|---|{'---|' * len(steps)}---|")
    exceeded = []
    for kind in options.backends:
        of_one: list[float] = []
        for num_jobs in options.jobs:
            with study_load.place(kind) as storage:
                fill_jobs(storage, num_jobs)
                size = stored_bytes(storage)
                costs = job_costs(storage)
            of_one.append(costs.of_one_job)
            cells = [f"{1e3 * seconds:.1f} ms" for seconds in dataclasses.astuple(costs)]
            print(f"| {kind} | {num_jobs} | {' | '.join(cells)} | {size / num_jobs:.0f} |", flush=True)
        if of_one and of_one[-1] > options.most * of_one[0]:
            exceeded.append(f"{kind}: a job takes ×{of_one[-1] / of_one[0]:.1f} among {options.jobs[-1]}")
    return exceeded


def fill_jobs(storage: str, num_jobs: int) -> None:
    """Makes a queue in which four of five jobs have an answer, and the others wait."""
    with quiet_optuna(), JobQueue.open(storage) as queue:
        spec = JobSpec(options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet", max_drivers=10**6)
        queue.enqueue("over", spec)
        job = queue.claim_next()
        assert job is not None
        queue.finish(queue.record_attempt(job, "over.1"), _ANSWER)
        queue.enqueue("waits", spec)
    num_over = num_jobs * 4 // 5
    storage_copies.fill_jobs(storage, {"over": num_over - 1, "waits": num_jobs - num_over - 1})


def job_costs(storage: str) -> JobCosts:
    with quiet_optuna(), JobQueue.open(storage) as queue:
        number = iter(range(10**6))
        spec = JobSpec(options={"model": "davenet", "gpu-mem": "15G"}, workload="davenet", max_drivers=10**6)
        enqueue = timed(lambda: queue.enqueue(f"new-{next(number)}", spec))
        claim, note, keep = [], [], []
        for _ in range(_NUM_REPEATS):
            claimed: list[Any] = []
            claim.append(once(lambda claimed=claimed: claimed.append(queue.claim_next())))
            (job,) = claimed
            note.append(once(lambda job=job: queue.record_attempt(job, f"{job.job_id}.1")))
            keep.append(once(lambda job=job: queue.finish(job, _ANSWER)))
        listed = functools.partial(listed_jobs, storage, key=None)
        by_queue = listed() is None
        list_all = timed(queue.records if by_queue else listed)
        newest = functools.partial(queue.records if by_queue else listed, newest=20)
        list_newest = timed(newest)
    told: list[Any] = []
    reader = StorageReader(storage, emit=told.append, log=told.append)
    with quiet_optuna():
        reader.read()
        count = timed(lambda: _read_again(reader))
    reader.close()
    middle = statistics.median
    return JobCosts(enqueue, middle(claim), middle(note), middle(keep), list_all, list_newest, count)


def _read_again(reader: StorageReader) -> None:
    """Reads a storage as `autofit serve` does every few seconds, and a journal as if it had changed."""
    reader._read_state = None
    reader.read()


def stored_bytes(storage: str) -> int:
    """Size of a storage: of a file, or of what a database server says."""
    if not storage.startswith("postgresql"):
        return Path(storage.removeprefix("sqlite:///")).stat().st_size
    from sqlalchemy import create_engine, text

    engine = create_engine(storage.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        size = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
    engine.dispose()
    return int(size)


# ── trials ──────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class ReadCosts:
    """What a reader of all trials takes."""

    first_seconds: float
    again_seconds: float
    peak_bytes: int


def trials_table(options: argparse.Namespace) -> list[str]:
    """Prints a row for each storage and number of trials."""
    print(
        "| storage | trials | bytes a trial | first read | a trial | nothing new | memory |\n"
        + "|---" * 7
        + "|"
    )
    for kind in options.backends:
        for num_trials in options.trials:
            with study_load.place(kind) as storage:
                fill_trials(storage, num_trials, options.studies_of)
                size = stored_bytes(storage)
                costs = read_apart(storage)
            print(
                f"| {kind} | {num_trials} | {size / num_trials:.0f} | {costs.first_seconds:.1f} s "
                f"| {1e3 * costs.first_seconds / num_trials:.2f} ms | {1e3 * costs.again_seconds:.0f} ms "
                f"| {costs.peak_bytes / _MIB:.0f} MiB |",
                flush=True,
            )
    return []


def fill_trials(storage: str, num_trials: int, studies_of: int) -> None:
    name = "search"
    with quiet_optuna():
        serve_load.told(storage, name, _SETTINGS)
        studies = {f"{name}-{number}": studies_of for number in range(1, num_trials // studies_of)}
        storage_copies.fill(storage, name, {name: studies_of, **studies})


def read_apart(storage: str) -> ReadCosts:
    """Reads a storage in a process of its own, whose memory is that of `autofit serve`."""
    command = [sys.executable, __file__, "--read", storage]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return ReadCosts(**json.loads(done.stdout))


def read(storage: str) -> ReadCosts:
    metrics = Metrics(CollectorRegistry())
    reader = StorageReader(storage, emit=metrics, log=print)
    first = once(reader.read)
    again = timed(reader.read)
    status = Path("/proc/self/status").read_text()
    (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return ReadCosts(first, again, int(kib) * 1024)


# ── workers ─────────────────────────────────────────────────────────────────────────────────────


class SimulatedWorkers:
    """Workers that wait as long as a trial takes, and answer as a measured trial does.

    Args:
        num_workers: trials that run at the same time.
        seconds: time that each trial takes.
    """

    def __init__(self, num_workers: int, seconds: float) -> None:
        self._num_workers = num_workers
        self._seconds = seconds
        self._due: list[tuple[float, int, Future[TrialOutcome], TrialSpec]] = []
        self._submitted = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._end_trials, daemon=True).start()

    def capacity(self, trial: Probe | TrialSpec) -> int:
        return self._num_workers

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        future: Future[TrialOutcome] = Future()
        with self._changed:
            self._submitted += 1
            # The first trials end one after the other, as those of workers that joined one after the other.
            part = self._submitted / self._num_workers if self._submitted <= self._num_workers else 1.0
            due = time.monotonic() + self._seconds * part
            heapq.heappush(self._due, (due, self._submitted, future, spec))
            self._changed.notify()
        return future

    def _end_trials(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, future, spec = heapq.heappop(self._due)
            future.set_result(study_load.measured(spec.knobs, spec.batch_size))


def workers_table(options: argparse.Namespace) -> list[str]:
    """Prints a row for each storage and number of workers; returns what exceeds the limit."""
    titles = "| storage | trials at once | processor time a trial | workers that it keeps busy | memory |"
    print(f"{titles}\n{'|---' * 5}|")
    exceeded = []
    for kind in options.backends:
        of_a_trial: list[float] = []
        for num_workers in options.workers:
            with study_load.place(kind) as storage:
                of_a_trial.append(coordinator_seconds(storage, num_workers, options.trial_seconds))
            print(
                f"| {kind} | {num_workers} | {1e3 * of_a_trial[-1]:.1f} ms "
                f"| {_USUAL_TRIAL_SECONDS / of_a_trial[-1]:.0f} "
                f"| {psutil.Process().memory_info().rss / _MIB:.0f} MiB |",
                flush=True,
            )
        if of_a_trial and of_a_trial[-1] > options.most * of_a_trial[0]:
            ratio = of_a_trial[-1] / of_a_trial[0]
            exceeded.append(f"{kind}: a trial takes ×{ratio:.1f} with {options.workers[-1]} workers")
    return exceeded


def coordinator_seconds(storage: str, num_workers: int, trial_seconds: float) -> float:
    """Processor seconds that a coordinator takes for a trial, of half as many again as it has workers."""
    curves: dict[Knobs, CachedCurve] = {}

    def curve(knobs: Knobs) -> CachedCurve:
        line = study_load.Line(int(study_load.needed_per_sample(knobs) * 1.25))
        return curves.setdefault(knobs, CachedCurve.of(line))

    spec = TrialSpec(
        workload=WorkloadRef(kind="builtin", target="resnet50"),
        batch_size=1,
        probe=Probe.CUDA,
        budget_bytes=study_load.BUDGET_BYTES,
    )
    options: dict[str, Any] = {"budget_bytes": study_load.BUDGET_BYTES, "settings": {}, "name": "load"}
    with (
        quiet_optuna(),
        TuningStudy.open(study_load.whole_space(), storage=storage, curves=curve, seed=0, **options) as study,
    ):
        tuner = Tuner(
            spec=spec,
            study=study,
            curves=CurveSet(),
            trials=SimulatedWorkers(num_workers, trial_seconds),
            emit=lambda _event: None,
            limits=Limits(num_trials=num_workers + max(num_workers // 2, 50)),
        )
        seconds = once(tuner.run)
        return seconds / study.num_trials


if __name__ == "__main__":
    sys.exit(main())
