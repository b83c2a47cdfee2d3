"""Separate processes of a search: the host, which connects to Ray, and its keeper, which cleans up.

    coordinator              keeper                          host
      requests, a line each ──────────────────────────────▶    RayDispatcher, ray.init
      answers, a line each  ◀──────────────────────────────      └ GCS, raylet, agents, workers, trials
      closes its pipe       ──▶ waits a while, then kills all its descendants and removes their folder
      sends HURRY           ──▶ does not wait, as the host cannot read requests while Ray starts

The coordinator is the process that runs the search. Ray does not run in it because Ray takes over SIGTERM
(`ray.init` in ray/_private/worker.py sets a handler that exits, and its core worker installs abseil's failure
handler in C++, which aborts), ends the process when the head is gone (gcs_rpc_client.h, after a minute), and
prints on its streams. The keeper adopts orphans, so that processes that leave their parent are found too:
Ray's own agents check only now and then whether their raylet lives.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import psutil

from autofit.dispatch.processes import is_alive, remove_folder
from autofit.dispatch.ray import RayDispatcher
from autofit.dispatch.ray_connection import SERVERS, RayStartError, servers_of_ray
from autofit.dispatch.requests import Wishes
from autofit.errors import AutofitError, DispatchError, UsageError
from autofit.events import Event, Progress
from autofit_workers.process.descendants import adopt_orphans, below, die_with_parent, kill_below
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec
from autofit_workers.spec.shown import brief_error

# A search should end within ten seconds, so Ray has this long to end by itself.
GRACE_SECONDS = 6.0
HURRY = signal.SIGUSR1  # sent before the keeper runs, it ends that process, which has no descendants yet
_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 1.0


def main(folder: str) -> None:
    """Runs the Ray host, a process that uses Ray on behalf of its parent, and cleans up after it.

    It returns when the host or the parent has ended; then all processes of Ray are killed, and the folder is
    removed.

    Args:
        folder: folder for the host's files.
    """
    coordinator = os.getppid()
    adopt_orphans()
    is_hurried = threading.Event()
    signal.signal(HURRY, lambda *_: is_hurried.set())
    host = os.fork()
    if host == 0:
        signal.signal(HURRY, signal.SIG_DFL)
        die_with_parent()
        _speak(Path(folder))
    os.close(1)
    for number in (signal.SIGTERM, signal.SIGINT):  # a batch system sends it to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    _wait(host, coordinator, is_hurried)
    give_up = time.monotonic() + GRACE_SECONDS  # processes of other users may not be killed
    kill_below(os.getpid())
    while below(os.getpid()) and time.monotonic() < give_up:
        time.sleep(_LOOK_SECONDS)
        kill_below(os.getpid())
    remove_folder(Path(folder))


def _wait(host: int, coordinator: int, is_hurried: threading.Event) -> None:
    """Waits until the Ray host has ended, or is overdue because its parent is gone.

    That is `GRACE_SECONDS` after the parent ended or closed its pipe, or immediately if the parent asks so.

    Args:
        host: process id of the Ray host.
        coordinator: process id of the parent.
        is_hurried: set when the parent asks to end immediately.
    """
    requests = select.poll()
    requests.register(0, 0)  # only for the end of the pipe, which its reader may notice too
    give_up: float | None = None
    while os.waitpid(-1, os.WNOHANG)[0] != host and not is_hurried.is_set():  # orphans are reaped too
        if give_up is None:
            # Processes forked by the coordinator may hold the pipe open.
            if requests.poll(_LOOK_SECONDS * 1000) or os.getppid() != coordinator:
                give_up = time.monotonic() + GRACE_SECONDS
            continue
        time.sleep(_LOOK_SECONDS)
        if time.monotonic() > give_up:
            return


def _speak(folder: Path) -> None:
    """Runs the Ray host in this process: answers the parent's requests, and exits at the end."""
    # Ray's prints on standard output go to the log.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    status = 1
    try:
        _Host(answers, folder).serve()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


