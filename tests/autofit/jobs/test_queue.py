"""The queue of jobs in a storage, used by several processes at once."""

from __future__ import annotations

import multiprocessing
import pickle
import uuid
from collections.abc import Callable, Collection, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import optuna
import pytest

from autofit.errors import StorageError
from autofit.jobs.queue import JOBS_STUDY, JobQueue, JobSpec, JobState, WorkingDir
from autofit.jobs.records import JobRecord, packed, unknown_job
from tests.postgres import Postgres, running_postgres

SPEC = JobSpec(
    options={"model": "davenet", "gpu-mem": "16G"},
    workload="davenet",
    working_dir=WorkingDir(digest="abc", where="working-dir-abc"),
)
BEST = {"batch_size": 86, "knobs": {"conv_algo": "cudnn"}, "evidence": "predicted"}
ANSWER = {"schema": "autofit.tune/1", "best": BEST}
NOTHING_FITS = {"schema": "autofit.tune/1", "best": None}
ERROR = {"schema": "autofit.error/1", "kind": "usage", "message": "no such card", "exit_code": 2}


def answered(document: dict[str, Any]) -> JobRecord:
    """A job that is over, with what its driver said."""
    return JobRecord(
        number=0,
        job_id="a",
        state=JobState.SUCCEEDED,
        spec=SPEC,
        submitted_seconds=0.0,
        packed_document=packed(document),
    )


