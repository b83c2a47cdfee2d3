"""Client of a Ray cluster's job server, which runs drivers as Ray jobs.

Ray takes a second of processor time to import, of which a cluster of many users has many. What is asked
of the server for every job is therefore asked by its REST interface, as https://docs.ray.io documents it
("Ray Jobs REST API"). Ray's own client uploads folders with code and follows logs, and is imported then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from autofit.dispatch.addresses import require_answer
from autofit.dispatch.ray_connection import (
    authorization,
    cluster_of_this_machine,
    process_state_kept,
    use_token_at_hand,
)
from autofit.errors import DispatchError, UsageError
from autofit.jobs.submission import ADDRESS_VARIABLES
from autofit_workers.spec.errors import text_of
from autofit_workers.spec.shown import brief, brief_error, redacted_place

DRIVER_RESOURCE = "autofit_driver"

_ANSWER_SECONDS = 3.0
_REQUEST_SECONDS = 60.0
# Seconds from the signal that ends a driver to the one that kills it: Ray's own 3 s are too few to end
# trials.
STOP_SECONDS = 30
_quiet = logging.getLogger(f"{__name__}.ray")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False
_OLDEST_RAY, _NEXT_RAY = (2, 60), (3, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """State of the Ray job that runs an autofit job (its driver), as Ray's job server reports it.

    Attributes:
        status: state of the Ray job: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED.
        message: first line of Ray's message.
    """

    status: str
    message: str

    @property
    def has_ended(self) -> bool:
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")


class RayJobs:
    """Client of a Ray cluster's job server.

    Args:
        address: address of Ray's dashboard, such as http://head:8265; `auto` or host:port for a
            cluster that this machine belongs to.

    Attributes:
        address: URL of the dashboard.

    Raises:
        DispatchError: nothing answers, the answer is not from a job server, the server requires another
            authentication token, or it runs a release of Ray that is not supported.
    """

    def __init__(self, address: str) -> None:
        with process_state_kept():
            self.address = _dashboard(address)
        _require_listener(self.address)
        self._server = _Server(self.address)
        _require_version(self.address, self._server.version())
        self._known_client: Any = None

    def submit(self, submission_id: str, command: str, *, working_dir: str | None, needs_slot: bool) -> bool:
        """Starts a command as a Ray job.

        Args:
            working_dir: path of a zip file on this machine, or the URI of one.
            needs_slot: whether the job takes 1 of the cluster's resource `autofit_driver`, by which nodes
                limit the number of jobs that run at the same time.

        Returns:
            Whether the job was started; False if a job with this id was started before.
        """
        environment: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}}
        asked: dict[str, Any] = {"entrypoint": command, "submission_id": submission_id}
        if needs_slot:
            asked["entrypoint_resources"] = {DRIVER_RESOURCE: 1}
        try:
            if working_dir is None:
                self._server.ask("POST", "/api/jobs/", {**asked, "runtime_env": environment})
            else:
                environment["working_dir"] = working_dir
                with _ray_errors(self.address):
                    self._client().submit_job(**asked, runtime_env=environment)
        except RefusedError:
            if self.driver(submission_id) is None:
                raise
            return False
        return True

    def driver(self, submission_id: str) -> Driver | None:
        """State of the Ray job with an id; None if the cluster does not know it, or no longer."""
        try:
            details = self._server.ask("GET", _path_of(submission_id))
        except RefusedError as refused:
            if refused.status == 404:
                return None
            raise
        return Driver(status=str(details["status"]), message=brief(text_of(details.get("message") or "")))

    def stop(self, submission_id: str) -> None:
        """Asks a Ray job to end; does nothing if the cluster does not know it."""
        try:
            self._server.ask("POST", f"{_path_of(submission_id)}/stop")
        except RefusedError as refused:
            if refused.status != 404:
                raise

    def logs(self, submission_id: str) -> str | None:
        """Output of a Ray job so far, as text; None if the cluster does not know the job."""
        if self.driver(submission_id) is None:
            return None
        return str(self._server.ask("GET", f"{_path_of(submission_id)}/logs")["logs"])

    def follow(self, submission_id: str) -> Iterator[str]:
        """Yields the output of a Ray job as text, from its beginning until it ends."""
        with closing(asyncio.new_event_loop()) as loop, _ray_errors(self.address):
            tail = self._client().tail_job_logs(submission_id)
            while (chunk := loop.run_until_complete(anext(tail, None))) is not None:
                yield chunk

    def driver_slots(self) -> int | None:
        """Number of drivers (processes of jobs) that the cluster runs in parallel; None if not limited."""
        answer = self._server.ask("GET", "/api/v0/nodes?detail=1&limit=10000")
        try:
            nodes = answer["data"]["result"]["result"]
            offered = [
                node["resources_total"].get(DRIVER_RESOURCE, 0) for node in nodes if node["state"] == "ALIVE"
            ]
        except (KeyError, TypeError) as error:
            raise _went_away(self.address, error) from error
        return int(sum(offered)) or None

    def _client(self) -> Any:
        """Ray's own client of the job server, made when it is first needed."""
        if self._known_client is None:
            with process_state_kept():
                use_token_at_hand()
                with _ray_errors(self.address, connecting=True):
                    self._known_client = _client(self.address)
        return self._known_client


