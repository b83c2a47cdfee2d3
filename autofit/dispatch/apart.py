"""Dispatcher that runs Ray in a separate process (`ray_host`), so that Ray changes nothing in this one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import uuid
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import autofit_workers
from autofit.dispatch.base import Devices, Dispatcher, PendingTrials
from autofit.dispatch.processes import remove_folder
from autofit.dispatch.ray_connection import RayStartError, no_start, private_folder
from autofit.dispatch.ray_host import GRACE_SECONDS, HURRY, error_from_dict
from autofit.dispatch.requests import Wishes
from autofit.errors import AutofitError, DispatchError
from autofit.events import EventSink, Progress, ignore
from autofit_workers.process.descendants import MARK, kill_marked
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec
from autofit_workers.spec.pythons import arguments_for
from autofit_workers.trials.door import require_wanted

# Both packages are imported by their paths, as another `autofit` may come first on the import path.
_BOOTSTRAP = """
import importlib, importlib.util, sys
_, *packages, folder = sys.argv
del sys.argv[1:]
for package in packages:
    name = package.rpartition("/")[2]
    spec = importlib.util.spec_from_file_location(
        name, f"{package}/__init__.py", submodule_search_locations=[package])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
importlib.import_module("autofit.dispatch.ray_host").main(folder)
"""
_EXIT_SECONDS = GRACE_SECONDS + 1.5
_POLL_SECONDS = 0.1


class RayApart(Dispatcher):
    """Runs trials on a Ray cluster through a separate process (the Ray host), which alone imports Ray.

    A trial is one measured run of a configuration. The Ray host ends when this process does.

    Args:
        address, wishes, node_wait_seconds, emit: as for `RayDispatcher`.

    Raises:
        RayStartError, DispatchError, UsageError: see `RayDispatcher`.
        StoppedError: the search was stopped; see `autofit_workers.trials.isolate.ended_by`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        wishes: Wishes = Wishes(),  # noqa: B008 - frozen
        node_wait_seconds: float = 30.0,
        emit: EventSink = ignore,
    ) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._calls: dict[int, Future[Any]] = {}
        self._futures: dict[int, Future[TrialOutcome]] = {}
        self._trials: PendingTrials[None] = PendingTrials()
        self._lost: str | None = None
        self._is_connected = False
        self._closed = threading.Event()
        self._mark = uuid.uuid4().hex
        self._requests = -1  # no pipe yet
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = private_folder()
        try:
            self._process = self._started()
            threading.Thread(
                target=self._listen, args=(self._process,), name="autofit-ray", daemon=True
            ).start()
            connected = self._send(
                "connect",
                address=address,
                wishes=dataclasses.asdict(wishes),
                node_wait_seconds=node_wait_seconds,
            )
            while not connected.done():
                require_wanted()
                wait([connected], timeout=_POLL_SECONDS)
            try:
                connected.result()
            except DispatchError:
                if self._lost is None or address not in (None, "local"):
                    raise
                raise no_start(self._lost) from None
            self._is_connected = True
        except BaseException:
            self.close()
            raise

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        if self._closed.is_set():
            raise RuntimeError("cannot submit a trial after the dispatcher was closed")
        future = self._trials.add(None)
        try:
            self._send("submit", trial=future, spec=spec.to_json()).result()
        except BaseException as error:
            self._trials.complete(future, error)  # the caller does not have the future yet
            raise
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        told: dict[str, Any] = (
            {"probe": trial.value} if isinstance(trial, Probe) else {"spec": trial.to_json()}
        )
        capacity: int = self._send("capacity", **told).result()
        return capacity

    def devices(self) -> Devices:
        devices = self._send("devices").result()
        return Devices(num_gpus=devices["num_gpus"], names=tuple(devices["names"]))

    def close(self) -> None:
        """Cancels all trials, and ends the Ray host with all processes that it started."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._trials.cancel_all()
        with self._lock, suppress(OSError):
            os.close(self._requests)  # at the end of its input the host ends trials first, then Ray
        if self._process is not None:
            if not self._is_connected:
                self._process.send_signal(HURRY)
            try:
                self._process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        kill_marked(self._mark)  # even if host and keeper fail to
        remove_folder(self._folder)

    def _started(self) -> subprocess.Popen[bytes]:
        """Starts the Ray host, connected by pipes."""
        packages = [autofit_workers.__path__[0], str(Path(__file__).parents[1])]
        requests, self._requests = os.pipe()
        try:
            with (self._folder / "log").open("wb") as log:
                return subprocess.Popen(  # noqa: S603 - our own interpreter and code
                    [sys.executable, *arguments_for(_BOOTSTRAP), *packages, str(self._folder)],
                    env={**os.environ, MARK: self._mark},
                    stdin=requests,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # only this process gets Ctrl-C, and ends trials first
                )
        except OSError as error:
            raise RayStartError(
                f"no process could be started for Ray ({error}): free memory, or end processes",
                reason=str(error),
            ) from error
        finally:
            os.close(requests)

    def _send(self, call: str, *, trial: Future[TrialOutcome] | None = None, **details: Any) -> Future[Any]:
        """Sends a request to the Ray host; returns a future of its answer.

        Args:
            call: name of the request.
            trial: future of the trial's outcome, if the request starts a trial; the host completes it later.
            details: contents of the request.
        """
        answer: Future[Any] = Future()
        with self._lock:
            if self._lost is not None or self._closed.is_set():
                raise self._loss()
            number = next(self._numbers)
            self._calls[number] = answer
            if trial is not None:
                self._futures[number] = trial
            rest = memoryview(json.dumps({"id": number, "call": call, **details}).encode() + b"\n")
            with suppress(BrokenPipeError):  # the end of the answers shows why
                while rest:
                    rest = rest[os.write(self._requests, rest) :]
        return answer

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Reads the Ray host's messages until its output ends, and completes the futures that they answer."""
        assert process.stdout is not None
        try:
            with process.stdout as answers:
                for line in answers:
                    self._hear(json.loads(line))
        finally:
            self._lose("the process that speaks with Ray ended")

    def _hear(self, said: dict[str, Any]) -> None:
        """Handles a message of the Ray host: progress, loss, a trial's outcome, or an answer."""
        if "progress" in said:
            self._emit(Progress(**said["progress"]))
        elif "lost" in said:
            self._lose(said["lost"])
        elif "trial" in said:
            with self._lock:
                trial = self._futures.pop(said["trial"])
            self._trials.complete(trial, _outcome(said))
        else:
            with self._lock:
                answer = self._calls.pop(said["id"])
            if "error" in said:
                answer.set_exception(error_from_dict(said["error"]))
            else:
                answer.set_result(said["result"])

    def _lose(self, how: str) -> None:
        """Marks the Ray host as lost: all waiting and all later requests and trials fail.

        Args:
            how: end of the sentence that says what happened to it.
        """
        with self._lock:
            if self._lost is None:
                self._lost = how
            calls, self._calls = self._calls, {}
        for call in calls.values():
            call.set_exception(self._loss())
        for trial in self._trials.snapshot():
            self._trials.complete(trial, self._loss())

    def _loss(self) -> DispatchError:
        return DispatchError(
            f"{self._lost or 'the connection to Ray was closed'}: the same command continues the search"
        )


def _outcome(said: dict[str, Any]) -> TrialOutcome | AutofitError:
    if "error" in said:
        return error_from_dict(said["error"])
    return TrialOutcome.from_json(said["outcome"])
