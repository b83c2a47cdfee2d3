"""Requests over a child process's pipe, and exceptions as errors for users."""

from __future__ import annotations

import dataclasses
import os
import queue
import signal
import threading
import traceback
from pathlib import Path

from autofit_workers.process.boundary.entering import entered
from autofit_workers.process.descendants import MARK, adopt_orphans, kill_below, kill_marked
from autofit_workers.process.sources import is_installed
from autofit_workers.spec.errors import InvalidTrialError, WorkerError, in_short, text_of
from autofit_workers.spec.protocol import TrialError
from autofit_workers.spec.shown import brief_error
from autofit_workers.spec.workloads.references import WorkloadError

_WORKERS = f"{Path(__file__).parents[1]}/"
_MODELS = f"{_WORKERS}workload/models/"
_END_CHARACTERS = 20_000  # kept at either end of a message or a traceback that is cut
_DENIED = "ermission denied"
_RESTRICTED = (
    ": this machine lets autofit have no namespaces, so code that it predicts may write to the temporary "
    "folder and the caches alone"
)
_OF_DEVICES = "FakeTensorDeviceMismatchError"  # of torch._subclasses.fake_tensor
_OF_CHECKPOINTS = "CheckpointError"  # of torch.utils.checkpoint
_CHECKPOINTS_DIFFER = (
    " Activation checkpointing runs a block again in backward, and what differs from its first run stops "
    "PyTorch on a GPU too: let both runs make the same tensors, or leave the checkpointing out"
)


def received(requests_fd: int, answers_fd: int) -> queue.SimpleQueue[str]:
    """Returns a queue that fills with the lines of the supervising process; an empty line is the last.

    From now on, orphaned descendants of this process become its children (`adopt_orphans`), so that its
    supervisor finds them. Processes that it starts do not inherit the two pipes.

    Args:
        requests_fd: file descriptor of the pipe from which the lines are read.
        answers_fd: file descriptor of the pipe for the answers.
    """
    adopt_orphans()
    for fd in (requests_fd, answers_fd):
        os.set_inheritable(fd, False)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests_fd, lines), daemon=True).start()
    return lines


def _receive(requests_fd: int, lines: queue.SimpleQueue[str]) -> None:
    """Puts the supervisor's lines into a queue; kills the process group once the supervisor is gone.

    The pipe is read all the time, so that the supervisor's end is seen during a long operator too:
    PyTorch's operators run without the interpreter's lock.
    """
    with os.fdopen(requests_fd, encoding="utf-8") as pipe:
        for line in pipe:
            lines.put(line.strip())
            if not line.strip():
                return
    kill_below(os.getpid())
    kill_marked(os.environ.get(MARK, ""))
    os.killpg(os.getpgrp(), signal.SIGKILL)


def told(error: BaseException) -> TrialError:
    """Returns an exception of a trial as the `TrialError` that is shown to the user.

    An error that autofit raised keeps its message. Any other is taken for the workload's own, see
    `user_error`.
    """
    if isinstance(error, WorkerError):
        return TrialError(kind=error.kind, message=_cut(str(error)))
    if isinstance(error, WorkloadError | InvalidTrialError):  # their messages say what is wrong
        message = _cut(str(error))
        if error.__cause__ is None:
            return TrialError(kind="user", message=message)
        return dataclasses.replace(user_error(error.__cause__), message=message)
    return user_error(error)


def user_error(error: BaseException) -> TrialError:
    """Returns an exception of the user's code as a `TrialError`: one sentence, and the traceback.

    The sentence names the line of the user's file, and the next step if one is known.
    """
    message = brief_error(error)
    try:
        message += _place(error)
        frames = _user_traceback(error)
    except Exception as failure:  # noqa: BLE001 - what the user's exception holds may be anything
        frames = f"(the traceback cannot be made: {in_short(failure)})"
    message += _next_step(error)
    if entered().restrictions and (isinstance(error, PermissionError) or _DENIED in message):
        message += _RESTRICTED
    return TrialError(kind="user", message=_cut(message), traceback=_cut(frames))


def _next_step(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = text_of(error.name).partition(".")[0]
        return f": install {package} where trials run, or add its folder to PYTHONPATH"
    if type(error).__name__ == _OF_DEVICES:
        return ": PyTorch stops here on a GPU too; bring both to one device"
    if type(error).__name__ == _OF_CHECKPOINTS:
        return _CHECKPOINTS_DIFFER
    return ""


def _place(error: BaseException) -> str:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f" ({frame.filename}:{frame.lineno}, in {frame.name})"
    return ""


def _cut(text: str) -> str:
    """Returns the text, with its middle cut out if it is longer than 40,000 characters."""
    if len(text) <= 2 * _END_CHARACTERS:
        return text
    return f"{text[:_END_CHARACTERS]}\n…\n{text[-_END_CHARACTERS:]}"


def _is_users(path: str) -> bool:
    return path.startswith(_MODELS) or not (path.startswith((_WORKERS, "<")) or is_installed(path))


def _user_traceback(error: BaseException) -> str:
    """Traceback text without autofit's and PyTorch's frames, unless it has no others."""
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
