"""Queue of a cluster's jobs in the shared storage: the trials of one Optuna study.

    enqueue ─▶ WAITING ── claim_next ─▶ RUNNING ── finish ─▶ COMPLETE   its value: the best batch, or 0
               queued                   running │            succeeded
                  │                             └─ finish ─▶ FAIL
                  └──────── stopped ───────────────────────▶ failed, stopped

Only one process can take a trial from WAITING to RUNNING in the storage. As all processes take the oldest
waiting job, that step also keeps the number of running jobs within a limit, however many processes admit
jobs at the same time.

Everything else about a job is a user attribute of its trial, and the state is written last: an ended
job has its result. Only this module knows the attributes' names.

Each job is read separately: a job that is damaged, of a newer version or not signed with the storage's key
stays in the storage, and is neither shown nor started.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.errors import StorageError
from autofit.jobs.records import Attempt, JobRecord, JobSpec, JobState, WorkingDir, packed, unpacked
from autofit.jobs.signing import Key, storage_key
from autofit.paths import studies_dir
from autofit.study.damage import (
    UNREADABLE,
    DamagedError,
    Kind,
    Unreadable,
    UnreadableError,
    require_schema,
    require_whole,
)
from autofit.study.storage import Storage, journal_path, open_storage, quiet_optuna
from autofit.tuning.schema import TUNE_SCHEMA
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self

__all__ = ["JOBS_STUDY", "Attempt", "JobQueue", "JobRecord", "JobSpec", "JobState", "WorkingDir"]

JOBS_STUDY = "autofit-jobs"

_JOB_ID = "job_id"
_JOB = "job"
_ATTEMPTS = "attempts"
_STATE_REASON = "state_reason"
_STOPPED = "stopped"
_PACKED_RESULT = "packed_result"
_STUDY = "study"
_ENDED = "ended_seconds"
_DUPLICATE = "duplicate"
_MARK = "enqueued_by"

_SCHEMA = 1  # schema number of the records of jobs and attempts

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
        self._known_study: optuna.Study | None = None

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
    def records(self) -> list[JobRecord]:
        """All jobs of the queue, in the order in which they were enqueued."""
        return list(self._jobs().values())

    @_tried_again
    def record(self, job_id: str) -> JobRecord | None:
        """Job with the id `job_id`; None if there is none.

        Raises:
            StorageError: the job exists and cannot be read.
        """
        trial = self._trials().get(job_id)
        return None if trial is None else self._required(trial)

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

    def _enqueue(self, job_id: str, spec: JobSpec, *, again: bool, mark: str) -> tuple[JobRecord, bool]:
        """Adds a job unless one with its id or its `mark` exists; returns the job, and whether it is new."""
        while True:
            known = self._trials(create=True)
            for trial in known.values():
                if trial.user_attrs.get(_MARK) == mark:  # written before the connection was lost
                    return self._required(trial), True
            if job_id in known and not again:
                return self._required(known[job_id]), False
            free_id, number = job_id, 2
            while free_id in known:
                free_id, number = f"{job_id}-{number}", number + 1
            created = self._create(free_id, spec, mark)
            first = self._trials()[free_id]
            if first.number == created.number:
                return self._required(first), True
            # Another process was faster with the same id.
            self._storage.backend.set_trial_user_attr(_trial_id(created), _DUPLICATE, True)
            self._set_state(created, TrialState.FAIL)

    @_tried_again
    def claim_next(self, *, max_running: int | None = None) -> JobRecord | None:
        """Takes the oldest queued job and marks it as running, so that no other process starts its driver.

        Args:
            max_running: most jobs that may run in parallel, besides the limit that the job itself sets; None
                for that limit alone.

        Returns:
            The job; None if no job waits, or as many jobs as allowed are running.
        """
        while True:
            jobs = self._jobs().values()
            num_running = sum(job.state is JobState.RUNNING for job in jobs)
            oldest = next((job for job in jobs if job.state is JobState.QUEUED), None)
            if oldest is None:
                return None
            own_limit = oldest.spec.max_drivers
            if num_running >= (own_limit if max_running is None else min(own_limit, max_running)):
                return None
            # A process that loses this race reads the jobs again before it takes the next: see the module's
            # text.
            trial = self._known(oldest)
            if self._set_state(trial, TrialState.RUNNING):
                return self._required(self._refreshed(trial))

    @_tried_again
    def record_attempt(self, job: JobRecord, submission_id: str) -> JobRecord:
        """Records that a driver (the process that runs the job) was started; a second call changes nothing.

        Args:
            submission_id: id of the driver's Ray job.
        """
        trial = self._known(job)
        attempts = list(trial.user_attrs.get(_ATTEMPTS, ()))
        if all(attempt.submission_id != submission_id for attempt in self._required(trial).attempts):
            new = {"schema": _SCHEMA, "submission_id": submission_id, "started_seconds": time.time()}
            self._set_attribute(trial, _ATTEMPTS, [*attempts, new])
        return self._required(self._refreshed(trial))

    @_tried_again
    def explain(self, job: JobRecord, reason: str) -> None:
        """Records a sentence that explains the job's state; does nothing once the job is over.

        Args:
            reason: the sentence.
        """
        self._set_attribute(self._known(job), _STATE_REASON, reason)

    @_tried_again
    def note_study(self, job: JobRecord, study: str) -> None:
        """Records the name of the study that holds the job's trials; does nothing once the job is over."""
        self._set_attribute(self._known(job), _STUDY, study)

    @_tried_again
    def request_stop(self, job: JobRecord) -> None:
        """Marks a job as to be stopped; does nothing once the job is over.

        The caller has to stop the job's driver, if it has one.
        """
        self._set_attribute(self._known(job), _STOPPED, True)

    @_tried_again
    def finish(self, job: JobRecord, document: dict[str, Any]) -> bool:
        """Ends a job with the answer of its driver, the process that ran it.

        Args:
            document: result of the search (`autofit.tune/1`) or error (`autofit.error/1`).

        Returns:
            Whether this call ended the job: False if it had ended before.
        """
        trial = self._known(job)
        self._set_attribute(trial, _PACKED_RESULT, packed(document))
        return self._end(trial, document)

    @_tried_again
    def settle(self, job: JobRecord) -> bool:
        """Ends a job whose answer was recorded, but whose driver died before it recorded the end.

        Returns:
            Whether this call ended the job; False if there is no answer, or it was ended before.
        """
        trial = self._known(job)
        recorded = trial.user_attrs.get(_PACKED_RESULT)
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
            self._set_attribute(trial, _STATE_REASON, document["message"])
        self._set_attribute(trial, _ENDED, time.time())
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
        self._set_attribute(trial, _STATE_REASON, reason)
        self._set_attribute(trial, _ENDED, time.time())
        return self._set_state(trial, TrialState.FAIL)

    # ── trials ──────────────────────────────────────────────────────────────────────────────────

    def _study(self, *, create: bool) -> optuna.Study | None:
        """Optuna study that stores the jobs; None if there is none and `create` is False."""
        if self._known_study is None:
            backend = self._storage.backend
            with quiet_optuna():
                if create:
                    self._known_study = optuna.create_study(
                        storage=backend, study_name=JOBS_STUDY, direction="maximize", load_if_exists=True
                    )
                elif JOBS_STUDY in optuna.get_all_study_names(backend):
                    self._known_study = optuna.load_study(study_name=JOBS_STUDY, storage=backend)
        return self._known_study

    def _trials(self, *, create: bool = False) -> dict[str, FrozenTrial]:
        """Optuna trial that stores each job, by job id; of several with the same id, the first."""
        study = self._study(create=create)
        trials: dict[str, FrozenTrial] = {}
        for trial in () if study is None else study.get_trials(deepcopy=False):
            job_id = trial.user_attrs.get(_JOB_ID)
            trials.setdefault(job_id if isinstance(job_id, str) else f"number {trial.number}", trial)
        return trials

    def _jobs(self) -> dict[str, JobRecord]:
        """Jobs by id, read from the storage; those that cannot be read are noted in `unreadable`."""
        jobs: dict[str, JobRecord] = {}
        left_aside: list[Unreadable] = []
        for job_id, trial in self._trials().items():
            try:
                jobs[job_id] = self._record(trial, left_aside.append)
            except UnreadableError as error:
                left_aside.append(Unreadable.of(Kind.JOB, f"job {job_id}", error))
        self.unreadable = tuple(left_aside)
        return jobs

    def _required(self, trial: FrozenTrial) -> JobRecord:
        try:
            return self._record(trial, _ignored)
        except UnreadableError as error:
            name = trial.user_attrs.get(_JOB_ID, f"number {trial.number}")
            raise StorageError(
                f"{Unreadable.of(Kind.JOB, f'job {name}', error)}: submit it with --again to make another"
            ) from error

    def _record(self, trial: FrozenTrial, note: Callable[[Unreadable], None]) -> JobRecord:
        """Job record, read from the Optuna trial that stores it.

        Args:
            note: called for each start of a driver that cannot be read. Its id and time are inferred, as
                drivers are named after their job and number.

        Raises:
            UnreadableError: the job is damaged, of a newer version, or not signed with the queue's key.
        """
        attributes = trial.user_attrs
        require_whole(attributes)
        try:
            job = attributes[_JOB]
            require_schema(job, _SCHEMA)
            if self._key is not None:
                self._key.require_signed(attributes[_JOB_ID], job)
            claimed = None if trial.datetime_start is None else trial.datetime_start.timestamp()
            record = from_plain(
                JobRecord,
                {
                    "number": trial.number,
                    "job_id": attributes[_JOB_ID],
                    "state": _state(trial),
                    "spec": job,
                    "submitted_seconds": job["submitted_seconds"],
                    "stop_requested": attributes.get(_STOPPED, False),
                    "state_reason": attributes.get(_STATE_REASON),
                    "packed_document": attributes.get(_PACKED_RESULT),
                    "study": attributes.get(_STUDY),
                    "ended_seconds": attributes.get(_ENDED),
                    "claimed_seconds": claimed,
                    "is_signed": Key.has_signed(job),
                },
            )
            attempts = from_plain(tuple[Any, ...], attributes.get(_ATTEMPTS, []))
        except UnreadableError:
            raise
        except UNREADABLE as error:
            raise DamagedError(error) from error
        found = tuple(_attempt(record, number, each, note) for number, each in enumerate(attempts, 1))
        return dataclasses.replace(record, attempts=found)

    def _known(self, job: JobRecord) -> FrozenTrial:
        return self._trials()[job.job_id]

    def _refreshed(self, trial: FrozenTrial) -> FrozenTrial:
        return self._storage.backend.get_trial(_trial_id(trial))

    def _create(self, job_id: str, spec: JobSpec, mark: str) -> FrozenTrial:
        study = self._study(create=True)
        assert study is not None
        backend = self._storage.backend
        study_id = backend.get_study_id_from_name(study.study_name)
        template = create_trial(
            state=TrialState.WAITING,
            user_attrs={_JOB_ID: job_id, _JOB: self._signed(job_id, _spec_to_dict(spec)), _MARK: mark},
        )
        return backend.get_trial(backend.create_new_trial(study_id, template))

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


