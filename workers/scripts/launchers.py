"""Launchers: what they start as one process is run here; several are refused before anything starts.

    torchrun --nproc-per-node 1 train.py      the file, or the module of -m, with the variables that the
    accelerate launch train.py                launcher sets for it, in this process
    torchrun --nproc-per-node 8 train.py      refused
    deepspeed, horovodrun, mpirun             likewise

A script may be a launcher itself, or call one: `axolotl train` calls Accelerate's.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, NoReturn

import torch.multiprocessing

from workers.errors import UnsupportedError
from workers.scripts.watching import ScriptEnd

ONE_PROCESS = (
    "call it without its launcher, as `python SCRIPT` on one GPU, where the batch of one process is the "
    "same; for several ranks predict a model with --parallel, as in fsdp:8"
)
# What torchrun tells the only process that it starts.
LAUNCHED = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher starts.

    Attributes:
        words: Python's arguments: a file, or `-m` and a module, and what follows.
        num_processes: over all machines.
        variables: that it sets.
    """

    words: tuple[str, ...]
    num_processes: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Runs it in this process, as Python would."""
        os.environ.update(self.variables)
        if self.words[0] == "-m":
            sys.argv[:] = list(self.words[1:])
            runpy.run_module(self.words[1], run_name="__main__", alter_sys=True)
            return
        sys.argv[:] = list(self.words)
        sys.path.insert(0, str(Path(self.words[0]).resolve().parent))
        runpy.run_path(self.words[0], run_name="__main__")


def _of_torchrun(words: list[str]) -> Launched:
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(words)
    num_nodes = int(str(given.nnodes).rpartition(":")[2])
    per_node = str(given.nproc_per_node)  # `gpu` and `auto` are as many as there are GPUs: one
    num_processes = num_nodes * (int(per_node) if per_node.isdecimal() else 1)
    module = ("-m",) if given.module else ()
    called = (*module, given.training_script, *given.training_script_args)
    return Launched(called, num_processes, {name: os.environ.get(name, LAUNCHED[name]) for name in LAUNCHED})


def _of_accelerate(words: list[str]) -> Launched | None:
    if words[:1] != ["launch"]:
        return None
    return _of_accelerate_launch(words[1:])


def _of_accelerate_launch(words: list[str]) -> Launched:
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    given, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))  # noqa: SLF001
    command, variables = prepare_simple_launcher_cmd_env(given)
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    return Launched(tuple(command[1:]), int(given.num_processes or 1), changed)


def _of_several(_words: list[str]) -> Launched:
    return Launched((), num_processes=2)  # nothing of these starts one alone


_LAUNCHERS: dict[str, Callable[[list[str]], Launched | None]] = {
    "torchrun": _of_torchrun,
    "torch.distributed.run": _of_torchrun,
    "torch.distributed.launch": _of_torchrun,
    "accelerate": _of_accelerate,
    "accelerate.commands.launch": _of_accelerate_launch,
    "accelerate-launch": _of_accelerate_launch,
    "deepspeed": _of_several,
    "horovodrun": _of_several,
    "mpirun": _of_several,
}


_SHELLS = ("sh", "bash")


class Launchers:
    """Whatever starts processes, for a script that is followed in this one.

    Args:
        name: of the script.
        refuse: ends it for a reason.
        note: takes a sentence for the reader of the answer.
    """

    def __init__(
        self, name: str, refuse: Callable[[Exception], NoReturn], note: Callable[[str], None]
    ) -> None:
        self._name = name
        self._refuse = refuse
        self._note = note
        self._is_on = False

    def runs(self, command: list[str]) -> bool:
        """Runs what a launcher's command starts; False where it is no launcher's.

        Ends the script where that is several processes.
        """
        found = _launcher(command)
        if found is None:
            return False
        name, words = found
        launched = _LAUNCHERS[name](words)
        if launched is None:
            return False
        if launched.num_processes > 1:
            self._refuse(
                UnsupportedError(f"{self._name} starts several processes with {name}: {ONE_PROCESS}")
            )
        self._note(f"what {name} starts is one process, and was run in this one")
        launched.run()
        return True

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Runs here what the script starts with a launcher; ends the script where it starts several."""
        package: Any = torch.multiprocessing
        spawn, process = package.spawn, package.Process
        name, refuse = self._name, self._refuse

        def spawned(
            fn: Callable[..., None], args: tuple[Any, ...] = (), nprocs: int = 1, *_args: Any, **_kwargs: Any
        ) -> None:
            if nprocs > 1:
                refuse(UnsupportedError(f"{name} starts {nprocs} processes with mp.spawn: {ONE_PROCESS}"))
            fn(0, *args)

        class Process(process):  # type: ignore[misc, valid-type]
            """A process that a script starts itself, rather than its data loader."""

            def start(self) -> None:
                target = getattr(self, "_target", None)
                if not getattr(target, "__module__", "").startswith("torch."):
                    refuse(
                        UnsupportedError(f"{name} starts processes that train by themselves: {ONE_PROCESS}")
                    )
                super().start()

        package.spawn, package.Process = spawned, Process
        self._is_on = True
        sys.addaudithook(self._audit)
        try:
            yield
        finally:
            self._is_on = False
            package.spawn, package.Process = spawn, process

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on or event not in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
            return
        command = [text for text in map(_text, _words(arguments[1])) if text is not None]
        if _launcher(command) is None:
            return
        variables = {_text(name): _text(value) for name, value in (arguments[-1] or {}).items()}
        os.environ.update({name: value for name, value in variables.items() if name and value is not None})
        if self.runs(command):
            raise ScriptEnd  # with what it started


def _words(command: Any) -> list[Any]:
    return command.split() if isinstance(command, str) else list(command or ())


def _text(word: Any) -> str | None:
    return os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else None


def _launcher(command: list[str]) -> tuple[str, list[str]] | None:
    """The launcher that a command calls, by itself or through Python, and its arguments."""
    if len(command) > 2 and PurePath(command[0]).name in _SHELLS and command[1] == "-c":
        try:
            command = shlex.split(command[2])
        except ValueError:  # a shell's comments and documents may have quotes of which there is one
            return None
    for number, word in enumerate(command):
        if PurePath(word).name in _LAUNCHERS:
            return PurePath(word).name, command[number + 1 :]
        if not (word.startswith("-") or "=" in word or PurePath(word).name.startswith(("python", "env"))):
            return None
    return None
