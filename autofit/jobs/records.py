"""Records of jobs as plain data, read from the storage by the queue and shown by commands."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autofit.errors import ERROR_SCHEMA, ExitCode, did_you_mean
from autofit.study.damage import UNREADABLE, DamagedError
from autofit.tuning.schema import TUNE_SCHEMA
from autofit_workers.spec.documents import inflate, parse_json
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import StrEnum

_MOST_ANSWER_BYTES = 16 << 20
DEFAULT_MAX_DRIVERS = 4  # a driver is a few processes and a hundred megabytes on the head


class JobState(StrEnum):
    """State of a job: queued, running, succeeded, failed or stopped."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended: succeeded, failed or stopped."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingDir:
    """Location of a job's code: a package in the storage, or a URI from which nodes fetch it.

    Attributes:
        digest: SHA-256 of the package; None for a URI.
        where: name of the study (unit of storage) that holds the package, or the URI.
    """

    digest: str | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Specification of a job: the options of its `autofit tune`, its card and its working directory.

    Attributes:
        options: options of `autofit tune` by name, each as command-line text.
        workload: short name of the workload.
        gpu: key of the card in the catalogue.
        fleet: id shared by jobs that differ only in the card; empty for a single job.
        max_drivers: number of running jobs at which this job waits.
    """

    options: Mapping[str, str]
    workload: str
    gpu: str | None = None
    working_dir: WorkingDir | None = None
    fleet: str | None = None
    max_drivers: int = DEFAULT_MAX_DRIVERS


def packed(document: Mapping[str, Any]) -> str:
    """Compressed JSON text of a job's answer, to save memory where a queue's answers are all loaded."""
    text = json.dumps(document, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode())).decode("ascii")


def unpacked(text: str) -> tuple[dict[str, Any], _Result | _Failure]:
    """Document of a job's compressed answer, and its most used values.

    Args:
        text: output of `packed`.

    Raises:
        DamagedError: `text` is no answer, or unpacks to more than 16 MiB.
    """
    try:
        document = from_plain(dict, parse_json(inflate(base64.b64decode(text), _MOST_ANSWER_BYTES)))
        return document, _values_of(document)
    except (*UNREADABLE, zlib.error) as error:
        raise DamagedError(error) from error


def _values_of(document: Mapping[str, Any]) -> _Result | _Failure:
    """Most used values of an answer, or of its gist; raises one of `UNREADABLE` if it is none."""
    if document.get("schema") == TUNE_SCHEMA:
        return from_plain(_Result, document)
    failure = from_plain(_Failure, document)
    ExitCode(failure.exit_code)
    return failure


def gist_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a job's answer that a list of jobs shows, as a small document of the same form."""
    if document.get("schema") != TUNE_SCHEMA:
        return {name: document[name] for name in ("schema", "kind", "message", "exit_code")}
    return {
        "schema": TUNE_SCHEMA,
        "best": _gist_of_found(document["best"]),
        "recommended": _gist_of_found(document.get("recommended")),
    }


