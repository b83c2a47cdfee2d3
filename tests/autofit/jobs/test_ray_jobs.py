"""Jobs on a real Ray head that asks for a token, kept in a database that asks for a password."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autofit.jobs.queue import JobQueue, JobState
from tests.commands import Finished
from tests.conformance.dispatcher import ROOT
from tests.postgres import running_postgres
from tests.ray_cluster import RayCluster

# A busy machine starts a dozen Python processes a test slowly.
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

TOKEN = "a-token-that-nobody-may-see-0123456789"
PASSWORD = "a-password-that-nobody-may-see"
TINY = ("--gpu-mem=1G", "--probe=predict", "--conv-algo=cudnn", "--max-batch=64")

TRAIN = """
import os, pathlib, time
import torch
import layers
from autofit_workers.workload import Workload


def workload():
    return Workload(
        build_model=lambda: torch.nn.Linear(64, layers.WIDTH),
        make_batch=lambda batch_size, device: torch.ones(batch_size, 64, device=device),
        loss=lambda model, batch: model(batch).sum(),
    )


def held():
    # A prediction changes nothing outside, but its process is seen there, and it sees what others write.
    pathlib.Path("/proc/self/comm").write_text("has-begun")
    while pathlib.Path({folder!r}, "go").read_text() != "yes":
        time.sleep(0.02)
    return workload()
