"""Connects a process to a Ray cluster, an existing one or one that is started on this machine."""

from __future__ import annotations

import functools
import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from autofit.dispatch import processes
from autofit.dispatch.addresses import require_answer
from autofit.errors import DispatchError, UsageError
from autofit_workers.spec.shown import brief_error

# A local cluster's object store holds specs and outcomes only. Ray's default, 30 % of
# the memory, would be missing for trials.
_OBJECT_STORE_BYTES = 128 * 1024**2
_CONNECT_SECONDS = 3.0
# A trial ends its whole process group when its supervisor dies; Ray would kill only the trial's own process,
# before that.
KILLS_CHILDREN = "kill_child_processes_on_worker_exit"
SERVERS = ("gcs_server", "raylet")  # a cluster of one node cannot work without them
# A socket's path has at most 107 bytes (unix(7)). Ray appends to the folder and `/r`:
# /session_2026-11-25_01-13-19_673863_4194304/sockets/plasma_store.
_LONGEST_FOLDER_BYTES = 107 - 2 - 64


class RayStartError(DispatchError):
    """Raised if Ray cannot be imported or started on this machine.

    Args:
        reason: the cause, in short.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def imported() -> Any:
    """Imports the package `ray` and returns it.

    Raises:
        RayStartError: the import fails.
    """
    try:
        import ray
    except Exception as error:
        reason = brief_error(error)
        raise RayStartError(
            f"Ray cannot be imported ({reason}): install it with pip install 'ray[default]', or measure on "
            "this machine with --dispatch inline",
            reason=reason,
        ) from error
    return ray


def processes_of_ray() -> list[psutil.Process]:
    """Processes of the Ray cluster that this process started, with all their descendants."""
    import ray

    started = processes.children_running(Path(ray.__file__).parent)
    return started + [below for child in started for below in processes.descendants(child)]


def servers_of_ray() -> dict[str, psutil.Process]:
    """Running server processes of the Ray cluster that this process started, by name."""
    found = {}
    for process in processes_of_ray():
        with suppress(psutil.NoSuchProcess):
            if process.name() in SERVERS:
                found[process.name()] = process
    return found


def private_folder() -> Path:
    """Makes a folder for a cluster's files that other users of this machine cannot enter.

    Raises:
        RayStartError: the folder cannot be made.
    """
    places = [os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), tempfile.gettempdir(), "/tmp"]  # noqa: S108
    for place in places:
        try:
            folder = tempfile.mkdtemp(prefix="autofit-", dir=place)  # only this user can enter it
        except OSError as error:
            raise no_start(brief_error(error)) from error
        if len(os.fsencode(folder)) <= _LONGEST_FOLDER_BYTES or place == places[-1]:
            break
        os.rmdir(folder)  # noqa: PTH106 - made by `tempfile`
    return Path(folder)


def connect(address: str, folder: Path | None) -> bool:
    """Connects this process to a Ray cluster, or starts one; returns whether the connection is new.

    Args:
        address: `local` to start a cluster, `auto`, `host:port` or `ray://host:port`.
        folder: folder for the files of a cluster that is started; None otherwise.
    """
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
            "_system_config": {KILLS_CHILDREN: False},
            # Ray gives everyone access to the folder that it gets; this one lies in a private one.
            "_temp_dir": str(folder / "r") if folder is not None else None,
        }
        _protect_local_cluster()
        _require_connections()
    else:
        use_token_at_hand()
        require_answer(address, cluster_here=cluster_of_this_machine)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except BaseException as error:
        ray.shutdown()
        # Ray ends the process by SIGTERM if it loses a cluster while connecting.
        if not isinstance(error, (Exception, SystemExit)):
            raise
        if address == "local":
            processes.see_them_end(processes_of_ray(), within_seconds=0.0)  # the processes that did start
            raise no_start(brief_error(error)) from error
        raise DispatchError(
            f"Ray cannot connect to {address} ({brief_error(error)}): use the cluster's version of Ray, "
            "and its token in RAY_AUTH_TOKEN if it has one"
        ) from error
    return True


def no_start(reason: str) -> RayStartError:
    """Error for the user, with the reason why Ray cannot start on this machine."""
    return RayStartError(
        f"Ray cannot start on this machine ({reason}): free memory and disk, or measure without it "
        "(--dispatch inline)",
        reason=reason,
    )


def _require_connections() -> None:
    """Checks that processes can reach each other on this machine; else Ray would try for minutes.

    Raises:
        RayStartError: processes cannot reach each other.
    """
    from ray.util import get_node_ip_address

    try:
        here: str = get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
        with socket.create_server((here, 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise no_start(f"its processes cannot connect to each other, {brief_error(error)}") from error


def cluster_of_this_machine() -> str | None:
    """Address of the Ray cluster that this machine belongs to; None if there is none."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        address: str | None = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        return None
    return address


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Context manager that restores environment variables and SIGTERM's handler, which Ray changes."""
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
    """Sets an authentication token for the Ray cluster to be started, unless the user has chosen one.

    Ray protects a cluster by a token. Ray would write a token that it makes itself into the home directory,
    where the token would stay and be used for other clusters too.
    """
    chosen = any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if not chosen and not Path("~/.ray/auth_token").expanduser().exists():
        os.environ["RAY_AUTH_TOKEN"] = own_token()


def use_token_at_hand() -> None:
    """Sets `RAY_AUTH_MODE=token` if an authentication token is found, without which Ray would not use it."""
    from ray._private.authentication.authentication_token_setup import (
        maybe_enable_token_auth_if_token_available,
    )

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def authorization() -> dict[str, str]:
    """HTTP header with the authentication token of a Ray cluster; empty where no token is at hand.

    The token is found where Ray looks for one, in the same order (https://docs.ray.io, "Token
    authentication"), but without an import of Ray, which takes a second. Ray is asked where it is told to
    authenticate in another way, such as by Kubernetes.

    Raises:
        DispatchError: the file that `RAY_AUTH_TOKEN_PATH` names cannot be read, or is empty.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode == "disabled":
        return {}
    if mode != "token" or os.environ.get("RAY_ENABLE_K8S_TOKEN_AUTH"):
        from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled

        return get_auth_headers_if_auth_enabled({})
    token = os.environ.get("RAY_AUTH_TOKEN", "").strip() or _token_of_file()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _token_of_file() -> str:
    """Token in the file that `RAY_AUTH_TOKEN_PATH` names, else in `~/.ray/auth_token`; empty without one."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named or "~/.ray/auth_token").expanduser()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        if named is None and isinstance(error, FileNotFoundError):
            return ""
        raise DispatchError(
            f"the token of the Ray cluster cannot be read from {path} ({brief_error(error)}): correct "
            "RAY_AUTH_TOKEN_PATH, or put the token into RAY_AUTH_TOKEN"
        ) from error
    if not token and named is not None:
        raise DispatchError(
            f"{path}, which RAY_AUTH_TOKEN_PATH names, is empty: put the token of the cluster's head into it"
        )
    return token


@functools.cache
def own_token() -> str:
    """Authentication token for all Ray clusters that this process starts.

    There is only one, as Ray remembers the first token in a process.
    """
    return secrets.token_hex(32)
