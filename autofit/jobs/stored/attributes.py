"""A job's record as attributes of the Optuna trial that stores it, by name.

Nothing here needs Optuna, so that a list of jobs may be read from a database without it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from autofit.jobs.records import Attempt, JobRecord, JobSpec, JobState
from autofit.jobs.signing import Key
from autofit.study.damage import (
    UNREADABLE,
    DamagedError,
    Kind,
    Unreadable,
    UnreadableError,
    require_schema,
    require_whole,
)
from autofit_workers.spec.plain import from_plain

JOBS_STUDY = "autofit-jobs"

JOB_ID = "job_id"
JOB = "job"
ATTEMPTS = "attempts"
STATE_REASON = "state_reason"
STOPPED = "stopped"
PACKED_RESULT = "packed_result"
GIST = "gist"
STUDY = "study"
ENDED = "ended_seconds"
DUPLICATE = "duplicate"
MARK = "enqueued_by"

SCHEMA = 1  # schema number of the records of jobs and attempts

# States of Optuna's trials, by name; a failed one may have been stopped.
_STATES = {
    "WAITING": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    "COMPLETE": JobState.SUCCEEDED,
    "FAIL": JobState.FAILED,
    "PRUNED": JobState.FAILED,
}


def record_of(
    attributes: Mapping[str, Any],
    *,
    number: int,
    state: str,
    claimed_seconds: float | None,
    key: Key | None,
    note: Callable[[Unreadable], None],
) -> JobRecord:
    """Job record, from the attributes of the trial that stores it.

    Args:
        attributes: attributes by name; without `PACKED_RESULT` the record has no answer, only its gist.
        number: number of the trial in its study.
        state: name of the trial's state in Optuna.
        claimed_seconds: when the trial began to run, in seconds of the epoch; None if it never did.
        key: secret with which the job has to be signed; None if it need not be.
        note: called for each start of a driver that cannot be read. Its id and time are inferred, as
            drivers are named after their job and number.

    Raises:
        UnreadableError: the job is damaged, of a newer version, or not signed with the key.
    """
    require_whole(attributes)
    try:
        job = attributes[JOB]
        require_schema(job, SCHEMA)
        if key is not None:
            key.require_signed(attributes[JOB_ID], job)
        stopped = attributes.get(STOPPED, False)
        known = _STATES[state]
        record = from_plain(
            JobRecord,
            {
                "number": number,
                "job_id": attributes[JOB_ID],
                "state": JobState.STOPPED if known is JobState.FAILED and stopped else known,
                "spec": job,
                "submitted_seconds": job["submitted_seconds"],
                "stop_requested": stopped,
                "state_reason": attributes.get(STATE_REASON),
                "packed_document": attributes.get(PACKED_RESULT),
                "stored_gist": attributes.get(GIST),
                "study": attributes.get(STUDY),
                "ended_seconds": attributes.get(ENDED),
                "claimed_seconds": claimed_seconds,
                "is_signed": Key.has_signed(job),
            },
        )
        attempts = from_plain(tuple[Any, ...], attributes.get(ATTEMPTS, []))
    except UnreadableError:
        raise
    except UNREADABLE as error:
        raise DamagedError(error) from error
    found = tuple(_attempt(record, number, each, note) for number, each in enumerate(attempts, 1))
    return dataclasses.replace(record, attempts=found)


def spec_to_dict(spec: JobSpec) -> dict[str, Any]:
    """Stored form of a job's specification, with the time of its submission: now."""
    folder = spec.working_dir
    return {
        "schema": SCHEMA,
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
        require_schema(stored, SCHEMA)
        attempt = from_plain(Attempt, stored)
        if attempt.submission_id != submission_id:  # else a stop would end another job's driver
            raise DamagedError(f"its submission id is {attempt.submission_id}, not {submission_id}")
    except UNREADABLE as error:
        note(Unreadable.of(Kind.ATTEMPT, f"attempt {number} of job {job.job_id}", error))
        started_seconds = job.claimed_seconds or job.submitted_seconds
        attempt = Attempt(submission_id=submission_id, started_seconds=started_seconds)
    return attempt