"""


class Cluster:
    """The head, and the command line as a user beside it has it."""

    def __init__(self, ray: RayCluster, storage: str) -> None:
        self.ray = ray
        self.storage = storage
        self.environment = {**ray.environment, "RAY_API_SERVER_ADDRESS": ray.jobs_address}

    def run(self, *command: str, **environment: str) -> Finished:
        """Runs a command that ends by itself."""
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment, **environment},
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def autofit(self, *arguments: str, **environment: str) -> Finished:
        settings = {"AUTOFIT_STORAGE": self.storage, **environment}
        return self.run(sys.executable, "-m", "autofit.cli", *arguments, **settings)

    def submit(self, *arguments: str) -> str:
        """Submits a job, and returns its id."""
        done = self.autofit("submit", *arguments)
        assert done.code == 0, done.err
        return done.out.strip()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with room for two drivers."""
    with running_postgres() as postgres:
        storage = postgres.url_of("postgres", password=PASSWORD)
        environment = {"AUTOFIT_STORAGE": storage}
        with RayCluster(num_drivers=2, token=TOKEN, environment=environment) as ray:
            ray.await_started()
            yield Cluster(ray, storage)


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[JobQueue]:
    with JobQueue.open(cluster.storage) as opened:
        yield opened


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder, in which packages are called as ours are, and as folders of ours."""
    folder = tmp_path / "project"
    for package in ("workers", "autofit"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (folder / "layers.py").write_text("WIDTH = 8")
    (tmp_path / "go").write_text("no")
    (folder / "train.py").write_text(TRAIN.replace("{folder!r}", repr(str(tmp_path))))
    return folder


def has_begun() -> bool:
    """Whether a process is at the workload that waits."""
    return any(each.info["name"] == "has-begun" for each in psutil.process_iter(["name"]))


def until(happens: Callable[[], object], what: str) -> None:
    """Waits for what other processes do."""
    give_up = time.monotonic() + 100
    while not happens():
        assert time.monotonic() < give_up, f"{what} did not happen"
        time.sleep(0.05)


def drivers_of(job_id: str) -> list[psutil.Process]:
    """The Python processes that run a job."""
    option = f"--job={job_id}"
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if option in (process.info["cmdline"] or ()) and "python" in process.info["cmdline"][0]
    ]


def test_a_job_brings_its_folder_and_leaves_its_answer_in_the_storage(
    cluster: Cluster, queue: JobQueue, project: Path
) -> None:
    arguments = ("--model=train.py:workload", f"--working-dir={project}", *TINY)
    job_id = cluster.submit(*arguments)
    waited = cluster.autofit("wait", job_id, "--json")
    assert (waited.code, waited.document["jobs"][0]["state"]) == (0, "succeeded"), waited.err
    shown = cluster.autofit("result", job_id, RAY_API_SERVER_ADDRESS="http://127.0.0.1:1")
    logs = cluster.autofit("logs", "-f", job_id)
    assert shown.out in logs.out
    assert "fits at batch 64 in 1.00 GiB" in shown.out
    document = queue.record(job_id).document
    assert (document["schema"], document["best"]["batch_size"]) == ("autofit.tune/1", 64)
    again = cluster.autofit("submit", *arguments)
    assert again.out.strip() == job_id
    assert "was submitted before and is succeeded" in again.err
    for secret in (TOKEN, PASSWORD):
        kept = json.dumps([job.answer for job in queue.records()])
        assert secret not in logs.out + shown.out + waited.out + kept


def test_a_driver_is_killed_and_jobs_are_stopped(
    cluster: Cluster, queue: JobQueue, project: Path, tmp_path: Path
) -> None:
    """Two drivers have room: the first is killed, the second stopped, and the third never starts."""
    held = ("--model=train.py:held", f"--working-dir={project}", *TINY[1:])
    killed, stopped, waiting = (cluster.submit(f"--gpu-mem={size}G", *held) for size in (1, 2, 3))
    until(lambda: len(drivers_of(killed)) == len(drivers_of(stopped)) == 1, "the start of two drivers")
    until(has_begun, "the beginning of a trace")
    assert queue.record(waiting).state is JobState.QUEUED
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert not any(secret in command for command in commands for secret in (TOKEN, PASSWORD))

    assert cluster.autofit("stop", waiting, stopped).code == 0
    assert [queue.record(job).state for job in (stopped, waiting)] == [JobState.STOPPED] * 2
    assert queue.record(waiting).attempts == ()
    assert drivers_of(stopped) == []
    assert cluster.autofit("result", stopped).code == 130

    [driver] = drivers_of(killed)
    driver.kill()
    (tmp_path / "go").write_text("yes")
    waited = cluster.autofit("wait", killed, "--json")
    assert waited.code == 0, waited.err
    [job] = waited.document["jobs"]
    assert [attempt["submission_id"] for attempt in job["attempts"]] == [f"{killed}.1", f"{killed}.2"]
    assert "started again" in job["state_reason"]
    assert (job["state"], job["best_batch"]) == ("succeeded", 64)


def test_a_plain_ray_job_tunes_too(cluster: Cluster, project: Path) -> None:
    """As Ray's own command line submits it, with no record of a job."""
    model = f"--model={project}/train.py:workload"
    tune = ("autofit", "tune", model, "--address=auto", *TINY, f"--storage={project}/mine.journal")
    submitted = cluster.run("ray", "job", "submit", "--", *tune)
    assert submitted.code == 0, submitted.err + submitted.out
    assert "fits at batch 64 in 1.00 GiB" in submitted.out


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "asks for a token: set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_TOKEN": "another-token-of-somebody-else-12345"}, "refuses the token"),
    ],
)
def test_a_cluster_with_a_token_refuses_those_without(
    cluster: Cluster, queue: JobQueue, environment: dict[str, str], said: str
) -> None:
    before = len(queue.records())
    refused = cluster.autofit("submit", "--model=lstm", "--gpu-mem=3G", "--probe=predict", **environment)
    assert (refused.code, said in refused.err) == (5, True), refused.err
    assert len(queue.records()) == before


def test_the_logs_of_a_head_that_is_gone_are_said_to_be_gone(
    cluster: Cluster, queue: JobQueue, project: Path
) -> None:
    done = next(job for job in queue.records() if job.state is JobState.SUCCEEDED)
    gone = cluster.autofit("logs", done.job_id, RAY_API_SERVER_ADDRESS="http://127.0.0.1:1")
    assert gone.code == 5
    assert "nobody answers at http://127.0.0.1:1" in gone.err
    assert f"{done.job_id} is succeeded; `autofit result {done.job_id}` shows its answer" in gone.err
