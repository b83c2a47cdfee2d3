"""Runs a training script as Python would, until a `StepWatch` ends it."""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from autofit_workers.process.boundary.entering import entered
from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.scripts.batches.constants import with_constant
from autofit_workers.scripts.batches.finders import leave_out_searches
from autofit_workers.scripts.clock import Clock
from autofit_workers.scripts.files import KeptFiles
from autofit_workers.scripts.guard.network import Network
from autofit_workers.scripts.guard.processes import Processes
from autofit_workers.scripts.launchers import Launchers
from autofit_workers.scripts.loop_code import LoopCode
from autofit_workers.scripts.printed import Printed
from autofit_workers.scripts.ranks import Ranks
from autofit_workers.scripts.terminal import terminal_as_input
from autofit_workers.scripts.trackers import TrackerFinder, publishing_finder
from autofit_workers.scripts.watching import ScriptEnd, StepWatch
from autofit_workers.spec.errors import InvalidTrialError, WorkerError, in_short, text_of
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.workloads.scripts import read_script

_ARGPARSE_CODE = 2  # `ArgumentParser.error` prints "PROG: error: MESSAGE" and exits with it
_ARGUMENTS = ". Give the script its arguments with --script-arg, one each: --script-arg --NAME=VALUE"


class ScriptError(WorkerError):
    """A script exited with an error before enough of its steps were seen."""

    kind = "user"


def run_script(
    ref: WorkloadRef,
    batch_size: int,
    watch: StepWatch,
    *,
    saves: bool,
    give_up: Callable[[], None],
    ranks: Ranks | None = None,
    permissions: Permissions | None = None,
) -> None:
    """Runs a script in this process until a `StepWatch` has seen enough steps, or the script ends itself.

    The process must do nothing else: changes that the script makes in it stay, and so do the guards
    against other changes, for the script's exit handlers and threads.

    Args:
        saves: whether saved objects are written to a temporary folder; else they are kept as
            objects.
        give_up: called in a thread if the script neither ends nor unwinds once it was ended.
        ranks: ranks of the script; None if it may start one process only.
        permissions: permissions of a predicted script; None for a measured one, which may start
            processes and use the network.

    Raises:
        ScriptError: the script exited with an error before enough steps were seen.
        InvalidTrialError: the script ended without a step.
        Exception: any exception that the script raises before enough steps were seen.
    """
    source = read_script(ref)
    assert ref.script is not None
    if ref.script.batch_variable is not None and not ref.script.keeps_batch:
        os.environ[ref.script.batch_variable] = str(batch_size)
    main = _main_module(ref, batch_size)
    printed = Printed()
    leave_out_searches(watch.notes.append)
    clock = Clock(watch, give_up)
    loop_code = LoopCode(watch.loops, str(Path(ref.target).parent))
    loop_code.add_to(main)
    code = loop_code.compiled(_parsed(ref, source, batch_size), ref.target)
    launchers = Launchers(
        ref.name,
        ranks or Ranks(ref.name, watch.refuse),
        watch.refuse,
        watch.notes.append,
        program=(ref.script.module or ref.target, lambda: exec(code, vars(main))),  # noqa: S102
    )
    files = _kept_files(ref, watch, saves=saves)
    with (
        launchers.followed(),
        _without_trackers(ref.script.keeps_trackers),
        loop_code.followed(),
        terminal_as_input(),
        printed.remembered(),
    ):
        _guard(files, permissions)  # after the launchers, which run in this process what they would start
        try:
            if not launchers.runs([*ref.script.launcher, ref.script.module or ref.target, *sys.argv[1:]]):
                exec(code, vars(main))  # noqa: S102 - what it is for
            watch.is_to_end = not watch.has_ended
        except ScriptEnd:
            pass
        except SystemExit as error:
            if error.code not in (None, 0) and not watch.has_ended:
                failure = ScriptError(_exit_message(ref.name, error.code, watch.num_steps, printed))
                _accept(watch, failure)
            watch.is_to_end = not watch.has_ended and error.code in (None, 0)
        except Exception as error:  # noqa: BLE001 - it is the script's own
            if not watch.has_ended:
                _accept(watch, error)
        finally:
            clock.cancel()
    if watch.refusal is not None:
        raise watch.refusal
    if watch.num_seen == 0:
        last = printed.last_line()
        said = f", and last said: {last}" if last else ""
        raise InvalidTrialError(
            f"{ref.name} ended without a step{said}: let it train or run a model on the GPU, on a data set "
            f"of at least {batch_size} samples"
        )


def _kept_files(ref: WorkloadRef, watch: StepWatch, *, saves: bool) -> KeptFiles:
    files = KeptFiles(
        str(Path(ref.target).parent),
        str(Path.cwd()),
        saves=saves,
        saving=watch.saving,
        is_inside=entered().is_inside,
    )
    files.begin()
    return files


def _guard(files: KeptFiles, permissions: Permissions | None) -> None:
    """Guards processes and network against a script that namespaces do not isolate; never undone."""
    if entered().is_inside:
        return
    if permissions is not None:  # this process exits without removing temporary files
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(dir=files.folder)
    Processes(allowed=permissions is None or permissions.subprocesses, started=files.notes.started).begin()
    if permissions is not None and not permissions.network:
        Network().begin()


def _main_module(ref: WorkloadRef, batch_size: int) -> ModuleType:
    """Main module that a script runs in, with its folder and arguments set, as Python would."""
    script = ref.script
    assert script is not None
    if Path(script.folder).is_dir():
        os.chdir(script.folder)
    sys.argv[:] = [ref.target, *script.arguments_at(batch_size)]
    sys.path.insert(0, str(Path.cwd() if script.module else Path(ref.target).parent))
    main = ModuleType("__main__")
    vars(main).update(__file__=ref.target, __builtins__=__builtins__)
    if script.module:
        is_package = Path(ref.target).stem == "__main__" and not script.module.endswith("__main__")
        vars(main).update(__package__=script.module if is_package else script.module.rpartition(".")[0])
    sys.modules["__main__"] = main
    return main


def _parsed(ref: WorkloadRef, source: bytes, batch_size: int) -> ast.Module:
    assert ref.script is not None
    name = ref.script.batch_name
    if name is None or ref.script.keeps_batch:
        return ast.parse(source, ref.target)
    return with_constant(source, ref.target, name, batch_size)


@contextmanager
def _without_trackers(keeps: bool) -> Iterator[None]:
    if keeps:
        yield
        return
    finders = [TrackerFinder(), publishing_finder()]
    sys.meta_path[:0] = finders
    try:
        yield
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)


def _accept(watch: StepWatch, error: Exception) -> None:
    """Turns a script's error into a note for the user if enough steps were seen before; else raises it."""
    if not watch.has_enough:
        raise error
    if isinstance(error, StopIteration) and watch.loops is not None:
        return  # an exception of a loader that was ended
    said = f"the script then raised {in_short(error)}"
    watch.notes.append(f"from {watch.kind.counted(watch.num_steps)}; {said}")


def _exit_message(name: str, code: object, num_steps: int, printed: Printed) -> str:
    said = text_of(code) if isinstance(code, str) else printed.last_line()
    told = f": {said}" if said else ""
    how = "an error" if isinstance(code, str) else f"code {text_of(code)}"
    given = _ARGUMENTS if code == _ARGPARSE_CODE and ": error: " in said else ""
    return f"{name} exited with {how} after {num_steps} optimizer steps{told}{given}"
