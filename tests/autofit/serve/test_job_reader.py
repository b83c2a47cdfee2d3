"""Jobs that `autofit serve` counts, each read once in each of its states."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit.jobs.queue import JobQueue, JobSpec
from autofit.serve.job_reader import JobReader

SPEC = JobSpec(options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet", max_drivers=10)
ANSWER = {"schema": "autofit.tune/1", "best": None}


@pytest.fixture(params=["journal", "sqlite"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobQueue]:
    path = tmp_path / "jobs"
    with JobQueue.open(f"{path}.journal" if request.param == "journal" else f"sqlite:///{path}.db") as opened:
        yield opened


def damage_state(path: Path, job_id: str) -> None:
    """Overwrites the state of a job's trial in an SQLite database by a word that Optuna does not know."""
    database = sqlite3.connect(path)
    owner = "SELECT trial_id FROM trial_user_attributes WHERE key = 'job_id' AND value_json = ?"
    database.execute(f"UPDATE trials SET state = 'NOTHING' WHERE trial_id = ({owner})", (f'"{job_id}"',))
    database.commit()
    database.close()


def test_jobs_are_counted_as_they_move_on(queue: JobQueue) -> None:
    reader = JobReader()
    reader.read(queue)
    assert reader.by_state() == {}
    for job_id in ("a", "b", "c"):
        queue.enqueue(job_id, SPEC)
    reader.read(queue)
    assert reader.by_state() == {"queued": 3}
    job = queue.claim_next()
    assert job is not None
    reader.read(queue)
    assert reader.by_state() == {"queued": 2, "running": 1}
    queue.finish(job, ANSWER)
    stopped = queue.record("b")
    assert stopped is not None
    queue.request_stop(stopped)
    queue.give_up(stopped, "stopped")
    reader.read(queue)
    assert reader.by_state() == {"queued": 1, "succeeded": 1, "stopped": 1}
    assert reader.unreadable == ()


def test_a_job_is_read_again_only_while_it_runs_or_when_its_state_has_changed(queue: JobQueue) -> None:
    for job_id in ("a", "b", "c", "d"):
        queue.enqueue(job_id, SPEC)
    over = queue.claim_next()
    assert over is not None
    queue.finish(over, ANSWER)
    queue.claim_next()
    states, first = queue.changes({})
    assert [read.job_id for read in first.values()] == ["a", "b", "c", "d"]
    _, again = queue.changes(states)
    assert [read.job_id for read in again.values()] == ["b"]
    queue.claim_next()
    _, later = queue.changes(states)
    assert [read.job_id for read in later.values()] == ["b", "c"]


def test_answers_are_given_out_once(queue: JobQueue) -> None:
    for job_id in ("a", "b", "c"):
        queue.enqueue(job_id, SPEC)
        job = queue.claim_next()
        assert job is not None
        queue.finish(job, ANSWER)
    reader = JobReader()
    reader.read(queue)
    assert [job.job_id for job in reader.take_over(2)] == ["a", "b"]
    reader.read(queue)
    assert [(job.job_id, job.document) for job in reader.take_over(2)] == [("c", ANSWER)]
    assert reader.take_over(2) == []


def test_of_two_jobs_with_an_id_the_first_is_counted(queue: JobQueue) -> None:
    queue.enqueue("a", SPEC)
    queue._create("a", SPEC, "another process")
    job = queue.claim_next()
    assert job is not None
    reader = JobReader()
    reader.read(queue)
    assert reader.by_state() == {"running": 1}


def test_a_state_that_cannot_be_read_is_told_and_the_others_are_counted(tmp_path: Path) -> None:
    with JobQueue.open(f"sqlite:///{tmp_path}/jobs.db") as queue:
        for job_id in ("a", "b", "c"):
            queue.enqueue(job_id, SPEC)
        reader = JobReader()
        reader.read(queue)
        damage_state(tmp_path / "jobs.db", "b")
        reader.read(queue)
    assert reader.by_state() == {"queued": 2}
    (left_aside,) = reader.unreadable
    assert str(left_aside) == "job number 1 is damaged and is not shown"