def recorded(queue: JobQueue, document: dict[str, Any]) -> JobRecord:
    """A running job whose driver has recorded its answer, and no state."""
    queue.enqueue("a", SPEC)
    claimed = queue.claim_next(max_running=1)
    assert claimed is not None
    [trial] = optuna.load_study(study_name=JOBS_STUDY, storage=queue.storage.backend).trials
    queue.storage.backend.set_trial_user_attr(trial._trial_id, "packed_result", packed(document))
    job = queue.record("a")
    assert job is not None
    assert job.packed_document is not None
    return job


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["journal", "sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty storage of each kind."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres").new_database(f"jobs{uuid.uuid4().hex}")
        return url
    return {
        "journal": str(tmp_path / "jobs.journal"),
        "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}",
    }[request.param]


@pytest.fixture
def queue(storage: str) -> Iterator[JobQueue]:
    with JobQueue.open(storage) as opened:
        yield opened


def test_a_job_goes_its_way_from_queued_to_succeeded(queue: JobQueue) -> None:
    job, is_new = queue.enqueue("davenet-16g-1", SPEC)
    assert is_new
    assert (job.state, job.spec, job.attempts) == (JobState.QUEUED, SPEC, ())
    claimed = queue.claim_next(max_running=1)
    assert claimed is not None
    assert claimed.state is JobState.RUNNING
    running = queue.record_attempt(claimed, "davenet-16g-1.1")
    assert running.started_seconds is not None
    queue.note_study(running, "davenet-abc")
    assert queue.finish(running, ANSWER)
    over = queue.record("davenet-16g-1")
    assert over is not None
    assert (over.state, over.document, over.study) == (JobState.SUCCEEDED, ANSWER, "davenet-abc")
    assert (over.exit_code, over.attempts) == (0, running.attempts)
    assert over.ended_seconds is not None


@pytest.mark.parametrize(
    ("document", "state", "exit_code"),
    [(NOTHING_FITS, JobState.SUCCEEDED, 3), (ERROR, JobState.FAILED, 2)],
)
def test_a_job_ends_as_its_tune_did(
    queue: JobQueue, document: dict[str, Any], state: JobState, exit_code: int
) -> None:
    queue.enqueue("a", SPEC)
    claimed = queue.claim_next(max_running=1)
    assert claimed is not None
    queue.finish(claimed, document)
    [over] = queue.records()
    assert (over.state, over.exit_code, over.answer) == (state, exit_code, document)


def test_equal_content_is_one_job_unless_it_is_wanted_again(queue: JobQueue) -> None:
    queue.enqueue("a", SPEC)
    assert queue.enqueue("a", SPEC)[1] is False
    ids = [queue.enqueue("a", SPEC, again=True)[0].job_id for _ in range(2)]
    assert ids == ["a-2", "a-3"]
    assert [job.job_id for job in queue.records()] == ["a", "a-2", "a-3"]


def test_a_job_that_is_over_stays_as_it_is(queue: JobQueue) -> None:
    job, _ = queue.enqueue("a", SPEC)
    assert queue.give_up(job, "nobody wanted it")
    assert not queue.finish(job, ANSWER)
    queue.request_stop(job)
    [over] = queue.records()
    assert (over.state, over.state_reason, over.document) == (JobState.FAILED, "nobody wanted it", None)
    assert (over.answer, over.exit_code) == (
        {"schema": "autofit.error/1", "kind": "job", "message": "nobody wanted it", "exit_code": 5},
        5,
    )


@pytest.mark.parametrize(
    ("document", "state", "exit_code"),
    [(ANSWER, JobState.SUCCEEDED, 0), (ERROR, JobState.FAILED, 2)],
)
@pytest.mark.parametrize(
    "end", [JobQueue.settle, lambda queue, job: queue.give_up(job, "its driver was lost")]
)
def test_a_driver_killed_before_it_set_the_state_leaves_its_answer(
    queue: JobQueue,
    end: Callable[[JobQueue, JobRecord], bool],
    document: dict[str, Any],
    state: JobState,
    exit_code: int,
) -> None:
    job = recorded(queue, document)
    assert (job.state, job.answer, job.result, job.exit_code) == (JobState.RUNNING, None, None, None)
    assert end(queue, job)
    [over] = queue.records()
    assert (over.state, over.answer, over.exit_code) == (state, document, exit_code)
    assert over.state_reason == document.get("message")
    assert over.ended_seconds is not None
    assert not queue.settle(over)


def test_a_job_with_no_readable_answer_is_given_up(queue: JobQueue) -> None:
    job = recorded(queue, {})
    assert not queue.settle(job)
    assert queue.give_up(job, "its driver was lost")
    [over] = queue.records()
    assert (over.state, over.state_reason, over.exit_code) == (JobState.FAILED, "its driver was lost", 5)


def test_a_stopped_job_is_not_claimed(queue: JobQueue) -> None:
    job, _ = queue.enqueue("a", SPEC)
    queue.request_stop(job)
    queue.give_up(job, "stopped before it began")
    assert queue.claim_next(max_running=9) is None
    [over] = queue.records()
    assert (over.state, over.exit_code) == (JobState.STOPPED, 130)


def test_an_attempt_is_noted_once(queue: JobQueue) -> None:
    job, _ = queue.enqueue("a", SPEC)
    queue.record_attempt(job, "a.1")
    queue.record_attempt(job, "a.2")
    again = queue.record_attempt(job, "a.2")
    assert [attempt.submission_id for attempt in again.attempts] == ["a.1", "a.2"]


def test_what_one_process_writes_another_reads(queue: JobQueue, storage: str) -> None:
    with JobQueue.open(storage) as other:
        assert other.records() == []
        queue.enqueue("a", SPEC)
        assert other.claim_next(max_running=1) is not None
        [seen] = queue.records()
        assert seen.state is JobState.RUNNING
        other.finish(seen, ANSWER)
        assert queue.records()[0].state is JobState.SUCCEEDED


def test_reading_creates_nothing(queue: JobQueue) -> None:
    assert queue.records() == []
    assert queue.record("a") is None
    assert JOBS_STUDY not in optuna.get_all_study_names(queue.storage.backend)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"schema": "autofit.tune/1"}, "it lacks best"),
        ({"schema": "autofit.tune/1", "best": {**BEST, "batch_size": True}}, "True is not of type int"),
        ({**ANSWER, "recommended": {"batch_size": 86}}, "it lacks evidence, knobs"),
        ({}, "it lacks exit_code, kind, message, schema"),
        ({"schema": "autofit.error/1", "exit_code": 5}, "it lacks kind, message"),
        ({**ERROR, "message": ["no such card"]}, "['no such card'] is not of type str"),
        ({**ERROR, "exit_code": 99}, "99 is not a valid ExitCode"),
    ],
)
def test_an_answer_that_is_none_says_what_is_wrong_with_it(answer: dict[str, Any], why: str) -> None:
    job = answered(answer)
    assert why in str(job.damage)
    assert job.exit_code == 5


def test_of_an_answer_a_record_keeps_only_what_is_asked_of_all_jobs() -> None:
    long = {**ANSWER, "frontier": [{"largest_batch": number} for number in range(10_000)]}
    job = answered(long)
    num_bytes = len(pickle.dumps(job))
    assert job.document == long
    assert job.result is not None
    assert (job.result, job.damage, job.exit_code) == (job.gist, None, 0)
    assert job.gist is job.gist
    assert len(pickle.dumps(job)) < num_bytes + 1000


def test_an_unknown_job_is_answered_with_those_like_it(queue: JobQueue) -> None:
    queue.enqueue("davenet-16g-0123", SPEC)
    assert "Did you mean davenet-16g-0123?" in unknown_job("davenet-16g-0124", queue.records())


