"""Trials on a Ray cluster: one started here, or one that runs already.

    driver (this process)           Ray worker: the supervisor          trial
      submit(spec) ── JSON ──▶        workers.run(spec) ───────────▶      a fresh process
      Future       ◀── JSON ──        never imports torch, reused         dies with its supervisor

Ray is imported when a dispatcher is made, never by `import autofit`.

Ray puts the driver's working directory in front of its workers' import path, where a folder named
`workers` (or `autofit`) would hide ours. So the supervisor travels by value and takes the package
by its path: the driver's own on the same machine or a shared file system, else the one installed
on that node.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import workers
from autofit.dispatch import processes
from autofit.dispatch.base import Devices, Dispatcher, PendingTrials, Runner
from autofit.errors import DispatchError, UsageError
from autofit.units import format_bytes
from workers.outcomes import without_answer
from workers.protocol import Probe, TrialError, TrialOutcome, TrialSpec, Verdict

# Specs and outcomes are all that a local cluster's object store holds. Ray's own choice, 30 % of
# the memory, would be missing from what trials can be given.
_OBJECT_STORE_BYTES = 128 * 1024**2
_NUM_RETRIES = 1
_ANSWER_SECONDS = 3.0
_EXIT_SECONDS = 10.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HTTP2_SETTINGS = b"\x04"
# A trial ends its whole process group when its supervisor dies; Ray would kill the trial alone,
# before it can.
_KILLS_CHILDREN = "kill_child_processes_on_worker_exit"
_ACCELERATOR_TYPE = "accelerator_type:"
_SAME_VERSION = "install the same autofit on every node of the cluster"


class RayDispatcher(Dispatcher):
    """Hands trials to a Ray cluster.

    A connection that this process has already is used and left open; else one is made here, and
    ends with `close`.

    Args:
        address: `local`, which is also None, starts a cluster on this machine that ends with the
            dispatcher; `auto`, `host:port` and `ray://host:port` name one that runs.
        runner: what a worker calls instead of `workers.run`; it has to pickle by value.
        patience_seconds: so long a trial waits for another node when all that could run it have
            left the cluster; then it is lost.

    Raises:
        DispatchError: nobody answers at the address, or Ray does not start.
        UsageError: the address is none.
    """

    def __init__(
        self, address: str | None = None, *, runner: Runner | None = None, patience_seconds: float = 30.0
    ) -> None:
        address = address or "local"
        with _process_state_kept():
            import ray

            self._owns_connection = _connect(address)
        self._owns_cluster = self._owns_connection and address == "local"
        self._patience_seconds = patience_seconds
        self._package_root = str(Path(workers.__path__[0]).parent)
        # In a cluster of others this asks for workers of our own; in ours every worker is one.
        environment = {} if self._owns_cluster else {"env_vars": {f"RAY_{_KILLS_CHILDREN}": "0"}}
        self._supervise = ray.remote(max_retries=_NUM_RETRIES, runtime_env=environment)(_supervisor(runner))
        self._pending: PendingTrials[_Trial] = PendingTrials()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._give_up_on_lost_nodes, name="autofit-ray", daemon=True)
        self._watch.start()

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        if self._closed.is_set():  # Ray would start another cluster
            raise RuntimeError("cannot submit a trial after the dispatcher was closed")
        request = _request(spec)
        nodes = _nodes()
        if not _can_run(nodes, request):
            offers = sorted({_in_words(node, request) for node in nodes}) or ["nothing"]
            raise DispatchError(
                f"no node of the Ray cluster can run the trial: it asks for {_in_words(request, request)}, "
                f"and the nodes offer {'; '.join(offers)}: add a node that can, or ask for less"
            )
        task = self._supervise.options(
            num_cpus=request["CPU"],
            num_gpus=request.get("GPU", 0),
            memory=request.get("memory"),
            name=f"{spec.workload.name} at {spec.batch_size}",
        )
        reference = task.remote(spec.to_json(), self._package_root)
        future = self._pending.add(_Trial(spec, reference))
        reference.future().add_done_callback(
            lambda answer: self._pending.complete(future, _outcome(spec, answer))
        )
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        if isinstance(trial, Probe):
            request = {"GPU" if trial is Probe.CUDA else "CPU": 1}
        else:
            request = _request(trial)
        return sum(min(int(node.get(name, 0) // num) for name, num in request.items()) for node in _nodes())

    def devices(self) -> Devices:
        names: list[str] = []
        for node in _nodes():
            # To Ray, the GPUs of one node are of one type.
            kind = next((key for key in node if key.startswith(_ACCELERATOR_TYPE)), None)
            names += [kind.removeprefix(_ACCELERATOR_TYPE)] * int(node.get("GPU", 0)) if kind else []
        return Devices(num_gpus=self.capacity(Probe.CUDA), names=tuple(names))

    def close(self) -> None:
        import ray

        if self._closed.is_set():
            return
        self._closed.set()
        self._watch.join()
        _interrupt([trial.reference for trial in self._pending.cancel_all()])
        if self._owns_cluster:
            started = processes.children_running(Path(ray.__file__).parent)
            started += [below for child in started for below in processes.descendants(child)]
            ray.shutdown()
            processes.see_them_end(started)
        elif self._owns_connection:
            ray.shutdown()

    def _give_up_on_lost_nodes(self) -> None:
        """Ends trials that wait for a node that is gone; Ray would let them wait for ever."""
        import ray

        waiting_since: dict[Future[TrialOutcome], float] = {}
        while not self._closed.wait(self._patience_seconds / 4):
            try:
                nodes = _nodes()
            except Exception:  # noqa: BLE001 - the cluster itself may be gone, which Ray tells in many ways
                nodes = []
            trials = {
                future: trial
                for future, trial in self._pending.snapshot().items()
                if not _can_run(nodes, _request(trial.spec))
            }
            now = time.monotonic()
            waiting_since = {future: waiting_since.get(future, now) for future in trials}
            for future, trial in trials.items():
                if now - waiting_since[future] >= self._patience_seconds:
                    message = "the node that could run the trial left the cluster: add it again, or another"
                    self._pending.complete(future, _lost(trial.spec, message))
                    ray.cancel(trial.reference)


@dataclass(frozen=True, slots=True)
class _Trial:
    spec: TrialSpec
    reference: Any


def _supervisor(runner: Runner | None) -> Callable[[str, str], str]:
    """Makes what a Ray worker runs; a nested function, because those are pickled by value."""

    def supervise(spec_json: str, driver_root: str) -> str:
        import importlib.machinery
        import importlib.util
        import pathlib
        import sys

        roots = [driver_root, *(p for p in sys.path if pathlib.Path(p, "autofit", "dispatch").is_dir())]
        root = next((p for p in roots if pathlib.Path(p, "workers", "protocol.py").is_file()), None)
        if root is None:
            raise ModuleNotFoundError("autofit is not installed there")
        package = sys.modules.get("workers")
        if package is None or list(package.__path__) != [str(pathlib.Path(root, "workers"))]:
            module_spec = importlib.machinery.PathFinder.find_spec("workers", [root])
            assert module_spec is not None
            assert module_spec.loader is not None
            package = sys.modules["workers"] = importlib.util.module_from_spec(module_spec)
            module_spec.loader.exec_module(package)
        protocol = importlib.import_module("workers.protocol")
        run: Runner = runner or package.run
        return run(protocol.TrialSpec.from_json(spec_json)).to_json()

    return supervise


def _interrupt(references: list[Any]) -> None:
    """Ends Ray tasks; those that run see a KeyboardInterrupt first, and end their trial's processes.

    By force, Ray kills a worker and its children, but not theirs.
    """
    import ray

    if not references:
        return
    for reference in references:
        ray.cancel(reference)
    _, deaf = ray.wait(references, num_returns=len(references), timeout=_EXIT_SECONDS)
    for reference in deaf:
        ray.cancel(reference, force=True)


def _request(spec: TrialSpec) -> dict[str, int]:
    """What a trial asks of a node, in Ray's resources.

    A CPU trial that names no number of threads gets one, because Ray sets `OMP_NUM_THREADS` to
    the CPUs that a task asked for.
    """
    if spec.probe is not Probe.CPU:
        return {"CPU": 1, "GPU": 1} if spec.probe is Probe.CUDA else {"CPU": 1}
    memory = {} if spec.budget_bytes is None else {"memory": spec.budget_bytes}
    return {"CPU": spec.num_threads or 1, **memory}


def _nodes() -> list[dict[str, float]]:
    """The resources in total of each node that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call, unused-ignore]


