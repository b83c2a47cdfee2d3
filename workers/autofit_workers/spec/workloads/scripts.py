"""Training scripts as workloads: their call, and the reference for other processes."""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from autofit_workers.spec.documents import read_file, resolved
from autofit_workers.spec.protocol import ScriptCall, WorkloadRef
from autofit_workers.spec.workloads.launcher_commands import launcher_command
from autofit_workers.spec.workloads.references import (
    SourceChangedError,
    UnknownWorkloadError,
    WorkloadError,
    names_like,
)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AS_MODULE = "-m "  # as Python's own option, before a module's name


@dataclass(frozen=True, kw_only=True)
class Script:
    """Training script that is run unmodified, in place of a `Workload`.

    autofit counts its optimizer steps and ends it after a few of them. It is called with its own
    arguments, in the caller's current folder. Give one of `batch_argument`, `batch_variable` and
    `batch_name`, or none of them: the batch size of its data loader is changed then.

    Attributes:
        path: the script's file; the name of a program that pip installed beside Python, such as `tune`; or
            `-m package.module`.
        arguments: the arguments of its command line, without the batch size.
        batch_argument: the argument that takes the batch size, such as `--batch-size`; if it ends in `=`,
            the size is joined to it.
        batch_variable: the environment variable that takes the batch size.
        batch_name: the name of the constant in the script's code that is the batch size.
        keeps_trackers: whether wandb, TensorBoard and other trackers log the script's run while it is
            tried.
        launcher: command that starts it as several ranks, `torchrun`, `accelerate` or `deepspeed`, with its
            own options if some are given, as in `accelerate launch --config_file fsdp.yaml`.
        num_processes: number of ranks on each machine; None leaves it to the launcher's options. With neither
            this nor a launcher, the script runs as a single process.
        num_nodes: number of machines.

    Raises:
        WorkloadError: several ways to set the batch size are given, or a name is impossible; or there is no
            such launcher.
    """

    path: str | Path
    arguments: tuple[str, ...] | list[str] = ()
    batch_argument: str | None = None
    batch_variable: str | None = None
    batch_name: str | None = None
    keeps_trackers: bool = False
    launcher: str | None = None
    num_processes: int | None = None
    num_nodes: int = 1

    def __post_init__(self) -> None:
        """Raises `WorkloadError` for contradictory or impossible values."""
        ways = (self.batch_argument, self.batch_variable, self.batch_name)
        if sum(way is not None for way in ways) > 1:
            raise WorkloadError(
                "say in one way how the script takes its batch size: by an argument (--batch-arg "
                "--batch-size), by an environment variable that it reads (--batch-env BATCH) or by a "
                "constant in its code (--batch-name BATCH)"
            )
        for kind, name in (("an environment variable", self.batch_variable), ("a constant", self.batch_name)):
            if name is not None and not _VARIABLE.fullmatch(name):
                raise WorkloadError(f"{name!r} is not the name of {kind}")
        try:
            self._launcher_command()
        except ValueError as error:
            raise WorkloadError(str(error)) from error

    @property
    def name(self) -> str:
        """File name of the script, or its module's name if it is called as `python -m`."""
        return self._module or Path(self.path).name

    @property
    def _module(self) -> str:
        text = str(self.path)
        return text[len(_AS_MODULE) :].strip() if text.startswith(_AS_MODULE) else ""

    def _launcher_command(self) -> tuple[str, ...]:
        return launcher_command(self.launcher, self.num_processes, self.num_nodes, module=bool(self._module))

    def _file(self) -> Path:
        if self._module:
            return _file_of(self._module)
        path = resolved(self.path)
        program = Path(sysconfig.get_path("scripts")) / self.path
        is_program = Path(self.path).name == str(self.path) and not path.exists() and program.is_file()
        return program if is_program else path

    def reference(self) -> WorkloadRef:
        """Reference by which another process finds the script and calls it.

        Raises:
            UnknownWorkloadError: there is no such file, or no such module.
        """
        try:
            path = self._file()
            source_sha256 = hashlib.sha256(read_file(path)).hexdigest() if path.is_file() else None
            folder = str(resolved("."))
        except OSError as error:
            raise UnknownWorkloadError(f"the script {self.path} cannot be read: {error.strerror}") from error
        if source_sha256 is None:
            near = names_like(path.name, [entry.name for entry in path.parent.glob("*.py")])
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UnknownWorkloadError(f"there is no script {path}.{hint} Check the path")
        return WorkloadRef(
            kind="script",
            target=str(path),
            source_sha256=source_sha256,
            search_path=(str(path.parent),),
            script=ScriptCall(
                arguments=tuple(self.arguments),
                batch_argument=self.batch_argument,
                batch_variable=self.batch_variable,
                batch_name=self.batch_name,
                keeps_trackers=self.keeps_trackers,
                folder=folder,
                module=self._module,
                launcher=self._launcher_command(),
            ),
        )


def _file_of(module: str) -> Path:
    """File that `python -m` runs for a module, found without importing it or its packages.

    Raises:
        UnknownWorkloadError: there is no such module, or no Python file of it that could be run.
    """
    folders: Sequence[str] | None = [str(resolved(".")), *sys.path]
    origin = None
    for name in _prefixes(module):
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            raise UnknownWorkloadError(
                f"there is no module {name}: install it beside autofit, or check the name"
            )
        folders, origin = spec.submodule_search_locations, spec.origin
    if folders is not None:  # a package
        return _file_of(f"{module}.__main__")
    if origin is None or not origin.endswith(".py"):
        raise UnknownWorkloadError(f"the module {module} has no Python file that could be run")
    return Path(origin)


def _prefixes(module: str) -> list[str]:
    """Names of a module's packages and of itself: `a`, `a.b`, `a.b.c` for `a.b.c`."""
    words = module.split(".")
    return [".".join(words[: number + 1]) for number in range(len(words))]


def read_script(ref: WorkloadRef) -> bytes:
    """Source of a script, checked against the digest that its reference was made with.

    Raises:
        SourceChangedError: the file is missing on this machine, or differs.
    """
    path = Path(ref.target)
    if not path.is_file():
        raise SourceChangedError(
            f"{path} is not on this worker: copy it to the same place, or share the folder"
        )
    source = path.read_bytes()
    if hashlib.sha256(source).hexdigest() != ref.source_sha256:
        raise SourceChangedError(
            f"{path} differs from the file that the search began with: start again if it was edited meanwhile"
        )
    return source
