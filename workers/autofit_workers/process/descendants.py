"""Finds and kills the descendants of a process, whichever process group they are in.

below      by the tree of processes: an orphan stays in it below a process that adopts orphans
marked     by a mark inherited in the environment, which finds orphans of a dead process
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from autofit_workers.process import operating_system
from autofit_workers.process.process_table import PROC, Process, living

MARK = "_AUTOFIT_TRIAL"
# Allows for processes that are forked while others are killed, and for slow deaths.
_MOST_ROUNDS, _ROUND_SECONDS = 100, 0.01
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PR_SET_PDEATHSIG = 1


def adopt_orphans() -> None:
    """Makes this process the parent of its orphaned descendants, so that `below` finds them; on Linux alone.

    `PR_SET_CHILD_SUBREAPER` of prctl(2); children do not inherit it.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends; on Linux alone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if operating_system.is_linux():  # elsewhere, process groups and parents must do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def below(process: int) -> list[int]:
    """Ids of a process's living descendants, in any group or session."""
    return [each.number for each in _below(process)]


def of_trial(leader: int) -> list[int]:
    """Ids of the living processes of a trial, which is one measured or predicted run.

    These are the process group with the id `leader`, and all descendants of its leader.
    """
    processes = living()
    return [each.number for each in processes if each.group == leader] + [
        each.number for each in _below(leader, processes) if each.group != leader
    ]


def _below(process: int, among: Sequence[Process] | None = None) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for each in living() if among is None else among:
        children.setdefault(each.parent, []).append(each)
    found = list(children.get(process, ()))
    for each in found:  # the list grows
        found += children.get(each.number, ())
    return found


def kill_below(process: int, *, spared_group: int | None = None) -> None:
    """Kills all descendants of a process, except the calling process and those of `spared_group`."""
    _kill_all(lambda: [each.number for each in _below(process) if each.group != spared_group])


def kill_marked(mark: str) -> None:
    """Kills all processes with the text `mark` in their environment but this one; on Linux alone."""
    _kill_all(lambda: _marked(mark))


def _kill_all(find: Callable[[], Iterable[int]]) -> None:
    """Kills the processes whose ids `find` returns, until it finds none, in up to 100 rounds."""
    for _ in range(_MOST_ROUNDS):
        found = [pid for pid in find() if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_SECONDS)


def _marked(mark: str) -> Iterable[int]:
    wanted = f"{MARK}={mark}".encode()
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            is_marked = wanted in (folder / "environ").read_bytes().split(b"\0")
            is_dead = b"\nState:\tZ" in (folder / "status").read_bytes()
            if is_marked and not is_dead:
                yield int(folder.name)
