"""Runs trials on a Ray cluster, an existing one or one that is started on this machine.

    driver (this process)           Ray worker: the supervisor          trial
      submit(spec) ── JSON ──▶        autofit_workers.trials.run(spec) ───────────▶      a fresh process
      Future       ◀── JSON ──        never imports torch, reused         dies with its supervisor

Ray is imported when a dispatcher is made, never by `import autofit`.

Ray's retries are turned off: a trial whose worker or node is gone is LOST, and the caller decides
about another one. Without retries, Ray also does not repeat a trial that its memory monitor killed
(`TaskManager::AddPendingTask`).

A request that no node can satisfy is passed to Ray all the same, so that an autoscaler sees it, and
given up after a while; Ray would wait for ever.

Ray puts the driver's working directory in front of its workers' import path, where a folder named
`autofit` would hide this package. So the supervisor is pickled by value and imports the package
by its path: the driver's own on the same machine or a shared file system, else the one installed
on that node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autofit_workers
from autofit.dispatch import processes
from autofit.dispatch.base import Devices, Dispatcher, PendingTrials, Runner
from autofit.dispatch.ray_connection import (
    KILLS_CHILDREN,
    connect,
    imported,
    private_folder,
    process_state_kept,
    processes_of_ray,
)
from autofit.dispatch.ray_nodes import Load, TrialOnNodes, agent_class
from autofit.dispatch.requests import (
    RAY_OPTIONS,
    Node,
    Request,
    Wishes,
    accelerator_type,
    can_run,
    in_words,
    num_at_once,
    num_groups_at_once,
    offers_in_words,
)
from autofit.errors import DispatchError
from autofit.events import EventSink, Progress, ignore
from autofit_workers.spec.protocol import Probe, TrialError, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.shown import brief_error
from autofit_workers.trials.door import without_answer

_EXIT_SECONDS = 4.0
_LOOK_SECONDS = (0.2, 2.0)  # seconds between two checks for nodes: the least and the most
_SAME_VERSION = "install the same autofit on every node of the cluster"


class RayDispatcher(Dispatcher):
    """Dispatcher that hands trials to a Ray cluster.

    A trial is one measured run of a configuration. If this process is connected to Ray already, that
    connection is used and left open; else one is made, which ends with `close`.

    Args:
        address: `local` or None starts a cluster on this machine that ends with the
            dispatcher; `auto`, `host:port` and `ray://host:port` name a running one.
        wishes: Ray resources that every trial requests besides CPUs, GPUs and memory.
        node_wait_seconds: seconds that a trial waits for a node that could run it, which an autoscaler
            may add; 0 for no wait. On a cluster that is started here no trial waits.
        emit: called with an event when a trial waits for a node.
        runner: function that runs a trial in a worker; None for `autofit_workers.trials.run`. It has to
            pickle by value (with its code), as workers cannot import it.
        folder: folder for the files of a cluster that is started, which the caller removes; by default a
            private folder, which is removed with the dispatcher.

    Raises:
        RayStartError: Ray is not installed properly, or does not start here.
        DispatchError: nothing answers at the address.
        UsageError: the text is no address, or this process is connected to another cluster.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        wishes: Wishes = Wishes(),  # noqa: B008 - frozen
        node_wait_seconds: float = 30.0,
        emit: EventSink = ignore,
        runner: Runner | None = None,
        folder: Path | None = None,
    ) -> None:
        address = address or "local"
        self._own_folder: Path | None = None
        with process_state_kept(), ExitStack() as on_failure:
            ray = imported()
            if address == "local" and folder is None and not ray.is_initialized():
                folder = self._own_folder = private_folder()
                on_failure.callback(processes.remove_folder, folder)
            self._owns_connection = connect(address, folder)
            on_failure.pop_all()
        self._owns_cluster = self._owns_connection and address == "local"
        self._wishes = wishes
        self._node_wait_seconds = 0.0 if self._owns_cluster else node_wait_seconds
        self._emit = emit
        self._package_root = str(Path(autofit_workers.__path__[0]).parent)
        # In a foreign cluster this requests separate workers; in a cluster started here every worker is one.
        environment = {} if self._owns_cluster else {"env_vars": {f"RAY_{KILLS_CHILDREN}": "0"}}
        self._supervise = ray.remote(max_retries=0, runtime_env=environment)(_supervisor(runner, _loader()))
        # A second call ends the ranks while the first one runs them.
        self._agent = ray.remote(
            max_restarts=0, max_task_retries=0, max_concurrency=2, runtime_env=environment
        )(agent_class(_loader()))
        self._pending: PendingTrials[_Trial | TrialOnNodes] = PendingTrials()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._give_up_waiting, name="autofit-ray", daemon=True)
        self._watch.start()

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        if self._closed.is_set():  # Ray would start another cluster
            raise RuntimeError("cannot submit a trial after the dispatcher was closed")
        nodes = _nodes()
        request = self._wishes.request(spec.probe, spec, nodes)
        if not can_run(nodes, request, spec.num_nodes):
            if not self._node_wait_seconds:
                raise _no_node(nodes, request, spec.num_nodes)
            what = "a node" if spec.num_nodes == 1 else f"{spec.num_nodes} nodes, each"
            waits = f"waiting up to {self._node_wait_seconds:g} s for {what} with {in_words(request)}"
            self._emit(Progress(stage=waits))
        if spec.num_nodes > 1:
            return self._submit_on_nodes(spec, request)
        custom = {name: amount for name, amount in request.items() if name not in RAY_OPTIONS}
        task = self._supervise.options(
            num_cpus=request["CPU"],
            num_gpus=request.get("GPU", 0),
            memory=request.get("memory"),
            resources=custom,
            name=f"{spec.workload.name} at {spec.batch_size}",
        )
        reference = task.remote(spec.to_json(), self._package_root)
        future = self._pending.add(_Trial(request, reference))
        reference.future().add_done_callback(
            lambda answer: self._pending.complete(future, _outcome(spec, answer))
        )
        return future

    def _submit_on_nodes(self, spec: TrialSpec, request: Request) -> Future[TrialOutcome]:
        trial = TrialOnNodes(
            spec,
            request,
            agent=self._agent,
            driver_root=self._package_root,
            told=_of_a_failed_node,
            complete=lambda outcome: self._pending.complete(future, outcome),
        )
        future = self._pending.add(trial)
        trial.start()
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        if isinstance(trial, Probe) or trial.num_nodes == 1:
            return sum(num for _, num in self._able(trial))
        nodes = _nodes()
        return num_groups_at_once(nodes, self._wishes.request(trial.probe, trial, nodes), trial.num_nodes)

    def devices(self) -> Devices:
        able = [node for node, num in self._able(Probe.CUDA) if num]
        kinds = [(accelerator_type(node), int(node["GPU"])) for node in able]
        return Devices(
            num_gpus=sum(num for _, num in kinds),
            names=tuple(kind for kind, num in kinds if kind is not None for _ in range(num)),
        )

    def _able(self, trial: Probe | TrialSpec) -> list[tuple[Node, int]]:
        """Nodes of the cluster, each with the number of trials like `trial` that it can run in parallel."""
        probe, spec = (trial, None) if isinstance(trial, Probe) else (trial.probe, trial)
        nodes = _nodes()
        request = self._wishes.request(probe, spec, nodes)
        return [(node, num_at_once(node, request)) for node in nodes]

    @property
    def gcs_address(self) -> tuple[str, int]:
        """Host and port where the cluster's head (its GCS) answers."""
        import ray

        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        return host.strip("[]"), int(port)

    def close(self) -> None:
        import ray

        if self._closed.is_set():
            return
        self._closed.set()
        self._watch.join()
        pending = self._pending.cancel_all()
        on_nodes = [trial for trial in pending if isinstance(trial, TrialOnNodes)]
        for trial in on_nodes:
            trial.cancel()
        _interrupt([trial.reference for trial in pending if isinstance(trial, _Trial)])
        for trial in on_nodes:
            trial.join(_EXIT_SECONDS)
        if self._owns_cluster:
            started = processes_of_ray()
            ray.shutdown()
            processes.see_them_end(started)
            if self._own_folder is not None:
                processes.remove_folder(self._own_folder)
        elif self._owns_connection:
            ray.shutdown()

    def _give_up_waiting(self) -> None:
        """Ends trials that no node could run for `node_wait_seconds`; returns at the dispatcher's end."""
        least, most = _LOOK_SECONDS
        waiting_since: dict[Future[TrialOutcome], float] = {}
        while not self._closed.wait(min(max(self._node_wait_seconds / 4, least), most)):
            pending = self._pending.snapshot()
            if not pending:
                continue
            try:
                nodes = _nodes()
            except Exception:  # noqa: BLE001 - Ray raises many types of errors if the cluster is gone
                nodes = []
            now = time.monotonic()
            waiting_since = {
                future: waiting_since.get(future, now)
                for future, trial in pending.items()
                if not can_run(nodes, trial.request, trial.num_nodes)
            }
            for future, since in waiting_since.items():
                if now - since >= self._node_wait_seconds:
                    trial = pending[future]
                    why = _no_node(nodes, trial.request, trial.num_nodes, now - since)
                    self._pending.complete(future, why)
                    trial.cancel()


