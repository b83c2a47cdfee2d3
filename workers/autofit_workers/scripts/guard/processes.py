"""Restricts the processes that a predicted script may start where namespaces do not isolate it.

    commands             start if they only read information; others are refused by name
    pools of processes   become pools of threads, and managers' objects stay in this process
    fork, exec, Process  are refused
    signals              reach this process and those below it

If the script may start any process, starts are only noted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any

from autofit_workers.process.descendants import below
from autofit_workers.scripts.guard.auditing import Audit
from autofit_workers.scripts.guard.queries import is_query, is_query_of_shell
from autofit_workers.scripts.guard.table import Rule
from autofit_workers.scripts.replacing import Replacements

# Process of Python's own, which removes shared memory once no process uses it.
_TRACKER = re.compile(r"from multiprocess(ing)?\.resource_tracker import main;main\(\d+\)")
_PACKAGES = ("multiprocessing", "multiprocess")
_VARIABLES = {
    "GIT_OPTIONAL_LOCKS": "0",  # `git status` would write the index
    "JOBLIB_MULTIPROCESSING": "0",  # joblib then runs its jobs one after the other
}
_MOST_SHOWN = 80


class Processes:
    """Allows or refuses every process that a script starts through Python.

    Args:
        allowed: whether the script may start any process.
        started: called before a process is started.
    """

    def __init__(self, *, allowed: bool, started: Callable[[], None]) -> None:
        self._allowed = allowed
        self._started = started
        self._replaced = Replacements()

    def begin(self) -> None:
        """Starts to check new processes and signals; pools run in threads, unless any process is allowed."""
        self._audit = Audit(
            {
                Rule.STARTED: self._start,
                Rule.SHELL: self._start_shell,
                Rule.FORKED: self._fork,
                Rule.SIGNALLED: self._signal,
            }
        )
        self._replaced.callback(setattr, self._audit, "is_on", False)
        # `multiprocessing` and joblib start processes by it, without an audit event.
        self._replaced.when_imported("_posixsubprocess", self._follow_posix)
        if self._allowed:
            return
        os.environ.update(_VARIABLES)
        for package in _PACKAGES:
            self._replaced.when_imported(f"{package}.pool", self._pool_threads)
            self._replaced.when_imported(f"{package}.managers", self._manage_here)
        self._replaced.when_imported("concurrent.futures.process", self._execute_in_threads)

    def end(self) -> None:
        """Restores the functions that start processes, for a process that continues after the script."""
        self._replaced.take_back()

    def _follow_posix(self, module: ModuleType) -> None:
        fork_exec = vars(module)["fork_exec"]

        def followed(args: Sequence[Any], *others: Any) -> Any:
            self._start("fork_exec", args, None)
            return fork_exec(args, *others)

        self._replaced.put(module, "fork_exec", followed)

    def _pool_threads(self, module: ModuleType) -> None:
        """Makes `Pool` of a module such as multiprocessing.pool run in threads of this process."""
        pool, threads = vars(module)["Pool"], vars(module)["ThreadPool"]
        initialize = pool.__init__

        def initialized(
            made: Any,
            processes: int | None = None,
            initializer: Any = None,
            initargs: Any = (),
            *others: Any,
            **of_processes: Any,
        ) -> None:
            if type(made) is pool:
                made.__class__ = threads
                threads.__init__(made, processes, initializer, initargs)
            else:  # a pool of threads, or the script's own subclass
                initialize(made, processes, initializer, initargs, *others, **of_processes)

        self._replaced.put(pool, "__init__", initialized)

    def _manage_here(self, module: ModuleType) -> None:
        started = vars(module)["State"].STARTED

        def start(manager: Any, initializer: Any = None, initargs: Any = ()) -> None:
            if initializer is not None:
                initializer(*initargs)
            for name, (make, *_) in manager._registry.items():  # noqa: SLF001 - no public name
                setattr(manager, name, make)
            manager._state.value = started  # noqa: SLF001 - likewise
            manager.shutdown = lambda: None

        self._replaced.put(vars(module)["BaseManager"], "start", start)

    def _execute_in_threads(self, module: ModuleType) -> None:
        """Makes `ProcessPoolExecutor` run in threads of this process."""
        executor = vars(module)["ProcessPoolExecutor"]
        initialize = executor.__init__

        def initialized(
            made: Any,
            max_workers: int | None = None,
            mp_context: Any = None,
            initializer: Any = None,
            initargs: Any = (),
            **of_processes: Any,
        ) -> None:
            if type(made) is executor:
                made.__class__ = ThreadPoolExecutor
                ThreadPoolExecutor.__init__(made, max_workers, "", initializer, initargs)
            else:
                initialize(made, max_workers, mp_context, initializer, initargs, **of_processes)

        self._replaced.put(executor, "__init__", initialized)

    def _start(self, _event: str, command: Any, program: Any) -> None:
        words = _words(command)
        if program is not None and not self._is_named(words, program):
            words = [os.fsdecode(program), *words]  # the program is started under another name
        self._judge(words, partial(is_query, words))

    @staticmethod
    def _is_named(words: Sequence[str], program: Any) -> bool:
        return bool(words) and os.path.basename(words[0]) == os.path.basename(os.fsdecode(program))  # noqa: PTH119

    def _start_shell(self, _event: str, line: Any, _beside: Any) -> None:
        self._judge([os.fsdecode(line)], partial(is_query_of_shell, os.fsdecode(line)))

    def _fork(self, event: str, command: Any, _beside: Any) -> None:
        self._judge([event, *_words(command)], lambda: False)

    def _signal(self, event: str, process: Any, number: Any) -> None:
        if self._allowed or not number or process in (0, os.getpid(), *below(os.getpid())):
            return  # this process is the leader of its group too
        raise PermissionError(
            f"autofit does not let the script send a signal to process {process} ({event}), which is none of "
            "its own, while it tries the script"
        )

    def _judge(self, words: Sequence[str], is_query: Callable[[], bool]) -> None:
        if self._allowed:
            self._started()
        elif not (is_query() or (words and _TRACKER.fullmatch(words[-1]))):
            text = " ".join(words)
            shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
            raise PermissionError(
                f"autofit does not let the script start another process ({shown}), as nothing would keep it "
                "from changing something here: allow that with --allow-subprocesses, or leave it out while "
                "the script is tried"
            )


def _words(command: Any) -> list[str]:
    if isinstance(command, str | bytes | os.PathLike):
        return [os.fsdecode(command)]
    return [os.fsdecode(word) for word in command or ()]
