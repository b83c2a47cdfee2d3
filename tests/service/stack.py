"""The whole service on one machine: Ray, PostgreSQL, `autofit serve` and Prometheus, and the command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import yaml

from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobRecord, JobState
from autofit.study.storage import open_storage
from autofit_workers.spec.protocol import TrialOutcome
from tests.commands import Finished
from tests.conformance.dispatcher import ROOT
from tests.daemons import Daemon
from tests.deploy.places import RULES
from tests.prometheus import Prometheus
from tests.ray_cluster import RayCluster, RayNode

_CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
_COMMAND_SECONDS = 500
_SEEN_SECONDS = 60  # until what is in the storage has to be in Prometheus


class Client:
    """Who sends jobs: the command line, with nothing but the storage and the cluster's address.

    Attributes:
        environment: of its commands, over this process's.
    """

    def __init__(self, cluster: RayCluster, storage: str, folder: Path) -> None:
        self.storage = storage
        self._folder = folder
        self.environment = {
            **cluster.environment,
            "PYTHONPATH": str(ROOT),
            "AUTOFIT_STORAGE": storage,
            "AUTOFIT_STATE_DIR": str(folder / "state"),
            "RAY_API_SERVER_ADDRESS": cluster.jobs_address,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts `autofit` with these arguments."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "autofit.cli", *arguments],
            cwd=self._folder,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> Finished:
        return finished(self.start(*arguments))

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Adds to what goes wrong how far the jobs are, and what the last words of their drivers were."""
        try:
            yield
        except BaseException as error:
            error.add_note(self.run("jobs").out)
            for job in self.records():
                if job.attempts and job.state is not JobState.SUCCEEDED:
                    error.add_note(f"{job.job_id}: {self.run('logs', job.job_id).out[-2000:]}")
            raise

    def records(self) -> list[JobRecord]:
        with JobQueue.open(self.storage) as queue:
            return queue.records()

    def outcomes(self, job: JobRecord) -> list[TrialOutcome]:
        """Of all trials in a job's study that returned."""
        assert job.study is not None
        storage = open_storage(self.storage, job.study)
        with contextlib.closing(storage):
            trials = optuna.load_study(study_name=job.study, storage=storage.backend).trials
        texts = [trial.user_attrs.get("outcome") for trial in trials]
        return [TrialOutcome.from_json(text) for text in texts if text is not None]


def finished(process: subprocess.Popen[str]) -> Finished:
    """Waits for a command's end; one that does not end is killed, and fails its test."""
    try:
        out, err = process.communicate(timeout=_COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{process.args} did not end; it said: {out}{err}") from None
    return Finished(process.returncode, out, err)


def serve(client: Client, cluster: RayCluster, log: Path) -> tuple[Daemon, str]:
    """`autofit serve` on a free port, which admits jobs too; and where its metrics are."""
    arguments = ["serve", "--port=0", "--interval=1", f"--address={cluster.jobs_address}"]
    daemon = Daemon(
        [sys.executable, "-P", "-m", "autofit.cli", *arguments], log=log, environment=client.environment
    )
    line = daemon.await_log("metrics at http://")
    return daemon, line.split("metrics at ")[1].strip()


def prometheus(cluster: RayCluster, metrics_url: str, folder: Path) -> Prometheus:
    """A Prometheus with the configuration of `deploy/`, of which only places and pace are others."""
    config: dict[str, Any] = yaml.safe_load(_CONFIG.read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    host = metrics_url.removeprefix("http://").removesuffix("/metrics")
    jobs["autofit"]["static_configs"] = [{"targets": [host]}]
    jobs["ray"]["file_sd_configs"] = [{"files": [str(cluster.service_discovery)]}]
    jobs["ray"]["scrape_interval"] = "5s"  # each costs Ray's agents more than ours
    config["scrape_configs"] = [jobs["autofit"], jobs["ray"]]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return Prometheus(file, folder=folder)


Labels = tuple[tuple[str, str], ...]


def await_answer(server: Prometheus, expression: str, expected: Mapping[Labels, float]) -> None:
    """Waits until Prometheus answers so, as it does once it has scraped what is in the storage.

    Args:
        expected: by labels; zeros are left out, there and here.
    """
    wanted = {frozenset(labels): pytest.approx(value, rel=1e-9) for labels, value in expected.items()}
    give_up = time.monotonic() + _SEEN_SECONDS
    while (answer := _numbers(server, expression)) != wanted:
        assert time.monotonic() < give_up, f"{expression}: {answer}, not {wanted}"
        time.sleep(0.2)


def _numbers(server: Prometheus, expression: str) -> dict[frozenset[tuple[str, str]], float]:
    return {
        frozenset((name, text) for name, text in sample["metric"].items() if name != "__name__"): value
        for sample in server.query(expression)
        if (value := float(sample["value"][1]))
    }


def driver_of(cluster: RayCluster, job_id: str) -> psutil.Process:
    """The process of a job's driver."""
    (driver,) = cluster.head.given(f"--job={job_id}")
    return driver


def node_of(nodes: list[RayNode], process: psutil.Process) -> RayNode:
    """The node that a process runs on."""
    (node,) = [node for node in nodes if process in node.processes]
    return node


def arguments_of(process: psutil.Process) -> list[str]:
    """None where it ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        text: str = response.read().decode()
    return text
