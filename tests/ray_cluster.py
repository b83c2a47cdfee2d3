"""A Ray cluster as operators start one: `ray start`, each node in processes that a test can kill."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.conformance.dispatcher import ROOT, marked_processes, survivors
from tests.daemons import Daemon, free_ports
from tests.marks import MARK

DRIVER_RESOURCE = "autofit_driver"

_STARTED = "Ray runtime started"
_OBJECT_STORE_BYTES = 100 * 2**20
# A node that is killed is missed after a second instead of half a minute.
_NOTICES_SOON = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "3",
}


class RayNode:
    """A node of a cluster.

    Args:
        arguments: of `ray start`, beside those that all nodes share.
        folder: takes its log and its temporary files; short, because sockets are below it.
        environment: of its processes, and so of the drivers and trials that run there.
        command: is given the arguments instead of `ray start`.

    Attributes:
        folder: the given one.
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str],
        command: Sequence[str | Path] = (sys.executable, "-m", "ray.scripts.scripts", "start"),
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self._mark = uuid.uuid4().hex
        common = [
            "--block",
            f"--temp-dir={folder}",
            f"--object-store-memory={_OBJECT_STORE_BYTES}",
            "--dashboard-agent-listen-port=0",
            "--disable-usage-stats",
            "--log-color=false",
        ]
        self._start = Daemon(
            [*command, *common, *arguments],
            log=folder.with_suffix(".log"),
            environment={**environment, MARK: self._mark},
        )

    def await_started(self) -> None:
        self._start.await_log(_STARTED)

    @property
    def processes(self) -> list[psutil.Process]:
        """All that runs on this node, drivers and trials included."""
        return marked_processes(self._mark)

    def given(self, argument: str) -> list[psutil.Process]:
        """Those of them that were started with this argument."""
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if argument in process.cmdline():
                    found.append(process)
        return found

    def kill_raylet(self) -> None:
        """Makes the node die: without its raylet, whatever runs there has to end by itself."""
        (raylet,) = [each for each in self.processes if each.name() == "raylet"]
        raylet.kill()

    def end(self) -> None:
        """Ends the node and whatever it started, and makes sure of it."""
        self._start.kill()
        # What is killed may have started another meanwhile.
        while left := self.processes:
            for process in left:
                with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                    process.kill()
            assert survivors(left) == []


class RayCluster:
    """A head with Ray's dashboard and job server, which takes drivers and no trials; nodes join it.

    Nothing of it is in the home directory or in `/tmp/ray`, where other clusters would look.

    Args:
        num_drivers: how many the head has room for, as the resource `autofit_driver`; None for a
            cluster that does not offer it.
        token: guards the cluster.
        environment: of all its nodes, over this process's.

    Attributes:
        environment: what a client of the cluster needs to have in its environment.
    """

    def __init__(
        self,
        *,
        num_drivers: int | None = None,
        token: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        home = self._folder / "home"
        home.mkdir()
        guard = (
            {"RAY_AUTH_MODE": "disabled"}
            if token is None
            else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        )
        self.environment = {"HOME": str(home), "RAY_TMPDIR": str(self._folder), **guard}
        self._node_environment = {
            **self.environment,
            **_NOTICES_SOON,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
        }
        self._gcs_port, self._dashboard_port, client_port = free_ports(3)
        resources = {} if num_drivers is None else {DRIVER_RESOURCE: num_drivers}
        self.nodes: list[RayNode] = []
        self.head = self._node(
            "--head",
            f"--port={self._gcs_port}",
            f"--dashboard-port={self._dashboard_port}",
            f"--ray-client-server-port={client_port}",
            "--num-cpus=0",
            f"--resources={json.dumps(resources)}",
        )

    @property
    def jobs_address(self) -> str:
        """Where jobs are submitted."""
        return f"http://127.0.0.1:{self._dashboard_port}"

    @property
    def service_discovery(self) -> Path:
        """The file by which Prometheus finds the nodes."""
        return self.head.folder / "prom_metrics_service_discovery.json"

    @property
    def logs(self) -> list[Path]:
        """What its processes have written, those of drivers and trials among them."""
        return [
            file for node in self.nodes for file in node.folder.glob("session_2*/logs/**/*") if file.is_file()
        ]

    def await_started(self) -> None:
        for node in self.nodes:
            node.await_started()

    def add_nodes(self, num_nodes: int, *, num_cpus: int, num_gpus: int = 0) -> list[RayNode]:
        """Starts nodes side by side and waits for them; their GPUs are none, but Ray believes in them."""
        self.head.await_started()
        added = [
            self._node(
                f"--address=127.0.0.1:{self._gcs_port}", f"--num-cpus={num_cpus}", f"--num-gpus={num_gpus}"
            )
            for _ in range(num_nodes)
        ]
        for node in added:
            node.await_started()
        return added

    def _node(self, *arguments: str) -> RayNode:
        folder = self._folder / f"n{len(self.nodes)}"
        self.nodes.append(RayNode(*arguments, folder=folder, environment=self._node_environment))
        return self.nodes[-1]

    def end(self) -> None:
        """Ends all nodes; the nodes first, which would complain of a head that is gone."""
        for node in reversed(self.nodes):
            node.end()
        # What has changed its title has lost its mark, and would write into the folder while it goes.
        for process in _writers_below(self._folder):
            with suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait()
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _writers_below(folder: Path) -> list[psutil.Process]:
    """The processes that have a file in the folder open."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended meanwhile, or is another user's
            if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                found.append(process)
    return found
