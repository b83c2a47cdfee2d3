"""Admits queued jobs from a long-running process: repeats `admit`, even after failures."""

from __future__ import annotations

from autofit.errors import DispatchError, StorageError
from autofit.jobs.admission import admit
from autofit.jobs.queue import JobQueue
from autofit.jobs.ray_jobs import RayJobs
from autofit.serve.background import Log


class Admitting:
    """Starts queued jobs on a Ray cluster, each time that it is called to.

    A job is one `autofit tune` on the cluster; the process that runs it there is its driver.

    Args:
        storage: URL or path of the storage that holds the queue; None for a journal in the state directory.
        address: address of Ray's dashboard.
        log: called with a line when a job was started, and when starting jobs fails or works again.
    """

    def __init__(self, storage: str | None, *, address: str, log: Log) -> None:
        self._storage = storage
        self._address = address
        self._log = log
        self._queue: JobQueue | None = None
        self._ray_jobs: RayJobs | None = None
        self._failure: str | None = None

    def run(self) -> None:
        """Starts as many queued jobs as the cluster has room for.

        If the cluster or the storage does not answer, this is logged and not raised.

        Raises:
            UsageError: the address or storage is invalid.
        """
        try:
            if self._queue is None:
                self._queue = JobQueue.open(self._storage)
            if self._ray_jobs is None:
                self._ray_jobs = RayJobs(self._address)
            started = admit(self._queue, self._ray_jobs)
        except (DispatchError, StorageError) as error:
            self._ray_jobs = None  # a head node that comes back may be a new cluster
            if self._failure != error.message:
                self._log(f"no job can be started for now: {error.message}")
            self._failure = error.message
            return
        if self._failure is not None:
            self._log("jobs can be started again")
        self._failure = None
        for job in started:
            self._log(f"started a driver of {job.job_id}")

    def close(self) -> None:
        """Closes the storage of the job queue."""
        if self._queue is not None:
            self._queue.close()
