"""Queue of a cluster's jobs in the shared storage: the trials of one Optuna study.

    enqueue ─▶ WAITING ── claim_next ─▶ RUNNING ── finish ─▶ COMPLETE   its value: the best batch, or 0
               queued                   running │            succeeded
                  │                             └─ finish ─▶ FAIL
                  └──────── stopped ───────────────────────▶ failed, stopped

Only one process can take a trial from WAITING to RUNNING in the storage. As all processes take the oldest
waiting job, that step also keeps the number of running jobs within a limit, however many processes admit
jobs at the same time.

Everything else about a job is a user attribute of its trial (`stored/attributes.py`), and the state is
written last: an ended job has its result. A step of one job reads that job alone, so that its cost does
not grow with the queue.

Each job is read separately: a job that is damaged, of a newer version or not signed with the storage's key
stays in the storage, and is neither shown nor started.
"""

from __future__ import annotations

import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.errors import StorageError
from autofit.jobs.records import Attempt, JobRecord, JobSpec, JobState, WorkingDir, gist_of, packed, unpacked
from autofit.jobs.signing import Key, storage_key
from autofit.jobs.stored.attributes import (
    ATTEMPTS,
    DUPLICATE,
    ENDED,
    GIST,
    JOB,
    JOB_ID,
    JOBS_STUDY,
    MARK,
    PACKED_RESULT,
    SCHEMA,
    STATE_REASON,
    STOPPED,
    STUDY,
    record_of,
    spec_to_dict,
)
from autofit.paths import studies_dir
from autofit.study.damage import DamagedError, Kind, Unreadable, UnreadableError
from autofit.study.storage import Storage, journal_path, open_storage, quiet_optuna
from autofit.tuning.schema import TUNE_SCHEMA
from autofit_workers.spec.pythons import Self

