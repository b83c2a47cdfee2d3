"""Starts drivers of queued jobs, and restarts or ends jobs whose driver is gone.

    queue ── claim_next ─▶ admit ── submit ─▶ Ray's job server ─▶ driver: autofit tune … --job ID
      ▲                      ▲                                        │
      └──── result, end ─────┴──────────── admits the next ◀──────────┘

A running Ray job takes five processes and a hundred megabytes, and Ray fails a job that waits for
resources after a quarter of an hour. So jobs wait in autofit's queue, and few are Ray's at a time.

Ray accepts a submission id once, which decides which process starts a driver. Therefore several
processes may call `admit` at the same time, and any of them may be killed in it.

One storage serves one cluster: a driver that this cluster does not know counts as lost.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autofit.errors import DispatchError
from autofit.jobs import packages
from autofit.jobs.queue import JobQueue
from autofit.jobs.ray_jobs import STOP_SECONDS, Driver, RayJobs, RefusedError
from autofit.jobs.records import JobRecord
from autofit.jobs.submission import entrypoint, storage_for_driver

MAX_ATTEMPTS = 2
STOPPED = "stopped; the study keeps its trials, and submitting the job with --again continues it"

# Time for a process that claimed a job to start the job's driver; after it, the process counts as killed.
_CLAIM_SECONDS = 60.0
_KILL_SECONDS = 15.0  # time in which Ray notices that a killed driver is gone
_LOOK_SECONDS = 0.2


def admit(queue: JobQueue, ray_jobs: RayJobs) -> list[JobRecord]:
    """Starts drivers for queued jobs while there is room, and restarts or ends jobs whose driver is gone.

    A job is one `autofit tune` on a Ray cluster; its driver is the process that runs it there. Several
    processes may call this function at the same time. If one of them is killed, the next call repairs what
    it left.

    Returns:
        Jobs whose driver was started.
    """
    slots = ray_jobs.driver_slots()
    admission = _Admission(queue, ray_jobs, needs_slot=slots is not None)
    started = [job for job in queue.running() if admission.started_again(job)]
    while (job := queue.claim_next(max_running=slots)) is not None:
        if admission.start(job, attempt=1):
            started.append(job)
    return started


def stop(queue: JobQueue, job: JobRecord, connect: Callable[[], RayJobs]) -> None:
    """Stops a job, and the process (driver) that runs it; the finished trials stay stored.

    Args:
        connect: returns a client of the cluster's job server; called only if the job has a driver to stop.

    Raises:
        DispatchError: the driver could not be stopped. The job stays marked as stopped by the user, so that
            no other driver starts for it.
    """
    queue.request_stop(job)
    if job.attempts:
        submission_id = job.attempts[-1].submission_id
        ray_jobs = connect()
        ray_jobs.stop(submission_id)
        give_up = time.monotonic() + STOP_SECONDS + _KILL_SECONDS
        while (driver := ray_jobs.driver(submission_id)) is not None and not driver.has_ended:
            if time.monotonic() > give_up:
                raise DispatchError(
                    f"job {job.job_id} still runs after it was told to stop: see the log of its driver "
                    f"{submission_id} on the cluster's head, and stop it again"
                )
            time.sleep(_LOOK_SECONDS)
    queue.give_up(job, STOPPED)  # no effect if the driver has answered before it ended


@dataclass(frozen=True, slots=True)
class _Admission:
    """Starts, restarts and ends the jobs of a queue through a cluster's job server."""

    queue: JobQueue
    ray_jobs: RayJobs
    needs_slot: bool

    def start(self, job: JobRecord, *, attempt: int) -> bool:
        """Starts a job's driver, the process that runs the job; returns whether this call started it.

        The result is False if the same attempt was started before, or if the driver cannot be started; then
        the job is ended.

        Args:
            attempt: number of the driver among those of the job, from 1.
        """
        submission_id = f"{job.job_id}.{attempt}"
        command = entrypoint(
            job,
            storage_url=storage_for_driver(self.queue.url),
            first_attempt=attempt == 1,
        )
        try:
            with self._working_dir(job) as working_dir:
                is_new = self.ray_jobs.submit(
                    submission_id, command, working_dir=working_dir, needs_slot=self.needs_slot
                )
        except (RefusedError, packages.PackageGoneError) as error:
            self.queue.give_up(job, f"no driver could be started: {error.message}")
            return False
        self.queue.record_attempt(job, submission_id)
        return is_new

    def started_again(self, job: JobRecord) -> bool:
        """Starts another driver for a running job whose driver is gone; returns whether one was started."""
        if not job.attempts:
            is_under_way = time.time() - (job.claimed_seconds or 0.0) < _CLAIM_SECONDS
            return not is_under_way and self.start(job, attempt=1)
        submission_id = job.attempts[-1].submission_id
        driver = self.ray_jobs.driver(submission_id)
        if driver is not None and not driver.has_ended:
            return False
        # The driver writes its answer before it ends, so the record is read after the driver's state.
        now = self.queue.record(job.job_id)
        if now is None or now.state.is_over or now.attempts != job.attempts or self.queue.settle(now):
            return False
        return self._after_loss(now, driver)

    def _after_loss(self, job: JobRecord, driver: Driver | None) -> bool:
        """Stops, restarts or gives up a job whose driver ended without an answer.

        Args:
            driver: last known state of the driver; None if the cluster does not know it.

        Returns:
            Whether another driver was started.
        """
        if job.stop_requested or (driver is not None and driver.status == "STOPPED"):
            self.queue.request_stop(job)
            self.queue.give_up(job, STOPPED)
            return False
        reason = f"driver {job.attempts[-1].submission_id} {_end_in_words(driver)}"
        if len(job.attempts) >= MAX_ATTEMPTS:
            self.queue.give_up(
                job,
                f"{reason}, like the driver before it: see `autofit logs {job.job_id}`; the study keeps its "
                "trials, and submitting the job with --again continues it",
            )
            return False
        self.queue.explain(job, f"{reason}: started again")
        return self.start(job, attempt=len(job.attempts) + 1)

    @contextmanager
    def _working_dir(self, job: JobRecord) -> Iterator[str | None]:
        """Context manager that yields the path or URI of a job's code; None if the nodes have the code.

        Returns:
            Path of a zip file, or the URI that nodes fetch the code from; None if the nodes have the code.
        """
        working_dir = job.spec.working_dir
        if working_dir is None or working_dir.digest is None:
            yield None if working_dir is None else working_dir.where
            return
        package = packages.load(self.queue.storage, working_dir)
        with tempfile.TemporaryDirectory(prefix="autofit-") as folder:
            path = Path(folder, "working_dir.zip")
            path.write_bytes(package)
            yield str(path)


def _end_in_words(driver: Driver | None) -> str:
    if driver is None:
        return "is no longer among the cluster's jobs"
    if driver.status == "SUCCEEDED":
        return "ended without a result"
    return f"failed ({driver.message.rstrip(',:.')})"
