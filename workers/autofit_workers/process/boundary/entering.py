"""Moves a workload's process into the boundary, and keeps the result of the attempt."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace

from autofit_workers.process import host_memory
from autofit_workers.process.boundary.permissions import Entered

_WRITTEN_SHARE = 0.25  # of the available memory, for files that a workload writes
_LEAST_WRITTEN_BYTES = 2**26


_entered = Entered(is_inside=False, reason="this process runs no workload that is predicted")


def entered() -> Entered:
    """Result of this process's attempt to enter the boundary: whether inside, or why not."""
    return _entered


def enter(told: str, requests: int, answers: int) -> None:
    """Moves this process into the boundary if the kernel allows, else restricts it; see `go_inside`.

    If the kernel refuses, a process that may start processes goes on without restrictions. Inside, Python is
    executed anew, with the same arguments but the last one: a process that was started outside could change
    the rights of its program's file, to which `/proc/self/exe` leads.

    Args:
        told: last argument of this process: the JSON of `Permissions`, or of `Entered` if executed anew.
        requests, answers: pipes between this process and its command.
    """
    global _entered  # noqa: PLW0603 - a process enters once
    said = json.loads(told)
    if "is_inside" in said:
        _entered = Entered(is_inside=True, missing=tuple(said["missing"]))
        return
    if not sys.platform.startswith("linux"):
        _entered = Entered(is_inside=False, reason=f"{sys.platform} has no namespaces")
        return
    from autofit_workers.process.boundary.namespaces import go_inside

    available = host_memory.available_bytes() or 0
    _entered = go_inside(
        requests,
        most_bytes=max(_LEAST_WRITTEN_BYTES, int(_WRITTEN_SHARE * available)),
        network=said["network"],
        closed=(answers,),
    )
    if _entered.is_inside:
        os.execv(sys.executable, [*sys.orig_argv[:-1], json.dumps(asdict(_entered))])  # noqa: S606 - ourselves
    if not said["subprocesses"]:  # a process without files of its own is of little use
        from autofit_workers.process.boundary.restrictions import restrict

        _entered = replace(_entered, restrictions=restrict())