@dataclass(frozen=True, slots=True)
class _Trial:
    request: Request
    reference: Any
    num_nodes: int = 1

    def cancel(self) -> None:
        import ray

        ray.cancel(self.reference)


def _loader() -> Load:
    """Makes the function by which a Ray worker imports `autofit_workers`.

    It is a nested function, so that it is pickled with its code, as the worker cannot import it yet.
    """

    def load(driver_root: str) -> None:
        """Makes `autofit_workers` importable in a Ray worker, from the driver's folder or the node's own."""
        import importlib.machinery
        import importlib.util
        import pathlib
        import sys

        name = "autofit_workers"
        is_here = pathlib.Path(driver_root, name, "__init__.py").is_file()
        found = (
            importlib.machinery.PathFinder.find_spec(name, [driver_root])
            if is_here
            else importlib.util.find_spec(name)
        )
        if found is None:
            raise ModuleNotFoundError("autofit is not installed there")
        package = sys.modules.get(name)
        if package is None or package.__file__ != found.origin:
            assert found.loader is not None
            package = sys.modules[name] = importlib.util.module_from_spec(found)
            found.loader.exec_module(package)

    return load


def _supervisor(runner: Runner | None, load: Load) -> Callable[[str, str], str]:
    """Makes the function that a Ray worker runs for a trial.

    It is a nested function, so that it is pickled with its code, as the worker cannot import it yet.

    Args:
        runner: runs a trial; None for `autofit_workers.trials.run`.
        load: makes `autofit_workers` importable on the worker.
    """

    def supervise(spec_json: str, driver_root: str) -> str:
        import importlib

        load(driver_root)
        protocol = importlib.import_module("autofit_workers.spec.protocol")
        isolate = importlib.import_module("autofit_workers.trials.isolate")
        run: Runner = runner or importlib.import_module("autofit_workers.trials.run").run
        outcome: TrialOutcome = isolate.run_interruptibly(run, protocol.TrialSpec.from_json(spec_json))
        return outcome.to_json()

    return supervise


