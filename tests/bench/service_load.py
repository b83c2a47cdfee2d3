"""What a queue of jobs costs, and whether any is lost.

    python tests/bench/service_load.py [--jobs 200] [--drivers 2] [--run sqlite]
                                       [journal sqlite postgresql]

First what the queue itself takes in each storage, without drivers: a job is enqueued, claimed, its
driver noted and its result kept, and all of it is read back.

Then `--run` names the storage in which the jobs, all queued at once, are done for real: `autofit
serve --address` admits them to a Ray head with so many places, each driver is a Ray job that
predicts a tiny workload, and the next one is admitted when it ends. That takes some five seconds of
CPU a job. Reported are the time for a job, how much of it the places were busy, and the memory of
the process that admits.

Exits with 1 where a job was lost or answered wrongly, or where that memory grew by more than a tenth
between the first and the last quarter of the jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

import autofit
from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobRecord, JobSpec, JobState
from tests.conformance.dispatcher import ROOT
from tests.daemons import Daemon
from tests.postgres import running_postgres
from tests.ray_cluster import RayCluster

Result = TypeVar("Result")

BACKENDS = ("journal", "sqlite", "postgresql")
MAX_GROWTH = 1.1

_MIB = 2**20
_MODEL = f"{ROOT / 'tests' / 'autofit' / 'tiny_workloads.py'}:grows"
_SMALLEST_MIB, _STEP_MIB = 4096, 64
_NUM_CHECKED = 5
_LOOK_SECONDS = 0.5
_GIVE_UP_SECONDS = 60.0  # for each job


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backends", nargs="*", metavar="STORAGE", default=list(BACKENDS))
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--drivers", type=int, default=2)
    parser.add_argument("--run", choices=[*BACKENDS, "none"], default="sqlite")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster has to be ended
    with tempfile.TemporaryDirectory(prefix="service-load-") as folder:
        os.environ["AUTOFIT_STATE_DIR"] = folder
        document = autofit.tune(_MODEL, gpu_mem="8G", conv_algo="native", probe="predict").to_dict()
        print("| storage | enqueue | claim | note driver | keep result | read all | last / first quarter |")
        print("|---|---|---|---|---|---|---|")
        for name in options.backends:
            with storage_of(name) as storage:
                print(queue_costs(name, storage, options.jobs, document), flush=True)
        if options.run == "none":
            return 0
        with storage_of(options.run) as storage:
            return run(options.run, storage, options.jobs, options.drivers)


@contextlib.contextmanager
def storage_of(backend: str) -> Iterator[str]:
    """A new storage of a kind."""
    if backend == "postgresql":
        with running_postgres() as server:
            yield server.url
        return
    with tempfile.TemporaryDirectory(prefix="service-load-") as folder:
        path = f"{folder}/jobs"
        yield f"sqlite:///{path}.db" if backend == "sqlite" else f"{path}.journal"


def spec(number: int) -> JobSpec:
    """A job that differs from the others by its memory, and so has a study and an answer of its own."""
    memory = f"{_SMALLEST_MIB + number * _STEP_MIB}M"
    options = {"model": _MODEL, "gpu-mem": memory, "conv-algo": "native", "probe": "predict"}
    return JobSpec(options=options, workload="tiny_workloads.py:grows", max_drivers=10**6)


def job_id(number: int) -> str:
    return f"grows-{number:012}"


# ── the queue alone ─────────────────────────────────────────────────────────────────────────────


def queue_costs(backend: str, storage: str, num_jobs: int, document: dict[str, Any]) -> str:
    """A row of the table: the median of each step, and how it grows with the queue."""
    with JobQueue.open(storage) as queue:
        enqueued = [timed(lambda n=n: queue.enqueue(job_id(n), spec(n))) for n in range(num_jobs)]
        claimed, noted, kept = [], [], []
        for _ in range(num_jobs):
            seconds, job = timed(queue.claim_next)
            assert job is not None
            claimed.append((seconds, job))
            noted.append(timed(lambda job=job: queue.record_attempt(job, f"{job.job_id}.1")))
            kept.append(timed(lambda job=job: queue.finish(job, document)))
        read, records = timed(queue.records)
    assert [job.state for job in records] == [JobState.SUCCEEDED] * num_jobs
    steps = [[seconds for seconds, _ in step] for step in (enqueued, claimed, noted, kept)]
    whole = [sum(seconds) for seconds in zip(*steps, strict=True)]
    quarter = max(num_jobs // 4, 1)
    growth = sum(whole[-quarter:]) / sum(whole[:quarter])
    cells = [f"{1e3 * statistics.median(seconds):.1f} ms" for seconds in (*steps, [read])]
    return f"| {backend} | {' | '.join(cells)} | ×{growth:.2f} |"


def timed(call: Callable[[], Result]) -> tuple[float, Result]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


# ── with drivers ────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class Look:
    """A moment of the run: jobs that were over, and the resident memory of the process that admits."""

    num_over: int
    resident_bytes: int


def run(backend: str, storage: str, num_jobs: int, num_drivers: int) -> int:
    """Does the jobs for real; returns the exit code."""
    with (
        tempfile.TemporaryDirectory(prefix="service-load-") as folder,
        RayCluster(num_drivers=num_drivers, environment={"AUTOFIT_STATE_DIR": folder}) as cluster,
        JobQueue.open(storage) as queue,
    ):
        cluster.await_started()
        for number in range(num_jobs):
            queue.enqueue(job_id(number), spec(number))
        command = [sys.executable, "-P", "-m", "autofit.cli", "serve", "--port=0", f"--storage={storage}"]
        began = time.time()
        with Daemon(
            [*command, f"--address={cluster.jobs_address}"],
            log=Path(folder) / "serve.log",
            environment={**cluster.environment, "PYTHONPATH": str(ROOT), "AUTOFIT_STATE_DIR": folder},
        ) as serve:
            looks = watch(queue, psutil.Process(serve.process.pid), num_jobs)
        records = queue.records()
    wrong = wrong_answers(records)
    lost = [job for job in records if job.state is not JobState.SUCCEEDED]
    growth = memory_growth(looks, num_jobs)
    report(backend, records, began=began, num_drivers=num_drivers, looks=looks)
    print(f"lost: {len(lost)}; wrong: {len(wrong)}; more than one driver: {num_repeated(records)}")
    for job in lost + wrong:
        print(f"  {job.job_id} {job.state}: {job.state_reason}")
    return 1 if lost or wrong or len(records) != num_jobs or growth > MAX_GROWTH else 0


def watch(queue: JobQueue, admits: psutil.Process, num_jobs: int) -> list[Look]:
    """Looks on until all jobs are over, or none has ended for too long."""
    looks: list[Look] = []
    moved = time.monotonic()
    while not looks or looks[-1].num_over < num_jobs:
        num_over = sum(job.state.is_over for job in queue.records())
        if not looks or num_over > looks[-1].num_over:
            moved = time.monotonic()
            print(f"\r{num_over} of {num_jobs}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - moved > _GIVE_UP_SECONDS:
            break
        looks.append(Look(num_over, admits.memory_info().rss))
        time.sleep(_LOOK_SECONDS)
    print(file=sys.stderr)
    return looks


def wrong_answers(records: list[JobRecord]) -> list[JobRecord]:
    """Jobs whose answer is not that of a tune here, of some; or is less than that of a smaller memory."""
    done = [job for job in records if job.document is not None and job.document.get("best")]
    answers = [job.document["best"]["batch_size"] for job in done if job.document is not None]
    wrong = [
        job for job, answer, before in zip(done[1:], answers[1:], answers, strict=False) if answer < before
    ]
    for job, answer in list(zip(done, answers, strict=True))[:: max(len(done) // _NUM_CHECKED, 1)]:
        here = autofit.tune(
            _MODEL, gpu_mem=job.spec.options["gpu-mem"], conv_algo="native", probe="predict", fresh=True
        )
        if here.best is None or here.best.batch_size != answer:
            wrong.append(job)
    return wrong


def memory_growth(looks: list[Look], num_jobs: int) -> float:
    """The last quarter's median over the first's, once it has begun to admit."""
    first = [look.resident_bytes for look in looks if 0 < look.num_over <= num_jobs / 4]
    last = [look.resident_bytes for look in looks if look.num_over >= num_jobs * 3 / 4]
    return statistics.median(last) / statistics.median(first) if first and last else 1.0


def num_repeated(records: list[JobRecord]) -> int:
    return sum(len(job.attempts) > 1 for job in records)


def report(
    backend: str, records: list[JobRecord], *, began: float, num_drivers: int, looks: list[Look]
) -> None:
    spans = [
        (job.started_seconds, job.ended_seconds)
        for job in records
        if job.started_seconds is not None and job.ended_seconds is not None
    ]
    wall = max((end for _, end in spans), default=began) - began
    busy = sum(end - start for start, end in spans)
    driver = statistics.median(end - start for start, end in spans)
    print(
        f"\n{len(records)} jobs in {backend}, {num_drivers} drivers at once: {wall:.0f} s, "
        f"{wall / len(records):.2f} s for each; a driver's median {driver:.1f} s; its place busy "
        f"{busy / wall / num_drivers:.0%} of the time"
    )
    resident = [look.resident_bytes / _MIB for look in looks]
    print(
        f"the process that admits: {resident[-1]:.0f} MiB at the end, {max(resident):.0f} MiB at most, "
        f"×{memory_growth(looks, len(records)):.2f} from the first quarter to the last"
    )


if __name__ == "__main__":
    sys.exit(main())
