"""Whatever a process started, down to the last, whichever group it moved to.

below      by the tree of processes: an orphan stays in it under a process that adopts orphans
marked     by a mark that it inherited in its environment, which finds orphans of a process that is dead
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

MARK = "_AUTOFIT_TRIAL"
_MOST_ROUNDS = 5  # for processes that are forked while others are killed
_PROC = Path("/proc")
_STATE, _PARENT = 0, 1  # fields of /proc/PID/stat after the command's name
_DEAD = ("Z", "X")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PR_SET_PDEATHSIG = 1


def adopt_orphans() -> None:
    """Makes this process the parent of every orphan below it, so that `below` finds them; Linux alone.

    `PR_SET_CHILD_SUBREAPER` of prctl(2); children do not inherit it.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends; Linux alone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):  # no Linux: process groups and marks have to do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def below(process: int) -> list[int]:
    """The living processes below one, whichever group or session they are in; not the process itself."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            # The command's name is in parentheses and may hold anything, parentheses too.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[_STATE] not in _DEAD:
                children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
    found = list(children.get(process, ()))
    for each in found:  # which grows
        found += children.get(each, ())
    return found


def kill_below(process: int) -> None:
    """Kills all processes below one; that of this function's caller is spared."""
    _kill_all(lambda: below(process))


def kill_marked(mark: str) -> None:
    """Kills all processes that inherited a mark, this one excepted; where there is no `/proc`, none."""
    _kill_all(lambda: _marked(mark))


def _kill_all(find: Callable[[], Iterable[int]]) -> None:
    for _ in range(_MOST_ROUNDS):
        found = [pid for pid in find() if pid != os.getpid()]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _marked(mark: str) -> Iterable[int]:
    wanted = f"{MARK}={mark}".encode()
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            is_marked = wanted in (folder / "environ").read_bytes().split(b"\0")
            is_dead = b"\nState:\tZ" in (folder / "status").read_bytes()
            if is_marked and not is_dead:
                yield int(folder.name)
