"""The start scripts of a cluster: a head and a worker for real, and what they say of what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import free_ports
from tests.deploy.places import DEPLOY
from tests.ray_cluster import RayNode

pytestmark = pytest.mark.process

HEAD, WORKER = DEPLOY / "ray" / "head.sh", DEPLOY / "ray" / "worker.sh"
STORAGE = "postgresql+psycopg://autofit:a-secret@db/autofit"
TOKEN = uuid.uuid4().hex
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

ASK = """
import json, os, ray
ray.init(os.environ["ASKED"], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=0, resources={"autofit_driver": 1})
def environment():
    return os.environ.get("AUTOFIT_STORAGE")

nodes = [{"resources": node["Resources"], "labels": node["Labels"]} for node in ray.nodes() if node["Alive"]]
print(json.dumps({"nodes": nodes, "storage": ray.get(environment.remote())}))
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A short folder, because Ray's sockets are below it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    """What an operator sets on every node."""
    token = home / "token"
    token.write_text(TOKEN, encoding="utf-8")
    return {"HOME": str(home), "PATH": PATH, "RAY_TMPDIR": str(home), "RAY_AUTH_TOKEN_PATH": str(token)}


@pytest.fixture(scope="module")
def dashboard_port() -> int:
    (port,) = free_ports(1)
    return port


@pytest.fixture(scope="module")
def address(home: Path, environment: dict[str, str], dashboard_port: int) -> Iterator[str]:
    """The address of a head that was started by the script, and which a worker joined by its own."""
    port, client_port = free_ports(2)
    address = f"127.0.0.1:{port}"
    head = RayNode(
        f"--port={port}",
        f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={client_port}",
        folder=home / "h",
        environment={**environment, "AUTOFIT_STORAGE": STORAGE},
        command=[HEAD],
    )
    started = [head]
    try:
        head.await_started()
        joined = {**environment, "HEAD_ADDRESS": address, "ACCELERATOR_TYPE": "A100-40G"}
        worker = RayNode(
            "--num-cpus=1", "--num-gpus=2", folder=home / "w", environment=joined, command=[WORKER]
        )
        started.append(worker)
        worker.await_started()
        yield address
    finally:
        for node in reversed(started):
            node.end()


@pytest.fixture(scope="module")
def answer(address: str, environment: dict[str, str]) -> dict[str, Any]:
    """What the cluster says of its nodes, and a driver's place of its environment."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        env={"RAY_AUTH_MODE": "token", **environment, "ASKED": address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    parsed: dict[str, Any] = json.loads(asked.stdout)
    return parsed


def test_the_head_has_places_for_drivers_and_none_for_trials(answer: dict[str, Any]) -> None:
    (head,) = [node["resources"] for node in answer["nodes"] if "autofit_driver" in node["resources"]]
    assert head["autofit_driver"] == 4
    assert head.keys().isdisjoint(("CPU", "GPU"))


def test_the_worker_joins_with_its_card(answer: dict[str, Any]) -> None:
    (worker,) = [node for node in answer["nodes"] if "autofit_driver" not in node["resources"]]
    assert (worker["resources"]["CPU"], worker["resources"]["GPU"]) == (1, 2)
    assert worker["resources"]["accelerator_type:A100-40G"] == 1
    assert worker["labels"]["ray.io/accelerator-type"] == "A100-40G"


def test_drivers_know_the_storage_from_the_heads_environment(answer: dict[str, Any]) -> None:
    assert answer["storage"] == STORAGE


@pytest.mark.parametrize(
    ("token", "status"), [(None, 401), ("another", 403), (TOKEN, 200)], ids=["none", "another", "the token"]
)
def test_jobs_are_taken_from_who_has_the_token(
    address: str, dashboard_port: int, token: str | None, status: int
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{dashboard_port}/api/jobs/", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == status
    except urllib.error.HTTPError as refused:
        assert refused.code == status


@pytest.mark.parametrize(
    ("script", "missing", "named"),
    [
        (HEAD, "AUTOFIT_STORAGE", "AUTOFIT_STORAGE is not set"),
        (HEAD, "RAY_AUTH_TOKEN_PATH", "ray get-auth-token --generate"),
        (WORKER, "HEAD_ADDRESS", "HEAD_ADDRESS is not set"),
        (WORKER, "RAY_AUTH_TOKEN_PATH", "ray get-auth-token --generate"),
        (WORKER, "PATH", "activate the environment"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_missing_variable_is_named(
    script: Path, missing: str, named: str, environment: dict[str, str]
) -> None:
    given = {**environment, "AUTOFIT_STORAGE": STORAGE, "HEAD_ADDRESS": "127.0.0.1:1"}
    del given[missing]
    given.setdefault("PATH", "/usr/bin:/bin")
    failed = subprocess.run(["bash", script], env=given, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    (line,) = failed.stderr.splitlines()
    assert line.startswith("error: ")
    assert named in line
    assert "a-secret" not in line