def test_a_storage_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with JobQueue.open(f"sqlite:///{path}") as queue:
        queue.enqueue("a", SPEC)
        path.write_bytes(b"no database any more" * 1000)
        with pytest.raises(StorageError, match=r"jobs\.db"):
            queue.enqueue("b", SPEC)


def _enqueue_and_claim(storage: str, worker: int, start: Barrier, claimed: Any) -> None:
    """Enqueues the same jobs as the others and takes what it can, one at a time."""
    with JobQueue.open(storage) as queue:
        start.wait()
        for number in range(4):
            queue.enqueue(f"job-{number}", SPEC)
        while any(not job.state.is_over for job in queue.records()):
            job = queue.claim_next(max_running=1)
            if job is None:
                continue
            num_running = sum(one.state is JobState.RUNNING for one in queue.records())
            claimed.put((job.job_id, worker, num_running))
            queue.finish(job, ANSWER)


def test_a_job_that_another_process_adds_meanwhile_is_not_added_again(
    queue: JobQueue, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process adds it after this one has looked whether it exists."""
    look_up = queue._trials_of

    def look_up_before_the_other(job_ids: Collection[str]) -> Any:
        monkeypatch.setattr(queue, "_trials_of", look_up)
        found = look_up(job_ids)
        with JobQueue.open(storage) as other:
            other.enqueue("a", SPEC)
        return found

    monkeypatch.setattr(queue, "_trials_of", look_up_before_the_other)
    job, is_new = queue.enqueue("a", SPEC)
    assert (job.job_id, is_new) == ("a", False)
    assert [job.job_id for job in queue.records()] == ["a"]


@pytest.mark.process
def test_processes_that_claim_at_once_share_the_jobs_within_the_limit(storage: str) -> None:
    with JobQueue.open(storage) as queue:
        queue.enqueue("first", SPEC)
    context = multiprocessing.get_context("spawn")
    start, claimed = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=_enqueue_and_claim, args=(storage, number, start, claimed))
        for number in range(2)
    ]
    for worker in workers:
        worker.start()
    taken = [claimed.get(timeout=60) for _ in range(5)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert sorted(job for job, _, _ in taken) == ["first", *(f"job-{number}" for number in range(4))]
    assert {num_running for _, _, num_running in taken} == {1}
    assert claimed.empty()


def test_many_jobs_are_added_in_their_order_and_each_once(queue: JobQueue) -> None:
    queue.enqueue("b", SPEC)
    added = queue.enqueue_all([("a", SPEC), ("b", SPEC), ("c", SPEC), ("a", SPEC)])
    assert [(job.job_id, is_new) for job, is_new in added] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("a", False),
    ]
    assert [job.job_id for job in queue.records()] == ["b", "a", "c"]
    assert [is_new for _, is_new in queue.enqueue_all([("c", SPEC), ("a", SPEC)])] == [False, False]


def test_the_second_of_two_jobs_with_one_id_never_runs(queue: JobQueue) -> None:
    """It is what a process leaves that was killed just after another was faster."""
    queue.enqueue("a", SPEC)
    queue._create("a", SPEC, "mark of the killed process")
    queue.enqueue("b", SPEC)
    first = queue.claim_next()
    assert first is not None
    queue.finish(first, {"schema": "autofit.tune/1", "best": None})
    second = queue.claim_next()
    assert (first.job_id, second and second.job_id) == ("a", "b")
    assert queue.claim_next() is None


def test_a_step_of_a_job_reads_a_few_jobs_however_many_there_are(tmp_path: Path) -> None:
    from optuna.storages._rdb import models
    from sqlalchemy import event

    read: set[int] = set()

    def note(trial: Any, _context: object) -> None:
        read.add(trial.trial_id)

    event.listen(models.TrialModel, "load", note)
    try:
        with JobQueue.open(f"sqlite:///{tmp_path}/jobs.db") as queue:
            queue.enqueue_all([(f"job-{number}", SPEC) for number in range(30)])
            read.clear()
            queue.enqueue("another", SPEC)
            job = queue.claim_next()
            assert job is not None
            queue.finish(
                queue.record_attempt(job, f"{job.job_id}.1"), {"schema": "autofit.tune/1", "best": None}
            )
            assert [each.job_id for each in queue.running()] == []
            assert queue.latest([job])[0].state is JobState.SUCCEEDED
    finally:
        event.remove(models.TrialModel, "load", note)
    assert len(read) == 2  # the new one, and the first, which was claimed
