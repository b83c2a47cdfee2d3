"""Finds and ends the processes that a dispatcher started, and removes their files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_POLL_SECONDS = 0.05
_REMOVAL_SECONDS = 2.0


def children_running(folder: Path) -> list[psutil.Process]:
    """Child processes of this process whose command line has the path of a folder, or of something in it."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any(str(folder) in argument for argument in child.cmdline()):
                found.append(child)
    return found


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """All descendant processes of a process; empty if the process is gone."""
    with suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def see_them_end(processes: Iterable[psutil.Process], *, within_seconds: float = 10.0) -> None:
    """Waits until processes are dead, and kills those that live on after `within_seconds`."""
    give_up = time.monotonic() + within_seconds
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < give_up:
        psutil.wait_procs(alive, timeout=_POLL_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; False for a zombie."""
    try:
        # In a container whose first process is no init, orphans are never reaped.
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def remove_folder(folder: Path) -> None:
    """Removes the folder of ended processes; retries for two seconds, as a killed process may still write."""
    give_up = time.monotonic() + _REMOVAL_SECONDS
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < give_up:
        time.sleep(_POLL_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
