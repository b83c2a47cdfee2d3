"""Processes of this machine: Linux lists them in `/proc`, other systems by `ps`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from autofit_workers.process import operating_system

PROC = Path("/proc")
_STATE, _PARENT, _GROUP = 0, 1, 2  # fields of /proc/PID/stat after the command's name
_DEAD = ("Z", "X")
# POSIX's, in its form that Linux and BSD read alike: a heading of none for each column.
_PS = ("/bin/ps", "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "rss=", "-o", "stat=")
_PS_SECONDS = 5.0
_KIB = 1024


class Process(NamedTuple):
    """Living process: its id, its parent's, and that of its process group."""

    number: int
    parent: int
    group: int


def living() -> list[Process]:
    """All living processes that this system lists; empty where `ps` fails, so process groups must do."""
    if operating_system.is_linux():
        return list(_of_proc())
    with suppress(OSError):
        return [each for each, _ in _of_ps("-A")]
    return []


def resident_bytes(process: int) -> int:
    """Resident memory of a process in bytes, libraries included, by `ps`; 0 if it is gone, or `ps` fails."""
    with suppress(OSError):
        return sum(num_bytes for _, num_bytes in _of_ps("-p", str(process)))
    return 0


def has_exited(child: int) -> bool:
    """Whether a child of this process has exited; does not reap it, so that its group's id stays taken."""
    if not hasattr(os, "waitid"):  # macOS, up to Python 3.12
        with suppress(OSError):  # `ps` could not be run: nothing is known, so the child is taken to live
            return not any(_of_ps("-p", str(child)))
        return False
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # other code in this process reaped it
        return True


def _of_proc() -> Iterator[Process]:
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            # The command's name is in parentheses and may hold anything, parentheses too.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[_STATE] not in _DEAD:
                yield Process(int(entry.name), int(fields[_PARENT]), int(fields[_GROUP]))


def _of_ps(*which: str) -> Iterator[tuple[Process, int]]:
    """Yields living processes that `ps` lists, but for its own, with their resident bytes.

    Args:
        which: options that select processes.

    Raises:
        OSError: `ps` cannot be run, or does not answer.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    with subprocess.Popen([*_PS, *which], stdout=subprocess.PIPE, text=True, env=environment) as listing:  # noqa: S603
        try:
            told, _ = listing.communicate(timeout=_PS_SECONDS)
        except subprocess.TimeoutExpired as error:
            listing.kill()
            raise OSError(f"{_PS[0]} does not answer") from error
    for line in told.splitlines():
        number, parent, group, kibibytes, state = line.split(None, 4)
        if not state.startswith(_DEAD) and int(number) != listing.pid:
            yield Process(int(number), int(parent), int(group)), int(kibibytes) * _KIB