def working_dir_files(folder: Path) -> list[Path]:
    """Files of a folder that Ray would upload: without those that .gitignore and .rayignore exclude."""
    from ray._private import ray_constants
    from ray._private.runtime_env import packaging

    found: list[Path] = []
    excludes = [packaging._get_excludes(folder, ray_constants.get_runtime_env_default_excludes())]  # noqa: SLF001
    respects_gitignore = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    packaging._dir_travel(  # noqa: SLF001 - nothing public walks a folder as Ray's upload does
        folder, excludes, found.append, include_gitignore=respects_gitignore, logger=_quiet
    )
    return [path for path in found if path.is_file()]


# ── connection and its errors ───────────────────────────────────────────────────────────────


class RefusedError(DispatchError):
    """Ray's job server refused a request."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Server:
    """REST interface of a Ray dashboard.

    Args:
        address: URL of the dashboard.
    """

    def __init__(self, address: str) -> None:
        import requests

        self._address = address
        self._session = requests.Session()
        self._session.headers.update(authorization())

    def version(self) -> str:
        """Release of Ray that the cluster runs; raises `DispatchError` if the address is no dashboard's."""
        try:
            return str(self.ask("GET", "/api/version")["ray_version"])
        except (RefusedError, KeyError, TypeError, _NoAnswerError) as error:
            raise _no_dashboard(self._address) from error

    def ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        """Sends a request, and returns the answer's JSON document.

        Raises:
            RefusedError: the server answers with an error.
            DispatchError: it does not answer, wants another token, or answers with no document.
        """
        import requests

        try:
            answer = self._session.request(
                method, f"{self._address}{path}", json=document, timeout=_REQUEST_SECONDS
            )
        except (requests.RequestException, OSError) as error:
            raise _NoAnswerError(_went_away(self._address, error).message) from error
        if answer.status_code in (401, 403):
            raise _token_error(self._address, has_token=answer.status_code == 403)
        if answer.status_code != 200:
            raise _refused(self._address, answer.status_code, answer.text)
        try:
            return answer.json()
        except ValueError as error:
            raise _NoAnswerError(_went_away(self._address, error).message) from error


class _NoAnswerError(DispatchError):
    """Error that a server gave no answer, or one that is no JSON document."""


def _path_of(submission_id: str) -> str:
    """Path of a Ray job in the REST interface."""
    return f"/api/jobs/{quote(submission_id, safe='')}"


