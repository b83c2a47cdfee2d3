"""Commands of launchers that start a script as several ranks."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

TORCHRUN = "torchrun"


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Command line of a launcher such as torchrun, with its options for processes, machines and modules.

    Attributes:
        command: words before its options.
        numbers: returns its options for a number of processes on each machine and a number of machines.
        module: its option for a module in place of a file.
    """

    command: tuple[str, ...]
    numbers: Callable[[int, int], tuple[str, ...]]
    module: str = "-m"


def _of_torchrun(num_local: int, num_nodes: int) -> tuple[str, ...]:
    return f"--nproc-per-node={num_local}", f"--nnodes={num_nodes}"


def _of_accelerate(num_local: int, num_nodes: int) -> tuple[str, ...]:
    machines = (
        f"--num_machines={num_nodes}", "--machine_rank=0", "--main_process_ip=127.0.0.1",
        "--main_process_port=0",
    )  # fmt: skip
    return f"--num_processes={num_local * num_nodes}", *(machines if num_nodes > 1 else ())


def _of_deepspeed(num_local: int, num_nodes: int) -> tuple[str, ...]:
    return f"--num_gpus={num_local}", f"--num_nodes={num_nodes}"


_LAUNCHERS = {
    TORCHRUN: _Launcher((TORCHRUN,), _of_torchrun),
    "accelerate": _Launcher(("accelerate", "launch"), _of_accelerate),
    "deepspeed": _Launcher(("deepspeed",), _of_deepspeed, "--module"),
}
LAUNCHERS = tuple(_LAUNCHERS)


def launcher_command(
    text: str | None, num_local: int | None = None, num_nodes: int = 1, *, module: bool = False
) -> tuple[str, ...]:
    """Words of a launcher's command line that come before a script and its arguments.

    Args:
        text: a launcher's name, with its own options if a user gives some; None for torchrun.
        num_local, num_nodes: processes on each machine, and machines; None, with one machine, leaves them to
            the options in `text`.
        module: whether a module is started rather than a file.

    Returns:
        The words; empty if neither a launcher nor a number of processes is given.

    Raises:
        ValueError: there is no such launcher.
    """
    if text is None and num_local is None and num_nodes == 1:
        return ()
    try:
        words = shlex.split(text or TORCHRUN)
    except ValueError as error:
        raise ValueError(f"{text!r} is no command ({error}): close its quotes") from error
    name = words[0] if words else ""
    if name not in _LAUNCHERS:
        raise ValueError(f"{text!r} is none of {', '.join(LAUNCHERS)}, with options of its own behind it")
    launcher = _LAUNCHERS[name]
    own = (
        words[len(launcher.command) :]
        if tuple(words[: len(launcher.command)]) == launcher.command
        else words[1:]
    )
    numbers = () if num_local is None and num_nodes == 1 else launcher.numbers(num_local or 1, num_nodes)
    return (*launcher.command, *own, *numbers, *((launcher.module,) if module else ()))
