"""A list of jobs that is read from an SQLite database without Optuna, beside the queue's own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit.cli import main
from autofit.cli.text.jobs import jobs_document
from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobSpec
from autofit.jobs.signing import Key
from autofit.jobs.stored.database import listed_jobs

FOUND = {"batch_size": 86, "knobs": {"conv_algo": "cudnn"}, "evidence": "predicted"}
ANSWER = {"schema": "autofit.tune/1", "best": FOUND, "recommended": {**FOUND, "batch_size": 64}}
NOTHING = {"schema": "autofit.tune/1", "best": None}
ERROR = {"schema": "autofit.error/1", "kind": "workload", "message": "typo in forward", "exit_code": 4}
SPEC = JobSpec(options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet", gpu="t4")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job s#1.db"


@pytest.fixture
def queue(path: Path) -> Iterator[JobQueue]:
    """Jobs in all states: three with answers, one stopped, one running, and one queued."""
    with JobQueue.open(f"sqlite:///{path}") as opened:
        opened.enqueue_all([(name, SPEC) for name in ("best", "none", "error", "given-up", "runs", "waits")])
        for document in (ANSWER, NOTHING, ERROR):
            job = opened.claim_next()
            assert job is not None
            opened.finish(opened.record_attempt(job, f"{job.job_id}.1"), document)
        job = opened.claim_next()
        assert job is not None
        opened.request_stop(job)
        opened.give_up(job, "stopped by hand")
        job = opened.claim_next()
        assert job is not None
        opened.record_attempt(job, "runs.1")
        yield opened


def changed(path: Path, statement: str) -> None:
    """Changes the database as another program could."""
    with sqlite3.connect(path) as database:
        assert database.execute(statement).rowcount > 0


def test_a_list_says_what_the_queue_says(queue: JobQueue) -> None:
    listed = listed_jobs(queue.url, key=None)
    assert listed is not None
    assert json.loads(jobs_document(listed)) == json.loads(jobs_document(queue.records()))
    assert [job.exit_code for job in listed] == [0, 3, 4, 130, None, None]
    assert [job.packed_document for job in listed] == [None] * 6  # its gist is enough


def test_the_newest_are_the_last_that_were_submitted(queue: JobQueue) -> None:
    listed = listed_jobs(queue.url, key=None, newest=2)
    assert listed is not None
    assert [job.job_id for job in listed] == ["runs", "waits"] == [j.job_id for j in queue.records(newest=2)]


def test_an_answer_of_an_earlier_version_has_no_gist_and_is_listed_too(queue: JobQueue, path: Path) -> None:
    changed(path, "DELETE FROM trial_user_attributes WHERE key = 'gist'")
    listed = listed_jobs(queue.url, key=None)
    assert listed is not None
    assert [job.exit_code for job in listed] == [0, 3, 4, 130, None, None]
    assert listed[0].result is not None
    assert listed[0].result.best is not None
    assert listed[0].result.best.batch_size == 86


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'job'",
        "UPDATE trial_user_attributes SET value_json = '[1]' WHERE key = 'attempts'",
        "DELETE FROM trial_user_attributes WHERE key = 'job_id'",
        "UPDATE trials SET number = NULL",
        "UPDATE version_info SET schema_version = 13",
    ],
)
def test_what_is_not_as_usual_is_left_to_the_queue(queue: JobQueue, path: Path, statement: str) -> None:
    changed(path, statement)
    assert listed_jobs(queue.url, key=None) is None


def test_a_job_that_is_not_signed_is_left_to_the_queue_which_refuses_it(queue: JobQueue) -> None:
    assert listed_jobs(queue.url, key=Key("k" * 32)) is None


@pytest.mark.parametrize(
    "storage",
    [None, "jobs.journal", "sqlite://", "sqlite:///:memory:", "sqlite:///missing.db", "postgresql://u@h/d"],
)
def test_other_storages_are_left_to_the_queue(
    storage: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert listed_jobs(storage, key=None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_job_is_still_told_of_by_the_command(
    queue: JobQueue, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(path, "UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'job' AND trial_id = 1")
    assert main(["jobs", f"--storage={queue.url}"]) == 0
    out, err = capsys.readouterr()
    assert "note: job best " in err
    assert "waits" in out