def _dashboard(address: str) -> str:
    """URL of the Ray dashboard at an address; the cluster is asked for it unless the address is a URL."""
    if address.startswith(("http://", "https://")):
        return address.rstrip("/")
    use_token_at_hand()
    require_answer(address, cluster_here=cluster_of_this_machine)
    from ray.dashboard.utils import get_address_for_submission_client

    for variable in ADDRESS_VARIABLES:  # these variables would override the given address
        os.environ.pop(variable, None)
    try:
        return get_address_for_submission_client(address)
    except Exception as error:  # Ray raises many types
        raise DispatchError(
            f"the Ray cluster at {address} does not give its dashboard's address ({brief_error(error)}): "
            "give it yourself, such as http://head:8265"
        ) from error


def _require_listener(address: str) -> None:
    """Raises `DispatchError` if nothing listens at an address; a request of Ray would wait for minutes.

    It takes at most 3 seconds.
    """
    try:
        parts = urlsplit(address)
        endpoint = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        endpoint = None, 0
    host, port = endpoint
    if not host:
        raise UsageError(
            f"{redacted_place(address)!r} is not the address of a dashboard: write it as http://head:8265"
        )
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise DispatchError(
            f"nobody answers at {address} ({error}): give the address of the head's dashboard, such as "
            "http://head:8265, and make sure that `ray start --head` runs there"
        ) from error


def _client(address: str) -> Any:
    """Client of Ray's job server with a time limit on requests."""
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        """Ray's job client with a time limit on requests, so that a stuck head node cannot block for ever."""

        def _do_request(self, *arguments: Any, **options: Any) -> Any:
            return super()._do_request(*arguments, **{"timeout": _REQUEST_SECONDS, **options})

    for module in ("dashboard_sdk", "job.sdk"):  # loggers that report every upload and log's end
        logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
    os.environ[ADDRESS_VARIABLES[0]] = address  # the variable overrides the client's argument
    return Client(address)


@contextmanager
def _ray_errors(address: str, *, connecting: bool = False) -> Iterator[None]:
    """Context manager that turns errors of Ray's client into `DispatchError`, with advice for the user."""
    import aiohttp
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        has_token = "Authentication failed" in str(error)
        raise _token_error(address, has_token=has_token) from error
    except (requests.RequestException, aiohttp.ClientError, OSError, KeyError, TypeError) as error:
        raise (_no_dashboard(address) if connecting else _went_away(address, error)) from error
    except (RuntimeError, ValueError) as error:
        if connecting:
            raise _no_dashboard(address) from error
        told = re.match(r"Request failed with status code (\d+): (.*)", str(error), re.DOTALL)
        status, text = (int(told[1]), told[2]) if told else (400, str(error))
        raise _refused(address, status, text) from error


def _refused(address: str, status: int, text: str) -> RefusedError:
    last_line = brief((text.strip().splitlines() or ["no reason given"])[-1].rstrip("."))
    return RefusedError(f"Ray's job server at {address} refuses the request: {last_line}", status=status)


def _token_error(address: str, *, has_token: bool) -> DispatchError:
    return DispatchError(
        f"the cluster at {address} refuses the token: put the token of its head into RAY_AUTH_TOKEN, or "
        "into the file that RAY_AUTH_TOKEN_PATH names"
        if has_token
        else f"the cluster at {address} asks for a token: set RAY_AUTH_MODE=token, and put the token of "
        "its head into RAY_AUTH_TOKEN, or the path of its file into RAY_AUTH_TOKEN_PATH"
    )


def _no_dashboard(address: str) -> DispatchError:
    return DispatchError(
        f"{address} is not a Ray dashboard: give the dashboard's address, usually port 8265 of the head; "
        "the head needs Ray with its dashboard, pip install 'ray[default]'"
    )


def _went_away(address: str, error: BaseException) -> DispatchError:
    return DispatchError(
        f"the cluster at {address} no longer answers ({brief_error(error)}): queued jobs stay in the "
        "storage; try again when the head is back"
    )


def _require_version(address: str, version: str) -> None:
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
    if not _OLDEST_RAY <= numbers < _NEXT_RAY:
        raise DispatchError(
            f"the cluster at {address} runs Ray {version}, but autofit's drivers need at least Ray 2.60, "
            "below 3: install such a Ray on the cluster"
        )
