"""Admission, as far as no cluster is needed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import optuna
import pytest

from autofit.jobs.admission import admit
from autofit.jobs.queue import JOBS_STUDY, JobQueue, JobSpec, JobState
from autofit.jobs.ray_jobs import RayJobs
from autofit.jobs.records import packed

ANSWER = {"schema": "autofit.tune/1", "best": None}


class EmptyCluster:
    """A cluster that knows no driver any more and takes every new one."""

    def __init__(self) -> None:
        self.submitted: list[str] = []

    def driver_slots(self) -> None:
        return None

    def driver(self, submission_id: str) -> None:
        return None

    def submit(self, submission_id: str, command: str, **_options: Any) -> bool:
        self.submitted.append(submission_id)
        return True


@pytest.mark.parametrize(
    ("has_answered", "state", "started"),
    [(True, JobState.SUCCEEDED, []), (False, JobState.RUNNING, ["a.2"])],
)
def test_a_job_whose_lost_driver_had_answered_is_not_started_again(
    tmp_path: Path, has_answered: bool, state: JobState, started: list[str]
) -> None:
    with JobQueue.open(str(tmp_path / "jobs.journal")) as queue:
        queue.enqueue("a", JobSpec(options={"model": "davenet"}, workload="davenet"))
        job = queue.claim_next()
        assert job is not None
        queue.record_attempt(job, "a.1")
        if has_answered:
            [trial] = optuna.load_study(study_name=JOBS_STUDY, storage=queue.storage.backend).trials
            queue.storage.backend.set_trial_user_attr(trial._trial_id, "packed_result", packed(ANSWER))
        cluster = EmptyCluster()
        admit(queue, cast("RayJobs", cluster))
        [now] = queue.records()
        assert (now.state, cluster.submitted) == (state, started)