def _can_run(nodes: list[dict[str, float]], request: dict[str, int]) -> bool:
    return any(all(node.get(name, 0) >= num for name, num in request.items()) for node in nodes)


def _in_words(resources: Mapping[str, float], names: Iterable[str]) -> str:
    amounts = {name: resources.get(name, 0) for name in names}
    return ", ".join(
        f"{format_bytes(int(amount))} of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in amounts.items()
    )


def _outcome(spec: TrialSpec, answer: Future[str]) -> TrialOutcome | DispatchError:
    """What a finished Ray task says: lost workers are verdicts, other failures are errors."""
    from ray import exceptions

    error = answer.exception()
    if error is None:
        try:
            return TrialOutcome.from_json(answer.result())
        except (ValueError, KeyError, TypeError) as mismatch:
            return DispatchError(f"a worker answered unreadably ({mismatch}): {_SAME_VERSION}")
    lost = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.LocalRayletDiedError,
        exceptions.ObjectLostError,
    )
    if isinstance(error, lost):
        return _lost(spec, f"the trial's worker died again after a retry ({_first_line(error)})")
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    return DispatchError(f"a worker could not supervise a trial ({_first_line(cause)}): {_SAME_VERSION}")


def _lost(spec: TrialSpec, message: str) -> TrialOutcome:
    return without_answer(spec, Verdict.LOST, TrialError(kind="environment", message=message))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _connect(address: str) -> bool:
    """Connects this process to Ray, and returns whether that was needed."""
    import ray

    if ray.is_initialized():
        connected_to = ray.get_runtime_context().gcs_address
        if address not in ("local", "auto", connected_to):
            raise UsageError(
                f"this process is already connected to the Ray cluster at {connected_to}: leave out the "
                f"address {address}, or call ray.shutdown() first"
            )
        return False
    local: dict[str, Any] = {}
    if address == "local":
        local = {
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            # Ray tries a task whose worker it killed for want of memory again without end.
            "_system_config": {"task_oom_retries": _NUM_RETRIES, _KILLS_CHILDREN: False},
        }
        _protect_local_cluster()
    else:
        _require_answer(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except BaseException as error:
        ray.shutdown()
        # Ray ends the process by SIGTERM when it loses a cluster while it connects.
        if not isinstance(error, (Exception, SystemExit)):
            raise
        if address == "local":
            failed, advice = (
                "start on this machine",
                "free memory and disk, or predict only (--probe predict)",
            )
        else:
            failed, advice = (
                f"connect to {address}",
                "use the cluster's version of Ray, and its token if it has one",
            )
        raise DispatchError(f"Ray does not {failed} ({_first_line(error)}): {advice}") from error
    return True


def _require_answer(address: str) -> None:
    """Asks for the greeting of a gRPC server: without one, Ray tries for more than a minute."""
    host, port = _endpoint(address)
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(_HTTP2_GREETING)
            greeting = connection.recv(9)
    except OSError as error:
        raise DispatchError(
            f"nobody answers at {host}:{port} ({error}): start Ray there with `ray start --head`, or leave "
            "out --address to use this machine"
        ) from error
    if greeting[3:4] != _HTTP2_SETTINGS:
        raise DispatchError(
            f"what answers at {host}:{port} is not Ray's head: give the port that `ray start --head` names, "
            "usually 6379, or 10001 after ray://"
        )


def _endpoint(address: str) -> tuple[str, int]:
    """Host and port of an address."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or _cluster_of_this_machine()
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.scheme in ("", "ray") and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:  # a port that is no number
        pass
    raise UsageError(f"{address!r} is no address of Ray: write local, auto, host:port or ray://host:port")


def _cluster_of_this_machine() -> str:
    from ray._private.services import canonicalize_bootstrap_address

    try:
        address = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        address = None
    if address is None:
        raise DispatchError(
            "no Ray cluster runs on this machine: start one with `ray start --head`, or leave out --address"
        )
    return address


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """Undoes what connecting to Ray changes of this process: its environment, SIGTERM's handler."""
    environment = dict(os.environ)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _protect_local_cluster() -> None:
    """Gives the cluster to be started a token of its own.

    Ray guards a cluster by a token, and writes one that it makes itself into the home directory,
    where it would stay and be used for other clusters too.
    """
    chosen = any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if not chosen and not Path("~/.ray/auth_token").expanduser().exists():
        os.environ["RAY_AUTH_TOKEN"] = _token()


@functools.cache
def _token() -> str:
    return secrets.token_hex(32)  # one per process, because Ray remembers the first it is given
