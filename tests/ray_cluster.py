"""Ray clusters for tests, started by `ray start`; the processes of each node can be killed."""

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

import psutil

from autofit_workers.spec.pythons import Self
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
    """A node of a Ray cluster.

    Args:
        arguments: arguments of `ray start`, beside those that all nodes share.
        folder: the folder for its log and temporary files; its path is short, because sockets are below it.
        environment: variables of its processes, and so of the drivers and trials that run there.
        command: the command that gets the arguments, by default `ray start`.

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
        """All processes on this node, drivers and trials included."""
        return marked_processes(self._mark)

    def given(self, argument: str) -> list[psutil.Process]:
        """Processes of the node that were started with this argument."""
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if argument in process.cmdline():
                    found.append(process)
        return found

    def kill_raylet(self) -> None:
        """Kills the node's raylet: the other processes of the node then have to end by themselves."""
        (raylet,) = [each for each in self.processes if each.name() == "raylet"]
        raylet.kill()

    def end(self) -> None:
        """Kills the node and all processes that it started, and checks that none is left."""
        self._start.kill()
        # What is killed may have started another meanwhile.
        while left := self.processes:
            for process in left:
                with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                    process.kill()
            assert survivors(left) == []


class RayCluster:
    """A head with Ray's dashboard and job server, which takes drivers and no trials; nodes join it.

    The cluster has no files in the home directory or in `/tmp/ray`, where other clusters would look.

    Args:
        num_drivers: the number of drivers that the head offers as the resource `autofit_driver`; None
            for a cluster that does not offer it.
        token: the token that the cluster asks for.
        environment: variables of all its nodes, added to this process's.

    Attributes:
        environment: the variables that a client of the cluster needs.
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
        """URL of the dashboard, which jobs are submitted to."""
        return f"http://127.0.0.1:{self._dashboard_port}"

    @property
    def service_discovery(self) -> Path:
        """File by which Prometheus finds the nodes."""
        return self.head.folder / "prom_metrics_service_discovery.json"

    @property
    def logs(self) -> list[Path]:
        """Log files of the cluster's processes, those of drivers and trials included."""
        return [
            file for node in self.nodes for file in node.folder.glob("session_2*/logs/**/*") if file.is_file()
        ]

    def await_started(self) -> None:
        for node in self.nodes:
            node.await_started()

    def add_nodes(self, num_nodes: int, *, num_cpus: int, num_gpus: int = 0) -> list[RayNode]:
        """Starts nodes side by side and waits for them; their GPUs exist for Ray only."""
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
        """Ends all nodes, the head last, and removes the cluster's folder."""
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
    """Processes that have a file in the folder open."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended meanwhile, or is another user's
            if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                found.append(process)
    return found
