"""Launchers: of several processes they are refused before anything starts, of one it is run here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NoReturn

import torch.multiprocessing

from workers.errors import UnsupportedError

_PROGRAMS = ("torchrun", "deepspeed", "horovodrun", "mpirun")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
ONE_PROCESS = (
    "call it without its launcher, as `python SCRIPT` on one GPU, where the batch of one process is the "
    "same; for several ranks predict a model with --parallel ddp:N"
)


@contextmanager
def refused(name: str, refuse: Callable[[Exception], NoReturn]) -> Iterator[None]:
    """Ends the script where it starts several processes.

    Args:
        name: of the script.
        refuse: ends it for a reason.
    """
    package: Any = torch.multiprocessing
    spawn, process = package.spawn, package.Process
    is_on = True

    def spawned(
        fn: Callable[..., None], args: tuple[Any, ...] = (), nprocs: int = 1, *_args: Any, **_kwargs: Any
    ) -> None:
        if nprocs > 1:
            refuse(UnsupportedError(f"{name} starts {nprocs} processes with mp.spawn: {ONE_PROCESS}"))
        fn(0, *args)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_on or event not in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
            return
        launcher = _launcher([arguments[0], *_words(arguments[1])])
        if launcher is not None:
            refuse(UnsupportedError(f"{name} starts other processes with {launcher}: {ONE_PROCESS}"))

    class Process(process):  # type: ignore[misc, valid-type]
        """A process that a script starts itself, rather than its data loader."""

        def start(self) -> None:
            target = getattr(self, "_target", None)
            if not getattr(target, "__module__", "").startswith("torch."):
                refuse(UnsupportedError(f"{name} starts processes that train by themselves: {ONE_PROCESS}"))
            super().start()

    package.spawn, package.Process = spawned, Process
    sys.addaudithook(audit)
    try:
        yield
    finally:
        is_on = False
        package.spawn, package.Process = spawn, process


def _words(command: Any) -> list[Any]:
    return command.split() if isinstance(command, str) else list(command or ())


def _launcher(words: list[Any]) -> str | None:
    """The launcher in a command; None where it calls none."""
    texts = [os.fsdecode(word) for word in words if isinstance(word, str | bytes | os.PathLike)]
    names = [PurePath(text).name for text in texts]
    for name in (*_PROGRAMS, *_MODULES):
        if name in names or name in texts:
            return name
    return "accelerate launch" if "accelerate" in names and "launch" in texts else None
