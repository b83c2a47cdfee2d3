"""Lets PyTorch's profiler, which follows one thread, see every free of a rank that uses gloo.

A collective runs in a thread of its process group. That thread takes part in the profile while the collective
runs (`AsyncWork::execute` of c10d's ProcessGroupGloo.cpp), so that gloo's own copies are seen; then it wakes
whoever waits, and only after that lets go of what was exchanged. What nobody else has by then is freed where
the profiler does not see it. And a group has two such threads, whose copies come and go side by side.
"""

from __future__ import annotations

import functools
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed
from torch.distributed import ProcessGroupGloo

_THREAD = "pt_gloo_runloop"  # the name of those threads
_TASKS = Path("/proc/self/task")
_PAUSE_SECONDS = 1e-4


class OneThread(ProcessGroupGloo):
    """A group of gloo's with one thread, whose collectives run one after the other."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        options: Any = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_default_device()]
        options._threads, options._timeout = 1, timeout
        super().__init__(store, rank, size, options)


def install() -> None:
    """Patches this process for good: waiting for a collective also waits until gloo's threads sleep."""
    c10d: Any = distributed.distributed_c10d
    c10d.ProcessGroupGloo = OneThread
    from torch.distributed import _functional_collectives

    for owner, name in ((c10d.Work, "wait"), (_functional_collectives, "wait_tensor")):
        setattr(owner, name, _settling(getattr(owner, name)))


def _settling(wait: Any) -> Any:
    def waited(*args: Any, **kwargs: Any) -> Any:
        result = wait(*args, **kwargs)
        for task in _threads():
            while _is_running(task):
                time.sleep(_PAUSE_SECONDS)
        return result

    return waited


def _threads() -> list[Path]:
    return _threads_among(tuple(_TASKS.iterdir()))


@functools.lru_cache(maxsize=1)  # reading all names takes longer than most collectives
def _threads_among(tasks: tuple[Path, ...]) -> list[Path]:
    named = [(task, task / "comm") for task in tasks]
    return [task for task, name in named if name.exists() and name.read_text().strip() == _THREAD]


def _is_running(task: Path) -> bool:
    """Whether a thread is running, not asleep until the next collective."""
    state = (task / "stat").read_text().rpartition(") ")[2][0]
    return state != "S"
