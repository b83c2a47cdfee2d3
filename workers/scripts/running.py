"""Calls a training script as Python would, until its watch ends it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from workers.errors import InvalidTrialError, WorkerError
from workers.protocol import WorkloadRef
from workers.scripts.files import KeptFiles
from workers.scripts.reference import read_script
from workers.scripts.watching import ScriptEnd, StepWatch

# So long a script may take to unwind once it was ended; one that goes on is left behind.
_GRACE_SECONDS = 3.0
_LAST_BYTES = 2048


class ScriptError(WorkerError):
    """A script that ended itself before there was anything to learn."""

    kind = "user"


def run_script(
    ref: WorkloadRef,
    batch_size: int,
    watch: StepWatch,
    *,
    saves: bool,
    give_up: Callable[[], None],
) -> None:
    """Runs a script in this process until its watch ends it, or it ends itself.

    For a process that does nothing else: what a script changes in it stays changed.

    Args:
        saves: whether what the script saves is serialized, as far as to nowhere.
        give_up: called, in a thread, where the script neither ends nor unwinds once it was ended.

    Raises:
        ScriptError: it exited with an error.
        InvalidTrialError: it ended without an optimizer step.
        Exception: whatever it raises itself.
    """
    source = read_script(ref)
    assert ref.script is not None
    if ref.script.batch_variable is not None:
        os.environ[ref.script.batch_variable] = str(batch_size)
    if Path(ref.script.folder).is_dir():
        os.chdir(ref.script.folder)
    sys.argv[:] = [ref.target, *ref.script.arguments_at(batch_size)]
    sys.path.insert(0, str(Path(ref.target).parent))  # as Python does for what it is called with
    main = ModuleType("__main__")
    vars(main).update(__file__=ref.target, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    timer = threading.Timer(_GRACE_SECONDS, give_up)
    timer.daemon = True
    watch.on_end = timer.start
    with KeptFiles(str(Path(ref.target).parent), str(Path.cwd()), saves=saves):
        try:
            exec(compile(source, ref.target, "exec"), vars(main))  # noqa: S102 - what it is for
        except ScriptEnd:
            pass
        except SystemExit as error:
            if error.code not in (None, 0) and not watch.has_ended:
                raise ScriptError(_exit_message(ref.name, error.code, watch.num_steps)) from None
        finally:
            timer.cancel()
    if watch.refusal is not None:
        raise watch.refusal
    if watch.num_steps == 0:
        raise InvalidTrialError(
            f"{ref.name} ended without an optimizer step: let it train with a torch.optim.Optimizer, on a "
            f"data set of at least {batch_size} samples"
        )


def _exit_message(name: str, code: object, num_steps: int) -> str:
    said = code if isinstance(code, str) else _last_printed_line()
    told = f": {said}" if said else ""
    how = "an error" if isinstance(code, str) else f"code {code}"
    return f"{name} exited with {how} after {num_steps} optimizer steps{told}"


def _last_printed_line() -> str:
    """The last line of this process's log, where its output goes to one."""
    sys.stderr.flush()
    try:
        size = os.fstat(2).st_size
        text = os.pread(2, _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")
    except OSError:  # a terminal or a pipe
        return ""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
