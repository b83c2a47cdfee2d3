"""Driver of a job: runs the search of `autofit tune --job ID`, and records its answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autofit.errors import AutofitError, ExitCode, UsageError
from autofit.events import Event, TuneStarted
from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobRecord
from autofit.jobs.submission import STORAGE_VARIABLE
from autofit.paths import KEY_VARIABLE
from autofit.tuning.result import TuneResult

_CLUSTER_VARIABLE = "RAY_ADDRESS"  # Ray sets it for its drivers


@dataclass(frozen=True, slots=True)
class JobDriver:
    """Access of a job's driver (the process that runs the job) to the job's record.

    When called with the search's first event, it records the name of the study that holds the trials.
    """

    queue: JobQueue
    job: JobRecord

    def __call__(self, event: Event) -> None:
        if isinstance(event, TuneStarted):
            self.queue.note_study(self.job, event.study)

    def answer(self, result: TuneResult) -> None:
        """Ends the job with the result of its search as its answer."""
        self.queue.finish(self.job, result.to_dict())


@contextmanager
def driving(job_id: str, storage: str | None, *, warn: Callable[[str], None]) -> Iterator[JobDriver]:
    """Context manager within which a process runs a job; it keeps the job's record up to date.

    An expected error is recorded as the job's answer. At the end of the block the next queued job is started.
    If the block gives no answer, or is interrupted though nobody asked to stop the job, the job stays open
    and is started again later.

    Args:
        storage: URL or path of the storage that holds the job.
        warn: called with a sentence on why no other job could be started.

    Raises:
        UsageError: the storage has no such job, or the job is over.
    """
    with JobQueue.open(storage) as queue:
        job = queue.record(job_id)
        if job is None:
            raise UsageError(
                f"{queue.storage.where} has no job {job_id}: set {STORAGE_VARIABLE} on the cluster to the "
                "storage that jobs are submitted to"
            )
        if job.state.is_over:
            raise UsageError(f"job {job_id} is over ({job.state}): submit it with --again to repeat it")
        try:
            yield JobDriver(queue, job)
        except AutofitError as error:
            if error.exit_code == ExitCode.INTERRUPTED:
                if _was_stopped(queue, job):
                    queue.finish(job, json.loads(error.to_json()))
                raise
            queue.finish(job, json.loads(error.to_json()))
            _admit_next(queue, job, warn)
            raise
        _admit_next(queue, job, warn)


def _was_stopped(queue: JobQueue, job: JobRecord) -> bool:
    now = queue.record(job.job_id)
    return now is not None and now.stop_requested


def _admit_next(queue: JobQueue, job: JobRecord, warn: Callable[[str], None]) -> None:
    """Starts the next queued job on this cluster; a failure is only a warning."""
    address = os.environ.get(_CLUSTER_VARIABLE)
    if address is None:  # started by hand, outside a cluster
        return
    if job.is_signed and not queue.has_key:  # forged signatures cannot be recognized
        warn(f"no other job was started: jobs are signed and a driver has no {KEY_VARIABLE}, see SECURITY.md")
        return
    from autofit.jobs.admission import admit
    from autofit.jobs.ray_jobs import RayJobs

    try:
        admit(queue, RayJobs(address))
    except AutofitError as error:
        warn(f"no other job was started: {error.message}")
