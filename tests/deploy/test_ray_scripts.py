"""The start scripts of a cluster: a head and a worker for real, whom they answer, and what is missing."""

from __future__ import annotations

import json
import os
import re
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

import grpc
import pytest

from tests.daemons import free_ports
from tests.deploy.places import DEPLOY, ROOT
from tests.ray_cluster import RayNode

pytestmark = pytest.mark.process

HEAD, WORKER = DEPLOY / "ray" / "head.sh", DEPLOY / "ray" / "worker.sh"
ONCE = {"RAY_NUM_REDIS_GET_RETRIES": "1"}  # whether there is a cluster is asked no more often
STORAGE = "postgresql+psycopg://autofit:a-secret@db/autofit"
TOKEN = uuid.uuid4().hex
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

ASK = """
import json, os, psutil, ray
ray.init(os.environ["ASKED"], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=0)
class Worker:
    def ports(self):
        mine = psutil.Process().net_connections("tcp")
        return [each.laddr.port for each in mine if each.status == "LISTEN"]

@ray.remote(num_cpus=0, resources={"autofit_driver": 1})
def environment():
    return os.environ.get("AUTOFIT_STORAGE")

nodes = [
    {
        "resources": node["Resources"],
        "labels": node["Labels"],
        "raylet": f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
        "objects": f"{node['NodeManagerAddress']}:{node['ObjectManagerPort']}",
        "metrics": f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}",
    }
    for node in ray.nodes()
    if node["Alive"]
]
worker = Worker.options(name="worker", namespace="tests", lifetime="detached").remote()
(port,) = ray.get(worker.ports.remote())  # it stays behind, to be asked
found = {"nodes": nodes, "worker": f"127.0.0.1:{port}", "storage": ray.get(environment.remote())}
print(json.dumps(found))
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
def client_port() -> int:
    (port,) = free_ports(1)
    return port


@pytest.fixture(scope="module")
def address(home: Path, environment: dict[str, str], dashboard_port: int, client_port: int) -> Iterator[str]:
    """The address of a head that was started by the script, and which a worker joined by its own."""
    (port,) = free_ports(1)
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


@pytest.fixture(scope="module")
def dashboard(address: str, dashboard_port: int) -> str:
    return f"http://127.0.0.1:{dashboard_port}"


def asked(url: str, *, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer."""
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode(), dict(response.headers)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode(), dict(refused.headers)


def called(address: str, method: str, token: str | None) -> tuple[grpc.StatusCode, bytes]:
    """Code and answer of a method of a server of gRPC, called with nothing but a token."""
    shown = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        try:
            return grpc.StatusCode.OK, channel.unary_unary(method)(b"", metadata=shown, timeout=60)
        except grpc.RpcError as refused:
            return refused.code(), b""


every_token = pytest.mark.parametrize("token", [None, "another", TOKEN], ids=["none", "another", "the token"])


