"""Moves a workload's process into the boundary, and keeps the result of the attempt."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from dataclasses import asdict, replace

from autofit_workers.process import host_memory, operating_system
from autofit_workers.process.boundary.permissions import Entered

_WRITTEN_SHARE = 0.25  # of the available memory, for files that a workload writes
_LEAST_WRITTEN_BYTES = 2**26


_entered = Entered(is_inside=False, reason="this process runs no workload that is predicted")


def entered() -> Entered:
    """Result of this process's attempt to enter the process boundary: whether it is inside, or why not.

    The boundary consists of Linux namespaces that keep a predicted workload from changing the machine.
    """
    return _entered


def enter(told: str, requests: int, answers: int) -> None:
    """Moves this process into the process boundary if the kernel allows; else restricts it.

    The boundary consists of Linux namespaces that keep a predicted workload from changing the machine; see
    `go_inside`. If the kernel refuses them, a process without the permission `subprocesses` gets the
    restrictions of `restrict` instead; a process with that permission goes on without any. Inside, Python is
    executed anew, with the same arguments but the last one: a process that was started outside could change
    the rights of its program's file, to which `/proc/self/exe` leads.

    Args:
        told: last command-line argument of this process: JSON of `Permissions` at first, of `Entered` once
            Python was executed anew.
        requests, answers: file descriptors of the pipes between this process and the autofit command that
            started it.
    """
    global _entered  # noqa: PLW0603 - a process enters once
    said = json.loads(told)
    if "is_inside" in said:
        _entered = Entered(is_inside=True, missing=tuple(said["missing"]))
        return
    if reason := operating_system.why_no_boundary():
        _entered = Entered(is_inside=False, reason=reason)
        return
    _entered = _go_inside(requests, (answers,), network=said["network"])
    if _entered.is_inside:
        os.execv(sys.executable, [*sys.orig_argv[:-1], json.dumps(asdict(_entered))])  # noqa: S606 - ourselves
    if not said["subprocesses"]:  # a process without files of its own is of little use
        from autofit_workers.process.boundary.restrictions import restrict

        _entered = replace(_entered, restrictions=restrict())


def enter_forked(requests: int, own: tuple[int, ...], writable: Collection[str]) -> bool:
    """Moves this process, a fork of one that sees all files read-only, into the process boundary.

    Nothing needs to be executed anew: the files of its program and its libraries cannot be changed.

    Args:
        requests: as for `enter`.
        own: descriptors that only the process inside keeps.
        writable: paths of the mounts that are writable outside, from `make_files_read_only`.

    Returns:
        Whether it is inside.
    """
    global _entered  # noqa: PLW0603 - a process enters once
    _entered = _go_inside(requests, own, network=False, writable=writable)
    return _entered.is_inside


def _go_inside(
    requests: int, own: tuple[int, ...], *, network: bool, writable: Collection[str] | None = None
) -> Entered:
    from autofit_workers.process.boundary.namespaces import go_inside

    available = host_memory.available_bytes() or 0
    return go_inside(
        requests,
        most_bytes=max(_LEAST_WRITTEN_BYTES, int(_WRITTEN_SHARE * available)),
        network=network,
        closed=own,
        writable=writable,
    )