def _gist_of_found(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    algorithm = {"conv_algo": found["knobs"]["conv_algo"]}
    return {"batch_size": found["batch_size"], "knobs": algorithm, "evidence": found["evidence"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Algorithm:
    conv_algo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    batch_size: int
    knobs: _Algorithm
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Best and recommended configuration in a job's answer, of any version of autofit."""

    best: _Found | None
    recommended: _Found | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Values read from an error document, the answer of a failed job."""

    schema: str
    kind: str
    message: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a driver, the process that runs a job; a job has another if its driver died.

    Attributes:
        submission_id: id of the driver's Ray job.
        started_seconds: time of the start, in seconds of the epoch.
    """

    submission_id: str
    started_seconds: float


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """Stored record of a job: an `autofit tune` on a Ray cluster, with its state and answer.

    A job is one `autofit tune` on a Ray cluster; its driver is the process that runs it there and gives the
    answer. The answer is kept compressed, since a list of all jobs with their answers would be large.

    Attributes:
        number: position in the queue; jobs are started in this order.
        stop_requested: whether a user asked to stop the job; its driver may still be ending.
        state_reason: sentence on why the job failed, was stopped, or is started again; else None.
        packed_document: `autofit.tune/1` or `autofit.error/1`, compressed by `packed`, once its driver has
            answered. It counts as the job's answer only once the state says that the job is over. A list of
            jobs may leave it out, see `stored_gist`.
        stored_gist: values of the answer that a list of jobs shows, by `gist_of`, which is all that such a
            list reads; None if the answer was stored by an earlier version.
        study: name of the study (stored record of the search) that holds the job's trials, once the driver
            has begun.
        submitted_seconds, ended_seconds: times in seconds of the epoch.
        claimed_seconds: time at which a process took the job out of the queue to start its first driver, in
            seconds of the epoch.
        is_signed: whether the record has a signature. It has been verified if this process has the storage's
            key.
    """

    number: int
    job_id: str
    state: JobState
    spec: JobSpec
    submitted_seconds: float
    attempts: tuple[Attempt, ...] = ()
    stop_requested: bool = False
    state_reason: str | None = None
    packed_document: str | None = field(default=None, repr=False)
    stored_gist: Mapping[str, Any] | None = field(default=None, repr=False)
    study: str | None = None
    ended_seconds: float | None = None
    claimed_seconds: float | None = None
    is_signed: bool = False

    @property
    def started_seconds(self) -> float | None:
        """Time when the job's first driver was started, in seconds of the epoch; None if none was."""
        return self.attempts[0].started_seconds if self.attempts else None

    @property
    def document(self) -> dict[str, Any] | None:
        """Document with the driver's answer; None if there is no answer, or the job is not over.

        It is decompressed at each access. An answer that cannot be read is replaced by an error document.
        """
        document, _ = self._unpack()
        return document

    @cached_property
    def gist(self) -> _Result | _Failure | DamagedError | None:
        """Most used values of the job's answer, or the error in reading it; None if there is no answer."""
        if self.packed_document is None and self.stored_gist is not None and self.state.is_over:
            try:
                return _values_of(self.stored_gist)
            except UNREADABLE as error:
                return DamagedError(error)
        _, gist = self._unpack()
        return gist

    def _unpack(self) -> tuple[dict[str, Any] | None, _Result | _Failure | DamagedError | None]:
        if not self.state.is_over or self.packed_document is None:
            return None, None
        try:
            return unpacked(self.packed_document)
        except DamagedError as error:
            damage = error
        message = f"the answer of job {self.job_id} {damage}: submit the job with --again"
        return _error("storage", message, ExitCode.INFRASTRUCTURE), damage

    @property
    def damage(self) -> DamagedError | None:
        """Error raised in reading the job's answer; None if the answer is readable or missing."""
        return self.gist if isinstance(self.gist, DamagedError) else None

    @property
    def result(self) -> _Result | None:
        """Values of the job's answer, if it is the result of a search; None for an error or no answer."""
        return self.gist if isinstance(self.gist, _Result) else None

    @property
    def answer(self) -> dict[str, Any] | None:
        """Document of an ended job: its driver's answer, or an error with the reason for its end."""
        if not self.state.is_over or self.packed_document is not None:
            return self.document
        message = self.state_reason or f"job {self.job_id} ended without a result"
        if self.state is JobState.STOPPED:
            return _error("interrupted", message, ExitCode.INTERRUPTED)
        return _error("job", message, ExitCode.INFRASTRUCTURE)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the job's `autofit tune`; None until the job is over."""
        match self.gist:
            case _Result(best=None):
                return int(ExitCode.NOTHING_FITS)
            case _Result():
                return int(ExitCode.FOUND)
            case _Failure(exit_code=exit_code):
                return exit_code
            case DamagedError():
                return int(ExitCode.INFRASTRUCTURE)
        answer = self.answer
        return None if answer is None else int(answer["exit_code"])


def _error(kind: str, message: str, exit_code: ExitCode) -> dict[str, Any]:
    return {"schema": ERROR_SCHEMA, "kind": kind, "message": message, "exit_code": int(exit_code)}


def unknown_job(name: str, records: Iterable[JobRecord]) -> str:
    """Message that the storage has no job or fleet named `name`; similar names are suggested."""
    known = {record.job_id for record in records} | {
        record.spec.fleet for record in records if record.spec.fleet is not None
    }
    return f"there is no job or fleet {name!r}.{did_you_mean(name, known)} `autofit jobs` lists them"