@every_token
def test_jobs_are_taken_from_who_has_the_token(dashboard: str, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    status, _, _ = asked(f"{dashboard}/api/jobs/", **headers)
    assert status == {None: 401, "another": 403, TOKEN: 200}[token]


def test_the_dashboards_page_asks_for_the_token_and_keeps_it_in_a_cookie(dashboard: str) -> None:
    assert asked(f"{dashboard}/")[0] == 200
    assert asked(f"{dashboard}/api/authentication_mode")[1] == '{"authentication_mode": "token"}'
    sign_in = f"{dashboard}/api/authenticate"
    assert asked(sign_in, method="POST", Authorization="Bearer another")[0] == 403
    status, _, headers = asked(sign_in, method="POST", Authorization=f"Bearer {TOKEN}")
    assert (status, "Max-Age=2592000" in headers["Set-Cookie"]) == (200, True)
    cookie, *_ = headers["Set-Cookie"].split(";")
    assert asked(f"{dashboard}/api/jobs/", Cookie=cookie)[0] == 200


@every_token
def test_the_other_ports_answer_who_has_the_token(
    address: str, answer: dict[str, Any], client_port: int, token: str | None
) -> None:
    servers = {
        address: ("ray.rpc.NodeInfoGcsService/GetAllNodeInfo", "ray.rpc.InternalKVGcsService/InternalKVKeys"),
        f"127.0.0.1:{client_port}": ("ray.rpc.RayletDriver/ClusterInfo",),
        answer["worker"]: ("ray.rpc.CoreWorkerService/GetCoreWorkerStats",),
        **{node["raylet"]: ("ray.rpc.NodeManagerService/GetNodeStats",) for node in answer["nodes"]},
        **{node["objects"]: ("ray.rpc.ObjectManagerService/Pull",) for node in answer["nodes"]},
    }
    assert len(servers) == 7
    for server, methods in servers.items():
        for method in methods:
            code, _ = called(server, f"/{method}", token)
            assert (code is grpc.StatusCode.UNAUTHENTICATED) == (token != TOKEN), (method, code)


def test_metrics_and_health_checks_ask_for_no_token(
    address: str, answer: dict[str, Any], dashboard: str
) -> None:
    for node in answer["nodes"]:
        status, text, _ = asked(f"http://{node['metrics']}/metrics")
        assert (status, "ray_" in text) == (200, True)
    for server in (address, *(node["raylet"] for node in answer["nodes"])):
        assert called(server, "/grpc.health.v1.Health/Check", None) == (grpc.StatusCode.OK, b"\x08\x01")
    assert asked(f"{dashboard}/api/gcs_healthz")[0] == 200


WRONG, MISSING = "the authentication token is invalid", "no authentication token was found"


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"RAY_AUTH_TOKEN": TOKEN}, None),
        ({"RAY_AUTH_TOKEN_PATH": f"  {TOKEN} \r\nanother line\n"}, None),
        ({"HOME": f"{TOKEN}\n"}, None),
        ({"RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_TOKEN_PATH": "another"}, None),
        ({"RAY_AUTH_TOKEN_PATH": TOKEN, "HOME": "another"}, None),
        ({"RAY_AUTH_TOKEN": "another", "RAY_AUTH_TOKEN_PATH": TOKEN, "HOME": TOKEN}, WRONG),
        ({"RAY_AUTH_TOKEN_PATH": "another", "HOME": TOKEN}, WRONG),
        ({"RAY_AUTH_TOKEN_PATH": f"\n{TOKEN}", "HOME": TOKEN}, "cannot be opened or is empty"),
        ({"RAY_AUTH_MODE": "", "RAY_AUTH_TOKEN": TOKEN}, MISSING),
    ],
    ids=["token", "file", "default", "token first", "then file", "no file", "no default", "line", "mode"],
)
def test_ray_shows_the_token_of_the_first_place_that_is_set(
    dashboard: str, tmp_path: Path, given: dict[str, str], refused: str | None
) -> None:
    """Of a variable that names a file, what is in that file is given; of the home directory, its token."""
    files = {"RAY_AUTH_TOKEN_PATH": tmp_path / "token", "HOME": tmp_path / ".ray" / "auth_token"}
    environment = {"RAY_AUTH_MODE": "token", **given, "PATH": PATH, "HOME": str(tmp_path)}
    for name in files.keys() & given.keys():
        files[name].parent.mkdir(exist_ok=True)
        files[name].write_bytes(given[name].encode())
    if "RAY_AUTH_TOKEN_PATH" in given:
        environment["RAY_AUTH_TOKEN_PATH"] = str(files["RAY_AUTH_TOKEN_PATH"])
    listed = subprocess.run(
        ["ray", "job", "list", "--address", dashboard],
        env={name: value for name, value in environment.items() if value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (listed.returncode == 0) == (refused is None), listed.stderr
    assert (refused or "") in listed.stderr


def test_status_shows_what_the_page_says(address: str, environment: dict[str, str]) -> None:
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    ((command, shown),) = re.findall(
        r"^(RAY_AUTH_MODE=token ray status.*?) *# on the head: (.*)$", page, re.MULTILINE
    )
    told = subprocess.run(
        ["bash", "-c", command], env={**environment, "RAY_ADDRESS": address},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    names = re.findall(r"\w+", shown.removesuffix(" of all nodes").replace(" and", ""))
    assert names == ["autofit_driver", "CPU", "GPU", "accelerator_type"]
    total = told.stdout.partition("Total Usage:")[2].partition("\n\n")[0]
    for name in names:
        assert re.search(rf"/\d+\.0 {name}\b", total), total


def test_a_worker_with_another_token_does_not_join(
    home: Path, environment: dict[str, str], address: str
) -> None:
    refused = subprocess.run(
        ["bash", WORKER, f"--temp-dir={home / 'r'}", "--disable-usage-stats"],
        env={**environment, "RAY_AUTH_TOKEN": "another", "HEAD_ADDRESS": address, **ONCE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "AuthenticationError" in refused.stderr


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


@pytest.mark.parametrize("script", [HEAD, WORKER], ids=lambda script: script.name)
@pytest.mark.parametrize(
    ("token", "file"),
    [("", ""), ("", f"\n{TOKEN}\n"), ("", " \r\n"), (" \t", TOKEN)],
    ids=["empty file", "second line", "blanks in a file", "blanks"],
)
def test_a_token_that_ray_would_not_find_is_missing(
    script: Path, token: str, file: str, environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_bytes(file.encode())
    given = {"RAY_AUTH_TOKEN": token, "RAY_AUTH_TOKEN_PATH": str(path)}
    given |= {"AUTOFIT_STORAGE": STORAGE, "HEAD_ADDRESS": "127.0.0.1:1"}
    failed = subprocess.run(
        ["bash", script], env={**environment, **given}, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    (line,) = failed.stderr.splitlines()
    place = "RAY_AUTH_TOKEN" if token else f"the first line of {path}"
    assert f"the cluster has no token: none is in {place};" in line
