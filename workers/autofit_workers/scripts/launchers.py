"""Replaces launchers such as torchrun: runs one rank in this process, and none of the others.

    torchrun --nproc-per-node 8 train.py      the launcher's own code runs up to where it would start
    accelerate launch … train.py              processes; the file, or the module of -m, runs in their place
    mp.spawn(main, nprocs=8)                  the function is called with the number of the rank
    deepspeed --num_gpus 8 train.py           the script runs with the variables of its launcher
    horovodrun, mpirun                        refused

A script may itself be a launcher, or call one: `axolotl train` calls Accelerate's.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, NoReturn

import torch.multiprocessing

from autofit_workers.scripts.ranks import Ranks
from autofit_workers.scripts.watching import ScriptEnd
from autofit_workers.spec.errors import InapplicableError, UnsupportedError
from autofit_workers.workload.libraries.finders import when_imported

FOLLOWED = (
    "give it to --script without its launcher, and say --nproc 8 for one rank of 8 that torchrun starts"
)
_SHELLS = ("sh", "bash")
_UNBUFFERED = "-u"  # Python's own option, which launchers pass
_SPAWNING = ("spawn", "start_processes")


class _Over:
    """Stand-in for the result of `mp.spawn(join=False)`, whose one rank has run already in this process."""

    def join(self, *_args: Any, **_kwargs: Any) -> bool:
        return True


class Launchers:
    """Replaces every launcher of a script's ranks, such as torchrun, by a run of one rank in this process.

    Args:
        name: name of the script, for messages.
        ranks: record of the ranks, which is told how many a launcher starts.
        refuse: ends the script with an error.
        note: called with a sentence for the user.
        program: name of the script's file or module, and a function that runs it; called where a launcher
            would start Python with it.
    """

    def __init__(
        self,
        name: str,
        ranks: Ranks,
        refuse: Callable[[Exception], NoReturn],
        note: Callable[[str], None],
        program: tuple[str, Callable[[], None]] = ("", lambda: None),
    ) -> None:
        self._name = name
        self._ranks = ranks
        self._refuse = refuse
        self._note = note
        self._program = program
        self._is_on = False
        self._launcher = ""  # the running one
        self._has_run = False  # whether it has started anything

    def runs(self, command: Sequence[str]) -> bool:
        """Runs one of the ranks that a launcher's command starts; returns False if `command` starts none."""
        found = _launcher(command)
        if found is None:
            return False
        self._launcher, words = found
        self._has_run = False
        _LAUNCHERS[self._launcher](self, words)
        return self._has_run

    def launched(
        self,
        words: Sequence[str],
        num_ranks: int,
        num_local: int,
        *,
        is_counted: bool = True,
        **variables: str,
    ) -> None:
        """Runs one of the `num_ranks` ranks that a launcher would start, in this process.

        Args:
            words: Python's arguments: a file, or `-m` and a module, and the arguments after it.
            num_local: processes on each machine.
            is_counted: whether the command gives the number of processes; else the launcher counts the GPUs.
            variables: environment variables that the launcher sets in addition to torchrun's.
        """
        self._has_run = True
        ranks = self._ranks
        ranks.start(num_ranks, num_local, self._launcher)
        if num_ranks == 1:
            how = (
                "on one GPU is one process, and was run in this one: --nproc N is for more"
                if is_counted
                else "is a process for each GPU of the machine, and one alone was predicted: --nproc says "
                "how many there are"
            )
            self._note(f"what {self._launcher} starts {how}")
        os.environ.update({**ranks.variables(), **variables})
        words = [word.replace("${local_rank}", str(ranks.local_rank)) for word in words]
        file, run = self._program
        if words[0] == file or words[:2] == ["-m", file]:
            sys.argv[1:] = words[1 + (words[0] == "-m") :]
            run()
        elif words[0] == "-m":
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Context manager in which a script's launcher, such as `mp.spawn`, runs one rank in this process."""
        package: Any = torch.multiprocessing
        spawning: Any = sys.modules["torch.multiprocessing.spawn"]
        process, name, refuse = package.Process, self._name, self._refuse
        kept = [(owner, each, getattr(owner, each)) for owner in (package, spawning) for each in _SPAWNING]

        class Process(process):  # type: ignore[misc, valid-type]
            """`Process` whose `start` refuses all processes but those of PyTorch, such as a data loader's."""

            def start(self) -> None:
                target = getattr(self, "_target", None)
                if not getattr(target, "__module__", "").startswith("torch."):
                    refuse(
                        UnsupportedError(
                            f"{name} starts processes that train by themselves: start them with "
                            "torch.multiprocessing.spawn or torchrun, whose ranks are followed"
                        )
                    )
                super().start()

        for owner, each, _ in kept:
            setattr(owner, each, self._spawned)
        package.Process = Process
        when_imported("torch.distributed.launcher.api", self._follow_elastic_launch)
        self._is_on = True
        sys.addaudithook(self._audit)
        try:
            yield
        finally:
            self._is_on = False
            package.Process = process
            for owner, each, plain in kept:
                setattr(owner, each, plain)

    def _spawned(
        self,
        fn: Callable[..., None],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        *_args: Any,
        **_kwargs: Any,
    ) -> _Over:
        """Runs one of the ranks that `mp.spawn` starts, in this process."""
        ranks = self._ranks
        if nprocs != ranks.num_local:
            ranks.start(nprocs, nprocs, "mp.spawn")
        fn(ranks.local_rank, *args)
        return _Over()

    def _follow_elastic_launch(self, module: ModuleType) -> None:
        """Replaces `launch_agent`, by which torchrun, Accelerate's launcher and the like start ranks."""
        plain: Callable[..., Any] = vars(module)["launch_agent"]

        def launch_agent(config: Any, entrypoint: Any, args: list[Any], **kwargs: Any) -> Any:
            """Runs one rank in place of the agent, which would start a process for each rank."""
            if not self._is_on:
                return plain(config, entrypoint, args, **kwargs)
            num_local = config.nproc_per_node
            self._launcher = self._launcher or "torchrun"
            if callable(entrypoint):
                self._has_run = True
                self._ranks.start(config.max_nodes * num_local, num_local, self._launcher)
                os.environ.update(self._ranks.variables())
                return {self._ranks.rank: entrypoint(*args)}
            if not PurePath(entrypoint).name.startswith("python"):
                self._refuse(
                    UnsupportedError(f"{self._name} starts {entrypoint} with {self._launcher}: {FOLLOWED}")
                )
            words = args[1:] if args[0] == _UNBUFFERED else args
            self.launched(words, config.max_nodes * num_local, num_local)
            return {}

        vars(module)["launch_agent"] = launch_agent

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on or event not in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
            return
        command = [text for text in map(_text, _words(arguments[1])) if text is not None]
        if _launcher(command) is None:
            return
        variables = {_text(name): _text(value) for name, value in (arguments[-1] or {}).items()}
        os.environ.update({name: value for name, value in variables.items() if name and value is not None})
        if self.runs(command):
            raise ScriptEnd  # the ranks have run here, so nothing is left to start

    def of_torchrun(self, words: list[str]) -> None:
        """Runs one of the ranks that `torchrun` with arguments `words` would start."""
        from torch.distributed import run as torchrun

        launcher: Any = torchrun
        given = launcher.parse_args(words)
        if not given.nproc_per_node.isdecimal():
            self._refuse(
                InapplicableError(
                    f"--nproc-per-node={given.nproc_per_node} asks the machine how many processes there are, "
                    "and a prediction has none: write the number, as in --nproc-per-node=8"
                )
            )
        launcher.run(given)

    def of_accelerate(self, words: list[str]) -> None:
        if words[:1] == ["launch"]:
            self.of_accelerate_launch(words[1:])

    def of_accelerate_launch(self, words: list[str]) -> None:
        """Runs one of the ranks that `accelerate launch` with arguments `words` would start."""
        from accelerate.commands import launch
        from accelerate.commands.config import default_config_file
        from accelerate.utils.launch import prepare_simple_launcher_cmd_env

        def launch_alone(given: Any) -> None:
            command, variables = prepare_simple_launcher_cmd_env(given)
            changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
            self.launched(command[1:], 1, 1, is_counted=is_counted, **changed)

        given = launch.launch_command_parser().parse_args(words)
        has_file = given.config_file is not None or Path(default_config_file).is_file()
        is_counted = given.num_processes is not None or has_file or given.cpu
        module: Any = launch
        plain, module.simple_launcher = module.simple_launcher, launch_alone
        num_local = (given.num_processes or 1) // (given.num_machines or 1)
        if num_local > 1:  # the launcher checks that there are so many GPUs
            self._ranks.num_local = num_local
        try:
            launch.launch_command(given)
        finally:
            module.simple_launcher = plain

    def of_deepspeed(self, words: list[str]) -> None:
        """Runs one of the ranks that `deepspeed` with arguments `words` would start, as of release 0.19."""
        given, rest = _parser_of_deepspeed().parse_known_args(words)
        called = [*given.called]
        # Unknown options before the script would be taken for the script.
        if rest or not called:
            unknown = rest[0] if rest else "no script"
            self._refuse(UnsupportedError(f"{self._name} calls deepspeed with {unknown}: {FOLLOWED}"))
        num_local, num_nodes = max(1, given.num_gpus), max(1, given.num_nodes)
        module = ["-m"] if given.module else []
        self._ranks.start(num_local * num_nodes, num_local, "deepspeed")
        local_rank = [] if given.no_local_rank else [f"--local_rank={self._ranks.local_rank}"]
        self.launched(
            [*module, called[0], *local_rank, *called[1:]],
            num_local * num_nodes,
            num_local,
            is_counted=given.num_gpus > 0 or (given.include or given.i) is not None,
            LOCAL_SIZE=str(num_local),
            CROSS_RANK=str(self._ranks.rank // num_local),
            CROSS_SIZE=str(num_nodes),
        )

    def of_others(self, _words: list[str]) -> None:
        self._refuse(
            UnsupportedError(f"{self._name} starts several processes with {self._launcher}: {FOLLOWED}")
        )


_LAUNCHERS: dict[str, Callable[[Launchers, list[str]], None]] = {
    "torchrun": Launchers.of_torchrun,
    "torch.distributed.run": Launchers.of_torchrun,
    "torch.distributed.launch": Launchers.of_torchrun,
    "accelerate": Launchers.of_accelerate,
    "accelerate.commands.launch": Launchers.of_accelerate_launch,
    "accelerate-launch": Launchers.of_accelerate_launch,
    "deepspeed": Launchers.of_deepspeed,
    "horovodrun": Launchers.of_others,
    "mpirun": Launchers.of_others,
}
_VALUES_OF_DEEPSPEED = (
    "-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--min_elastic_nodes", "--max_elastic_nodes",
    "--master_port", "--master_addr", "--node_rank", "--launcher", "--launcher_args",
    "--enable_each_rank_log", "--autotuning", "--bind_core_list", "--venv_script", "--log_level",
)  # fmt: skip
_SWITCHES_OF_DEEPSPEED = (
    "--module", "--no_python", "--no_local_rank", "--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid",
    "--elastic_training", "--bind_cores_to_rank", "--quiet",
)  # fmt: skip


def _parser_of_deepspeed() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("deepspeed", add_help=False, allow_abbrev=False)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--num_gpus", "--num_accelerators", type=int, default=0)
    for name in _VALUES_OF_DEEPSPEED:
        parser.add_argument(name)
    for name in _SWITCHES_OF_DEEPSPEED:
        parser.add_argument(name, action="store_true")
    parser.add_argument("called", nargs=argparse.REMAINDER)
    return parser


def _words(command: Any) -> list[Any]:
    return command.split() if isinstance(command, str) else list(command or ())


def _text(word: Any) -> str | None:
    return os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else None


def _launcher(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """Launcher that a command calls, by itself or through Python, and the arguments; None without one."""
    if len(command) > 2 and PurePath(command[0]).name in _SHELLS and command[1] == "-c":
        try:
            command = shlex.split(command[2])
        except ValueError:  # comments and documents of a shell may have a single quote
            return None
    for number, word in enumerate(command):
        if PurePath(word).name in _LAUNCHERS:
            return PurePath(word).name, list(command[number + 1 :])
        if not (word.startswith("-") or "=" in word or PurePath(word).name.startswith(("python", "env"))):
            return None
    return None
