"""Reads the jobs of a storage repeatedly, each once in each of its states."""

from __future__ import annotations

import collections
from dataclasses import dataclass

from optuna.trial import TrialState

from autofit.jobs.queue import JobQueue, JobRead, JobRecord
from autofit.jobs.records import JobState
from autofit.study.damage import Unreadable


@dataclass(frozen=True, slots=True)
class _Job:
    """Part of a job that is counted; its state is None if the job cannot be read."""

    job_id: str
    state: JobState | None
    unreadable: tuple[Unreadable, ...]


class JobReader:
    """Counts the jobs of a queue again and again, without reading unchanged ones again.

    Of a job only its id and state are kept, and until `take_over` returns it, its answer. A waiting job that
    is damaged after it was read is noticed when its state changes.
    """

    def __init__(self) -> None:
        self._states: dict[int, TrialState] = {}
        self._jobs: dict[int, _Job] = {}
        self._over: collections.deque[JobRecord] = collections.deque()

    def read(self, queue: JobQueue) -> None:
        """Reads what has changed in a queue since the last call.

        Raises:
            StorageError: the storage cannot be read.
        """
        states, changes = queue.changes(self._states)
        for gone in self._states.keys() - states.keys():
            self._jobs.pop(gone, None)
        for trial_id, read in changes.items():
            self._take(trial_id, read)
        self._states = states

    def by_state(self) -> dict[str, int]:
        """Number of readable jobs by the name of their state."""
        return dict(collections.Counter(job.state.value for job in self._firsts() if job.state is not None))

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        return tuple(left_aside for job in self._firsts() for left_aside in job.unreadable)

    def take_over(self, most: int) -> list[JobRecord]:
        """Returns jobs that are over, each once, with their answers; at most so many in a call."""
        return [self._over.popleft() for _ in range(min(most, len(self._over)))]

    def _take(self, trial_id: int, read: JobRead) -> None:
        state = None if read.record is None else read.record.state
        self._jobs[trial_id] = _Job(read.job_id, state, read.unreadable)
        if read.record is not None and read.record.state.is_over:
            self._over.append(read.record)

    def _firsts(self) -> list[_Job]:
        """Jobs in the order in which they were enqueued; of several with the same id, the first."""
        found: dict[str, _Job] = {}
        for trial_id in self._states:
            if (job := self._jobs.get(trial_id)) is not None:
                found.setdefault(job.job_id, job)
        return list(found.values())