__all__ = ["JOBS_STUDY", "Attempt", "JobQueue", "JobRead", "JobRecord", "JobSpec", "JobState", "WorkingDir"]

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def _tried_again(
    method: Callable[Concatenate[JobQueue, _Arguments], _Answer],
) -> Callable[Concatenate[JobQueue, _Arguments], _Answer]:
    """Decorator that repeats a method of the queue while the storage cannot be reached."""

    @functools.wraps(method)
    def wrapped(self: JobQueue, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Answer:
        return self.storage.run(lambda: method(self, *arguments, **options))

    return wrapped


@dataclass(frozen=True, slots=True)
class JobRead:
    """Job as it was read from its trial.

    Attributes:
        record: None if the job cannot be read.
        unreadable: what cannot be read: the job itself, or starts of its driver.
    """

    job_id: str
    record: JobRecord | None
    unreadable: tuple[Unreadable, ...]


class JobQueue:
    """Queue of jobs in an open storage; use it in a `with` statement, or close it.

    A job is one `autofit tune` that runs on a Ray cluster. Records of finished jobs are read only once.

    Every method raises `StorageError` when the storage cannot be read or written.

    Args:
        key: secret with which enqueued jobs are signed; jobs without its signature are ignored. None if jobs
            need no signature.

    Attributes:
        url: URL or path of the storage, including any secret.
        unreadable: records that were skipped when the jobs were last read.
    """

    def __init__(self, storage: Storage, *, url: str, key: Key | None = None) -> None:
        self._storage = storage
        self.url = url
        self._key = key
        self.unreadable: tuple[Unreadable, ...] = ()
        self._study_id: int | None = None
        self._cached = optuna.storages.get_storage(storage.backend)  # keeps trials that have ended

    @classmethod
    def open(cls, storage: str | None) -> Self:
        """Opens the job queue in a storage.

        Args:
            storage: database URL or path of a journal file; None for a journal in the state directory.

        Raises:
            UsageError: the environment sets a key for the storage, which is too short.
        """
        key = storage_key()
        if storage is None:
            studies_dir()  # creates the folder
        url = storage or str(journal_path(None, JOBS_STUDY))
        with quiet_optuna():
            return cls(open_storage(url, JOBS_STUDY), url=url, key=key)

    @property
    def storage(self) -> Storage:
        return self._storage

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._storage.close()

    @_tried_again
    def records(self, *, newest: int | None = None) -> list[JobRecord]:
        """Jobs of the queue, in the order in which they were enqueued.

        Args:
            newest: number of jobs, of which the last are read; None for all.
        """
        return list(self._jobs(newest).values())

    @_tried_again
    def record(self, job_id: str) -> JobRecord | None:
        """Job with the id `job_id`; None if there is none.

        Raises:
            StorageError: the job exists and cannot be read.
        """
        trial = self._trials_of([job_id]).get(job_id)
        return None if trial is None else self._required(trial)

    @_tried_again
    def latest(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Jobs as they are now; one that can no longer be read stays as it was given."""
        given = list(jobs)
        trials = self._trials_of([job.job_id for job in given])
        return [self._required(trials[job.job_id]) if job.job_id in trials else job for job in given]

    @_tried_again
    def running(self) -> list[JobRecord]:
        """Jobs that a driver runs, or is to be started for, in the order in which they were enqueued."""
        study_id = self._study(create=False)
        if study_id is None:
            return []
        trials = self._storage.backend.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        return [job for trial in trials if (job := self._readable(trial, [])) is not None]

    @_tried_again
    def changes(self, known: Mapping[int, TrialState]) -> tuple[dict[int, TrialState], dict[int, JobRead]]:
        """Reads the jobs whose state has changed, and those that run.

        Args:
            known: states of the jobs' trials by the trials' ids, as an earlier call returned them.

        Returns:
            Two values: the states of all jobs' trials by the trials' ids, ascending, and what was read now of
            those whose state is not `known`.
        """
        study_id = self._study(create=False)
        states = {} if study_id is None else self._storage.trial_states(study_id)
        changed = [
            trial_id
            for trial_id, state in states.items()
            if state is TrialState.RUNNING or state is not known.get(trial_id)
        ]
        read: dict[int, JobRead] = {}
        for trial in () if study_id is None else self._storage.trials_at(study_id, changed):
            left_aside: list[Unreadable] = []
            (job_id,) = _firsts([trial])
            record = self._readable(trial, left_aside)
            read[_trial_id(trial)] = JobRead(job_id, record, tuple(left_aside))
        return states, read

    @property
    def has_key(self) -> bool:
        """Whether the queue has a signing key, so only jobs signed with it are read."""
        return self._key is not None

    def enqueue(self, job_id: str, spec: JobSpec, *, again: bool = False) -> tuple[JobRecord, bool]:
        """Adds a job at the end of the queue, unless a job with its id exists.

        Args:
            job_id: id of the job, which is equal for jobs with equal content.
            again: whether to add a job even if one with this id exists; its id then ends in -2, -3, ….

        Returns:
            The job, and whether it is new. Without `again`, an existing job with this id is returned
            unchanged.
        """
        mark = uuid.uuid4().hex
        return self._storage.run(lambda: self._enqueue(job_id, spec, again=again, mark=mark))

    def enqueue_all(self, jobs: Sequence[tuple[str, JobSpec]]) -> list[tuple[JobRecord, bool]]:
        """Adds jobs at the end of the queue in their order, but for those whose id exists; see `enqueue`.

        What many jobs have in common is read once. If the process is killed meanwhile, the same call adds
        the jobs that are missing.

        Args:
            jobs: id and specification of each job.

        Returns:
            Each job, and whether it is new.
        """
        mark = uuid.uuid4().hex
        return self._storage.run(lambda: self._enqueue_all(jobs, mark))

    def _enqueue_all(self, jobs: Sequence[tuple[str, JobSpec]], mark: str) -> list[tuple[JobRecord, bool]]:
        ids = list(dict.fromkeys(job_id for job_id, _ in jobs))
        self._study(create=True)
        known = self._trials_of(ids)
        new = {job_id for job_id, trial in known.items() if trial.user_attrs.get(MARK) == mark}
        created: dict[str, int] = {}
        for job_id, spec in jobs:
            if job_id not in known and job_id not in created:
                created[job_id] = self._create(job_id, spec, mark)
        for job_id, trial in self._trials_of(list(created)).items():
            known[job_id] = trial
            if _trial_id(trial) == created[job_id]:
                new.add(job_id)
            else:
                self._end_duplicate(created[job_id])
        answers = []
        for job_id, _ in jobs:
            answers.append((self._required(known[job_id]), job_id in new))
            new.discard(job_id)  # a job that is given twice is new once
        return answers

    def _end_duplicate(self, trial_id: int) -> None:
        """Ends a trial that was created with the id of another job: another process was faster."""
        self._storage.backend.set_trial_user_attr(trial_id, DUPLICATE, True)
        self._set_state(self._storage.backend.get_trial(trial_id), TrialState.FAIL)

    def _enqueue(self, job_id: str, spec: JobSpec, *, again: bool, mark: str) -> tuple[JobRecord, bool]:
        """Adds a job unless one with its id or its `mark` exists; returns the job, and whether it is new."""
        while True:
            study_id = self._study(create=True)
            assert study_id is not None
            for trial in self._storage.trials_with(study_id, MARK, [mark]):
                if DUPLICATE not in trial.user_attrs:  # written before the connection was lost
                    return self._required(trial), True
            known = self._trials_of([job_id])
            if known and not again:
                return self._required(known[job_id]), False
            free_id, number = job_id, 2
            while known:
                free_id, number = f"{job_id}-{number}", number + 1
                known = self._trials_of([free_id])
            created = self._create(free_id, spec, mark)
            first = self._trials_of([free_id])[free_id]
            if _trial_id(first) == created:
                return self._required(first), True
            self._end_duplicate(created)

    @_tried_again
    def claim_next(self, *, max_running: int | None = None) -> JobRecord | None:
        """Takes the oldest queued job and marks it as running, so that no other process starts its driver.

        Args:
            max_running: most jobs that may run in parallel, besides the limit that the job itself sets; None
                for that limit alone.

        Returns:
            The job; None if no job waits, or as many jobs as allowed are running.
        """
        while (trial := self._oldest_waiting()) is not None:
            own_limit = self._required(trial).spec.max_drivers
            limit = own_limit if max_running is None else min(own_limit, max_running)
            if len(self.running()) >= limit:
                return None
            # A process that loses this race reads the jobs again before it takes the next: see the module's
            # text.
            if self._set_state(trial, TrialState.RUNNING):
                return self._required(self._refreshed(trial))
        return None

    def _oldest_waiting(self) -> FrozenTrial | None:
        """Trial of the oldest queued job that can be read and started; None if there is none.

        Older ones that cannot be read are noted in `unreadable`.
        """
        study_id = self._study(create=False)
        left_aside: list[Unreadable] = []
        waiting = () if study_id is None else self._storage.trials_one_by_one(study_id, TrialState.WAITING)
        oldest = None
        for trial in waiting:
            job = self._readable(trial, left_aside)
            # Of two with the same id the first is the job; the process that made the other was killed.
            if job is not None and self._trials_of([job.job_id])[job.job_id].number == trial.number:
                oldest = trial
                break
        self.unreadable = tuple(left_aside)
        return oldest

    @_tried_again
    def record_attempt(self, job: JobRecord, submission_id: str) -> JobRecord:
        """Records that a driver (the process that runs the job) was started; a second call changes nothing.

        Args:
            submission_id: id of the driver's Ray job.
        """
        trial = self._known(job)
        attempts = list(trial.user_attrs.get(ATTEMPTS, ()))
        if all(attempt.submission_id != submission_id for attempt in self._required(trial).attempts):
            new = {"schema": SCHEMA, "submission_id": submission_id, "started_seconds": time.time()}
            self._set_attribute(trial, ATTEMPTS, [*attempts, new])
        return self._required(self._refreshed(trial))

    @_tried_again
    def explain(self, job: JobRecord, reason: str) -> None:
        """Records a sentence that explains the job's state; does nothing once the job is over.

        Args:
            reason: the sentence.
        """
        self._set_attribute(self._known(job), STATE_REASON, reason)

    @_tried_again
    def note_study(self, job: JobRecord, study: str) -> None:
        """Records the name of the study that holds the job's trials; does nothing once the job is over."""
        self._set_attribute(self._known(job), STUDY, study)

    @_tried_again
    def request_stop(self, job: JobRecord) -> None:
        """Marks a job as to be stopped; does nothing once the job is over.

        The caller has to stop the job's driver, if it has one.
        """
        self._set_attribute(self._known(job), STOPPED, True)

    @_tried_again
    def finish(self, job: JobRecord, document: dict[str, Any]) -> bool:
        """Ends a job with the answer of its driver, the process that ran it.

        Args:
            document: result of the search (`autofit.tune/1`) or error (`autofit.error/1`).

        Returns:
            Whether this call ended the job: False if it had ended before.
        """
        trial = self._known(job)
        self._set_attribute(trial, PACKED_RESULT, packed(document))
        return self._end(trial, document)

    @_tried_again
    def settle(self, job: JobRecord) -> bool:
        """Ends a job whose answer was recorded, but whose driver died before it recorded the end.

        Returns:
            Whether this call ended the job; False if there is no answer, or it was ended before.
        """
        trial = self._known(job)
        recorded = trial.user_attrs.get(PACKED_RESULT)
        if recorded is None or trial.state.is_finished():
            return False
        try:
            document, _ = unpacked(recorded)
        except DamagedError:
            return False
        return self._end(trial, document)

    def _end(self, trial: FrozenTrial, document: dict[str, Any]) -> bool:
        """Sets the final state of a job by its recorded answer; returns whether this call set it.

        Args:
            trial: Optuna trial that stores the job.
        """
        found = document.get("schema") == TUNE_SCHEMA
        best = document["best"] if found else None
        if not found:
            self._set_attribute(trial, STATE_REASON, document["message"])
        self._set_attribute(trial, GIST, gist_of(document))
        self._set_attribute(trial, ENDED, time.time())
        if not found:
            return self._set_state(trial, TrialState.FAIL)
        return self._set_state(
            trial, TrialState.COMPLETE, [0.0 if best is None else float(best["batch_size"])]
        )

    @_tried_again
    def give_up(self, job: JobRecord, reason: str) -> bool:
        """Ends a job whose driver can give no answer any more; returns whether this call ended it.

        If the driver did record an answer, the job ends with this answer.
        """
        if self.settle(job):
            return True
        trial = self._known(job)
        self._set_attribute(trial, STATE_REASON, reason)
        self._set_attribute(trial, ENDED, time.time())
        return self._set_state(trial, TrialState.FAIL)

    # ── trials ──────────────────────────────────────────────────────────────────────────────────

    def _study(self, *, create: bool) -> int | None:
        """Id of the Optuna study that stores the jobs; None if there is none and `create` is False."""
        if self._study_id is None:
            backend = self._storage.backend
            with quiet_optuna(), contextlib.suppress(KeyError):
                if create:
                    optuna.create_study(
                        storage=backend, study_name=JOBS_STUDY, direction="maximize", load_if_exists=True
                    )
                self._study_id = backend.get_study_id_from_name(JOBS_STUDY)
        return self._study_id

    def _trials(self) -> dict[str, FrozenTrial]:
        """Optuna trial that stores each job, by job id; of several with the same id, the first.

        All are read, those that have ended once in a process. What concerns a job or two asks `_trials_of`.
        """
        study_id = self._study(create=False)
        return {} if study_id is None else _firsts(self._cached.get_all_trials(study_id, deepcopy=False))

    def _trials_of(self, job_ids: Collection[str]) -> dict[str, FrozenTrial]:
        """Optuna trial that stores each of these jobs, by job id, if there is one; see `_trials`."""
        study_id = self._study(create=False)
        return {} if study_id is None else _firsts(self._storage.trials_with(study_id, JOB_ID, job_ids))

    def _jobs(self, newest: int | None) -> dict[str, JobRecord]:
        """Jobs by id, read from the storage; those that cannot be read are noted in `unreadable`."""
        left_aside: list[Unreadable] = []
        trials = list(self._trials().items())[0 if newest is None else -newest :]
        found = {job_id: self._readable(trial, left_aside) for job_id, trial in trials}
        self.unreadable = tuple(left_aside)
        return {job_id: job for job_id, job in found.items() if job is not None}

    def _readable(self, trial: FrozenTrial, left_aside: list[Unreadable]) -> JobRecord | None:
        """Job that a trial stores; None if it cannot be read.

        Args:
            left_aside: takes what cannot be read.
        """
        try:
            return self._record(trial, left_aside.append)
        except UnreadableError as error:
            (job_id,) = _firsts([trial])
            left_aside.append(Unreadable.of(Kind.JOB, f"job {job_id}", error))
            return None

    def _required(self, trial: FrozenTrial) -> JobRecord:
        try:
            return self._record(trial, _ignored)
        except UnreadableError as error:
            name = trial.user_attrs.get(JOB_ID, f"number {trial.number}")
            raise StorageError(
                f"{Unreadable.of(Kind.JOB, f'job {name}', error)}: submit it with --again to make another"
            ) from error

    def _record(self, trial: FrozenTrial, note: Callable[[Unreadable], None]) -> JobRecord:
        """Job record, read from the Optuna trial that stores it.

        Args:
            note: called for each start of a driver that cannot be read, see `attributes.record_of`.

        Raises:
            UnreadableError: the job is damaged, of a newer version, or not signed with the queue's key.
        """
        claimed = None if trial.datetime_start is None else trial.datetime_start.timestamp()
        return record_of(
            trial.user_attrs,
            number=trial.number,
            state=trial.state.name,
            claimed_seconds=claimed,
            key=self._key,
            note=note,
        )

    def _known(self, job: JobRecord) -> FrozenTrial:
        return self._trials_of([job.job_id])[job.job_id]

    def _refreshed(self, trial: FrozenTrial) -> FrozenTrial:
        return self._storage.backend.get_trial(_trial_id(trial))

    def _create(self, job_id: str, spec: JobSpec, mark: str) -> int:
        """Adds a queued job, and returns the id of the Optuna trial that stores it."""
        study_id = self._study(create=True)
        assert study_id is not None
        backend = self._storage.backend
        template = create_trial(
            state=TrialState.WAITING,
            user_attrs={JOB_ID: job_id, JOB: self._signed(job_id, spec_to_dict(spec)), MARK: mark},
        )
        return backend.create_new_trial(study_id, template)

    def _signed(self, job_id: str, job: dict[str, Any]) -> dict[str, Any]:
        return job if self._key is None else self._key.signed(job_id, job)

    def _set_attribute(self, trial: FrozenTrial, name: str, value: Any) -> None:
        """Sets an attribute of a job's trial; does nothing if another process has ended the trial."""
        try:
            self._storage.backend.set_trial_user_attr(_trial_id(trial), name, value)
        except UpdateFinishedTrialError:
            return

    def _set_state(self, trial: FrozenTrial, state: TrialState, values: list[float] | None = None) -> bool:
        """Sets the state of a job's trial; returns False if another process did so before."""
        try:
            with self._storage.alone():
                return self._storage.backend.set_trial_state_values(_trial_id(trial), state, values)
        except UpdateFinishedTrialError:
            return False


def _firsts(trials: Iterable[FrozenTrial]) -> dict[str, FrozenTrial]:
    """Optuna trials by job id; of several with the same id, the first."""
    found: dict[str, FrozenTrial] = {}
    for trial in trials:
        job_id = trial.user_attrs.get(JOB_ID)
        found.setdefault(job_id if isinstance(job_id, str) else f"number {trial.number}", trial)
    return found


def _trial_id(trial: FrozenTrial) -> int:
    return trial._trial_id  # noqa: SLF001 - Optuna's storages are addressed by it, and nothing public tells it


def _ignored(_left_aside: Unreadable) -> None:
    """Does nothing; passed where unreadable attempts need not be reported."""
