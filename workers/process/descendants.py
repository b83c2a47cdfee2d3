"""Whatever a trial's process started, found by a mark in its environment, whichever group it moved to."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "_AUTOFIT_TRIAL"
_MOST_ROUNDS = 5  # for processes that are forked while others are killed


def kill_marked(mark: str) -> None:
    """Kills all processes that inherited a mark, this one excepted; where there is no `/proc`, none."""
    for _ in range(_MOST_ROUNDS):
        found = list(_marked(mark))
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            is_marked = wanted in (folder / "environ").read_bytes().split(b"\0")
            is_dead = b"\nState:\tZ" in (folder / "status").read_bytes()
            if is_marked and not is_dead and int(folder.name) != os.getpid():
                yield int(folder.name)