def _trial_id(trial: FrozenTrial) -> int:
    return trial._trial_id  # noqa: SLF001 - Optuna's storages are addressed by it, and nothing public tells it


def _spec_to_dict(spec: JobSpec) -> dict[str, Any]:
    folder = spec.working_dir
    return {
        "schema": _SCHEMA,
        "options": dict(spec.options),
        "workload": spec.workload,
        "gpu": spec.gpu,
        "working_dir": None if folder is None else {"digest": folder.digest, "where": folder.where},
        "fleet": spec.fleet,
        "max_drivers": spec.max_drivers,
        "submitted_seconds": time.time(),
    }


def _attempt(job: JobRecord, number: int, stored: Any, note: Callable[[Unreadable], None]) -> Attempt:
    """Attempt (start of a driver) of a job, read from the storage; inferred if it cannot be read.

    Args:
        number: number of the attempt, from 1.
        stored: attempt as it is stored.
        note: called with a description of an attempt that cannot be read.
    """
    submission_id = f"{job.job_id}.{number}"
    try:
        require_schema(stored, _SCHEMA)
        attempt = from_plain(Attempt, stored)
        if attempt.submission_id != submission_id:  # else a stop would end another job's driver
            raise DamagedError(f"its submission id is {attempt.submission_id}, not {submission_id}")
    except UNREADABLE as error:
        note(Unreadable.of(Kind.ATTEMPT, f"attempt {number} of job {job.job_id}", error))
        started_seconds = job.claimed_seconds or job.submitted_seconds
        attempt = Attempt(submission_id=submission_id, started_seconds=started_seconds)
    return attempt


def _ignored(_left_aside: Unreadable) -> None:
    """Does nothing; passed where unreadable attempts need not be reported."""


def _state(trial: FrozenTrial) -> JobState:
    match trial.state:
        case TrialState.WAITING:
            return JobState.QUEUED
        case TrialState.RUNNING:
            return JobState.RUNNING
        case TrialState.COMPLETE:
            return JobState.SUCCEEDED
    return JobState.STOPPED if trial.user_attrs.get(_STOPPED) else JobState.FAILED