class _Host:
    """Answers the requests that the parent process sends on standard input, through a `RayDispatcher`.

    Args:
        answers: stream for the answers.
        folder: folder for the files of a Ray cluster that is started.
    """

    def __init__(self, answers: TextIO, folder: Path) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._folder = folder
        self._dispatcher: RayDispatcher | None = None
        self._is_closing = False
        self._gcs: tuple[str, int] | None = None

    def serve(self) -> None:
        """Answers requests, a line of JSON each, until the parent closes its pipe."""
        try:
            for line in sys.stdin:
                request = json.loads(line)
                try:
                    answer = self._answer(**request)
                except AutofitError as error:
                    answer = {"error": error_to_dict(error)}
                self._say({"id": request["id"], **answer})
        except Exception as error:
            self._say({"lost": f"the process that speaks with Ray failed ({brief_error(error)})"})
            raise
        with self._lock:
            self._is_closing = True
        if self._dispatcher is not None:
            self._dispatcher.close()

    def _answer(self, id: int, call: str, **details: Any) -> dict[str, Any]:  # noqa: A002 - JSON's name
        """Answer to one request: connect, devices, capacity or submit."""
        if call == "connect":
            self._connect(**details)
            return {"result": None}
        assert self._dispatcher is not None
        if call == "devices":
            return {"result": dataclasses.asdict(self._dispatcher.devices())}
        if call == "capacity":
            trial = Probe(details["probe"]) if "probe" in details else TrialSpec.from_json(details["spec"])
            return {"result": self._dispatcher.capacity(trial)}
        assert call == "submit"
        trial_ended = self._dispatcher.submit(TrialSpec.from_json(details["spec"]))
        trial_ended.add_done_callback(lambda future: self._tell(id, future))
        return {"result": None}

    def _connect(self, address: str | None, wishes: dict[str, Any], node_wait_seconds: float) -> None:
        """Connects to the Ray cluster at `address`; for None or `local` starts and watches one here.

        Args:
            wishes: resources and accelerator types that trials need.
        """
        if address in (None, "local"):
            threading.Thread(target=self._watch_servers, daemon=True).start()
        self._dispatcher = RayDispatcher(
            address,
            wishes=Wishes(
                resources=wishes["resources"], accelerator_types=tuple(wishes["accelerator_types"])
            ),
            node_wait_seconds=node_wait_seconds,
            emit=self._emit,
            folder=self._folder,
        )
        if address in (None, "local"):
            self._gcs = self._dispatcher.gcs_address

    def _watch_servers(self) -> None:
        """Waits for the death of one of the cluster's servers, reports it, and ends this process.

        Ray itself would notice it only after a minute.
        """
        servers: dict[str, psutil.Process] = {}
        while not (dead := [name for name, server in servers.items() if not is_alive(server)]):
            time.sleep(_LOOK_SECONDS)
            if self._gcs is not None and _refuses(self._gcs):
                dead = ["gcs_server"]  # after SIGTERM it closes its port and may live on
                break
            if len(servers) < len(SERVERS):  # Ray starts them one after the other
                servers = servers_of_ray() | servers
        with self._lock:
            if not self._is_closing:
                self._write({"lost": f"{dead[0]} of the Ray cluster on this machine died"})
                os._exit(1)

    def _tell(self, trial: int, future: Future[TrialOutcome]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._say({"trial": trial, "outcome": future.result().to_json()})
        else:
            self._say({"trial": trial, "error": error_to_dict(error)})

    def _emit(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._say({"progress": dataclasses.asdict(event)})

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._write(message)

    def _write(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the end of the requests shows it too
            self._answers.write(json.dumps(message) + "\n")
            self._answers.flush()


def _refuses(address: tuple[str, int]) -> bool:
    """Whether an address of this machine refuses connections, because no process listens there."""
    try:
        socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # a machine under load answers late
        return False
    return False


def error_to_dict(error: BaseException) -> dict[str, str]:
    """Dictionary of an error for the message to the parent process; `error_from_dict` restores the error.

    An error that is not autofit's own becomes a `DispatchError`.
    """
    kind = next((name for name, made in _ERRORS.items() if isinstance(error, made)), "dispatch")
    message = error.message if isinstance(error, AutofitError) else brief_error(error)
    return {"kind": kind, "message": message, "reason": getattr(error, "reason", "")}


def error_from_dict(error: Mapping[str, str]) -> AutofitError:
    """Error of the Ray host, restored from the dictionary that `error_to_dict` made."""
    if error["kind"] == "start":
        return RayStartError(error["message"], reason=error["reason"])
    return _ERRORS[error["kind"]](error["message"])


_ERRORS: dict[str, type[AutofitError]] = {
    "start": RayStartError,  # before its base class
    "usage": UsageError,
    "dispatch": DispatchError,
}
