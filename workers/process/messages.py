"""What crosses the pipes of a child process, and whose fault an error is: the user's, or ours."""

from __future__ import annotations

import dataclasses
import os
import queue
import signal
import threading
import traceback
from pathlib import Path

from workers.errors import InvalidTrialError, WorkerError
from workers.process.descendants import MARK, adopt_orphans, kill_below, kill_marked
from workers.process.sources import is_installed
from workers.protocol import TrialError
from workers.shown import brief
from workers.workload.workload import WorkloadError

_WORKERS = f"{Path(__file__).parents[1]}/"
_MODELS = f"{_WORKERS}workload/models/"


def received(requests_fd: int, answers_fd: int) -> queue.SimpleQueue[str]:
    """The lines that the supervisor sends, as they come; an empty one is the last.

    From now on the process adopts the orphans below it: its supervisor finds them by that.
    """
    adopt_orphans()
    for fd in (requests_fd, answers_fd):
        os.set_inheritable(fd, False)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests_fd, lines), daemon=True).start()
    return lines


def _receive(requests_fd: int, lines: queue.SimpleQueue[str]) -> None:
    """Passes the lines on; a supervisor that is gone takes the whole process group with it.

    The pipe is read all the time, so that this is seen during a long operator too: PyTorch's
    operators run without the interpreter's lock.
    """
    with os.fdopen(requests_fd, encoding="utf-8") as pipe:
        for line in pipe:
            lines.put(line.strip())
            if not line.strip():
                return
    kill_below(os.getpid())
    kill_marked(os.environ.get(MARK, ""))
    os.killpg(0, signal.SIGKILL)


def told(error: BaseException) -> TrialError:
    """What an exception says to the user of a workload."""
    if isinstance(error, WorkerError):
        return TrialError(kind=error.kind, message=str(error))
    if isinstance(error, WorkloadError | InvalidTrialError):  # these say in words what is wrong
        if error.__cause__ is None:
            return TrialError(kind="user", message=str(error))
        return dataclasses.replace(user_error(error.__cause__), message=str(error))
    return user_error(error)


def user_error(error: BaseException) -> TrialError:
    """Tells a workload's exception in one sentence, with the line of the user's own file."""
    name, text = type(error).__name__, str(error).strip()
    message = f"{name}: {brief(text.splitlines()[0])}" if text else name
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            message += f" ({frame.filename}:{frame.lineno}, in {frame.name})"
            break
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        message += f": install {package} where trials run, or add its folder to PYTHONPATH"
    return TrialError(kind="user", message=message, traceback=_user_traceback(error))


def _is_users(path: str) -> bool:
    return path.startswith(_MODELS) or not (path.startswith((_WORKERS, "<")) or is_installed(path))


def _user_traceback(error: BaseException) -> str:
    """The traceback without our frames and PyTorch's, unless it has no others."""
    told = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = told
    while each is not None:
        kept = [frame for frame in each.stack if _is_shown(frame.filename)]
        each.stack = traceback.StackSummary.from_list(kept or each.stack)
        each = each.__cause__ or each.__context__
    return "".join(told.format())


def _is_shown(path: str) -> bool:
    if path.startswith(_MODELS):
        return True
    return not path.startswith((_WORKERS, "<")) and "/site-packages/torch/" not in path