def _interrupt(references: list[Any]) -> None:
    """Cancels Ray tasks; those that run get a KeyboardInterrupt, upon which they end their child processes.

    Ray's cancelling by force would kill a worker and its children, but not the children's children.
    """
    import ray

    if not references:
        return
    for reference in references:
        ray.cancel(reference)
    _, deaf = ray.wait(references, num_returns=len(references), timeout=_EXIT_SECONDS)
    for reference in deaf:
        ray.cancel(reference, force=True)


def _nodes() -> list[dict[str, float]]:
    """Total resources of each live node of the Ray cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call, unused-ignore]


def _no_node(
    nodes: Sequence[Node], request: Request, num_nodes: int, waited_seconds: float = 0.0
) -> DispatchError:
    """Error for a trial that no node of the cluster can run, with what was asked for and what nodes have."""
    after = f" after {waited_seconds:.0f} s of waiting" if waited_seconds else ""
    offers = offers_in_words(nodes, request)
    if num_nodes > 1:
        able = sum(num_at_once(node, request) > 0 for node in nodes)
        return DispatchError(
            f"--nnodes {num_nodes}: {able} of the {len(nodes)} nodes of the Ray cluster can run ranks of the "
            f"trial{after}: each is asked for {in_words(request)}, and the nodes offer {offers}: add nodes, "
            "or ask for less"
        )
    return DispatchError(
        f"no node of the Ray cluster can run the trial{after}: it asks for {in_words(request)}, and the "
        f"nodes offer {offers}: add a node that can, or ask for less"
    )


def _outcome(spec: TrialSpec, answer: Future[str]) -> TrialOutcome | DispatchError:
    """Outcome of a trial from its finished Ray task.

    If the worker was lost, the outcome says so (`LOST`); for other failures of Ray it is a `DispatchError`.

    Args:
        answer: finished future of the outcome as JSON.
    """
    error = answer.exception()
    if error is not None:
        return _of_error(spec, error)
    try:
        return TrialOutcome.from_json(answer.result())
    except (ValueError, KeyError, TypeError) as mismatch:
        return DispatchError(f"a worker's answer cannot be read ({mismatch}): {_SAME_VERSION}")


def _of_a_failed_node(spec: TrialSpec, error: BaseException) -> TrialOutcome:
    """Outcome of a rank whose node failed with a Ray error.

    Raises:
        DispatchError: the error says nothing about the trial.
    """
    if isinstance(error, TimeoutError):
        return _lost(spec, f"its node is lost ({brief_error(error)})")
    outcome = _of_error(spec, error)
    if isinstance(outcome, DispatchError):
        raise outcome
    return outcome


def _of_error(spec: TrialSpec, error: BaseException) -> TrialOutcome | DispatchError:
    """Outcome `LOST`, or an error to raise, for a Ray task that failed."""
    from ray import exceptions

    if isinstance(error, exceptions.OutOfMemoryError):
        # The kernel enforces a CPU trial's budget, so the budget was not exceeded.
        return _lost(
            spec,
            f"Ray killed the trial's worker because its node ran short of memory ({brief_error(error)}): "
            "run fewer trials at a time there, or give the node more memory",
        )
    lost = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError,
        exceptions.ObjectLostError,
        exceptions.RayActorError,
        exceptions.ActorUnschedulableError,
        exceptions.ActorPlacementGroupRemoved,
    )
    is_refused = isinstance(error, exceptions.RayActorError) and error.actor_init_failed
    if isinstance(error, lost) and not is_refused:
        return _lost(spec, f"the trial's worker or its node died ({brief_error(error)})")
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    return DispatchError(f"a worker could not supervise a trial ({brief_error(cause)}): {_SAME_VERSION}")


def _lost(spec: TrialSpec, message: str) -> TrialOutcome:
    return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message=message))
