"""Liger's own kernels, by the script that a row of liger_kernels.csv was made with, as it is.

Of a clone of github.com/linkedin/Liger-Kernel: `git blame` says which commit published a row, and its code
and its scripts are run, with kernels that do nothing. A script asks first how fast each provider is, which
leaves cuBLAS its workspaces, here at the smallest size; then it makes what is called, and hands it to
`_test_memory`, which calls it ten times. A script that reads how much memory is taken reads 1 GiB.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import gc
import io
import json
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _get_current_dispatch_mode

from autofit_workers.spec.pythons import read_toml
from autofit_workers.tracing.fake.fake_device import FakeDeviceMode, parameters_diverted
from autofit_workers.tracing.fake.properties import card_properties
from autofit_workers.tracing.kernels import triton
from autofit_workers.workload.libraries.importing import without_missing_operators
from autofit_workers.workload.workload import Workload

_DATA = "benchmark/data/all_benchmark_data.csv"
_SCRIPTS = "benchmark/scripts"
_IMPORTED = ("src/", "test/", f"{_SCRIPTS}/")
_ABOUT = "src/liger_kernel-0.dist-info/METADATA"  # scripts ask for their version
_URL = re.compile(r"/blob/(?P<commit>[0-9a-f]+)/(?P<file>[^#]*)#L(?P<line>\d+)$")
_TOTAL_BYTES = 80 * 1024**3
_READING_MEMORY = ("max_memory_allocated", "memory_allocated", "reset_peak_memory_stats", "memory_reserved")
_READ_BYTES = 1024**3
_OF_A_COMMIT = ("liger_kernel", "utils", "test", "benchmark_model_configs")  # modules, others in the next
# What patches models of transformers, of the releases of its time; no script does.
_PATCHING = ("liger_kernel.transformers.monkey_patch", "liger_kernel.transformers.auto_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the scripts' own table, and where its code is.

    Attributes:
        folder: of the commit's files.
        told: the columns of the row.
    """

    folder: Path
    told: Mapping[str, str]

    @property
    def extra(self) -> dict[str, Any]:
        """What the script was told beside the size."""
        found = json.loads(self.told["extra_benchmark_config_str"])
        return {
            name: getattr(torch, value.removeprefix("torch."))
            if isinstance(value, str) and value.startswith("torch.")
            else value
            for name, value in found.items()
        }

    @property
    def size(self) -> int | float:
        size = float(self.told["x_value"])
        return int(size) if size.is_integer() else size

    @property
    def script(self) -> Path:
        """The one that makes this kernel's rows.

        Raises:
            LookupError: there is none.
        """
        kernel = re.escape(self.told["kernel_name"])
        named = re.compile(rf"kernel_name\W*[:=] *[\"']{kernel}[\"']|[\"']{kernel}[\"']")
        for path in sorted((self.folder / _SCRIPTS).glob("benchmark_*.py")):
            if named.search(path.read_text(encoding="utf-8")):
                return path
        families = sorted((self.folder / _SCRIPTS).glob("benchmark_*.py"))
        for path in families:  # a kernel whose name is put together, such as that of each type of loss
            words = path.stem.removeprefix("benchmark_").split("_")
            if all(word in self.told["kernel_name"] for word in words):
                return path
        raise LookupError(f"no script makes rows of {self.told['kernel_name']}")


class Clone:
    """A clone of the repository, or its git directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def row(self, url: str) -> Row:
        """The row that an address of a line names."""
        match = _URL.search(url)
        assert match is not None, url
        number = int(match["line"]) - 1
        header, *_ = lines = _lines(self._folder, match["commit"])
        (told,) = csv.DictReader([header, lines[number]])
        return Row(
            folder=_unpacked(self._folder, _publishers(self._folder, match["commit"])[number]), told=told
        )


@functools.cache
def _lines(clone: Path, commit: str) -> list[str]:
    return _git(clone, "show", f"{commit}:{_DATA}").decode().splitlines()


@functools.cache
def _publishers(clone: Path, commit: str) -> list[str]:
    """The commit that each line is from."""
    said = _git(clone, "blame", "-s", "-l", commit, "--", _DATA).decode()
    return [line.partition(" ")[0].lstrip("^") for line in said.splitlines()]


@functools.cache
def _unpacked(clone: Path, commit: str) -> Path:
    """The files of a commit that scripts import."""
    folder = Path(tempfile.gettempdir()) / f"liger-{commit}"
    if not (folder / _ABOUT).exists():
        names = _git(clone, "ls-tree", "-r", "--name-only", commit).decode().splitlines()
        wanted = [name for name in names if name.endswith(".py") and name.startswith(_IMPORTED)]
        for name, text in zip(wanted, _contents(clone, commit, wanted), strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text)
        (folder / "src" / "liger_kernel" / "__init__.py").touch()  # else an installed release goes before
        settings = _git(clone, "show", f"{commit}:pyproject.toml").decode()
        version = read_toml(settings)["project"]["version"]
        (folder / _ABOUT).parent.mkdir()
        (folder / _ABOUT).write_text(f"Metadata-Version: 2.1\nName: liger-kernel\nVersion: {version}\n")
    return folder


def _contents(clone: Path, commit: str, names: Sequence[str]) -> Iterator[bytes]:
    """Contents of files, without `git archive`, which wants all: of a mirror large ones may not be there."""
    asked = "".join(f"{commit}:{name}\n" for name in names).encode()
    told = io.BytesIO(_git(clone, "cat-file", "--batch", given=asked))
    while header := told.readline():
        yield told.read(int(header.split()[2]))
        told.readline()


def _git(clone: Path, *arguments: str, given: bytes = b"") -> bytes:
    command = ["git", "-C", str(clone), *arguments]
    return subprocess.run(command, check=True, input=given, stdout=subprocess.PIPE).stdout


def workload(row: Row, architecture: str) -> Workload:
    """What `_test_memory` calls, as a step."""
    call = _Called(row, architecture)
    return Workload(
        build_model=torch.nn.Module,
        make_batch=call.make_batch,
        loss=lambda _model, _batch: torch.zeros(()),
        step=call,
        name=row.told["kernel_name"],
    )


class _Anything(ModuleType):
    """A module with whatever is imported from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Reached(Exception):  # noqa: N818 - no error
    """The script has made what it calls."""


class _Called:
    def __init__(self, row: Row, architecture: str) -> None:
        self._row = row
        self._architecture = architecture
        self._call: Callable[[], Any] | None = None
        self._alive: list[dict[str, Any]] = []  # what the functions of the script hold while it calls

    def make_batch(self, _batch_size: int, _device: torch.device) -> tuple[torch.Tensor, ...]:
        if self._call is None:
            mode = _get_current_dispatch_mode()
            assert isinstance(mode, FakeDeviceMode)
            with parameters_diverted(mode), without_missing_operators(), self._card(), self._imports():
                self._run_script()
        return (torch.empty(1),)

    def __call__(self, _model: Any, _optimizer: Any, _batch: Any) -> None:
        assert self._call is not None
        self._call()

    def _run_script(self) -> None:
        utils = _utils(self._row.folder)
        utils.run_benchmarks = self._run_benchmarks
        utils._test_memory = self._reached
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                mock.patch.object(torch.multiprocessing, "spawn", self._of_one_process),
            ):
                runpy.run_path(str(self._row.script), run_name="__main__")
        except _Reached:
            return
        raise LookupError(f"{self._row.script.name} makes no such row of memory")

    def _run_benchmarks(
        self,
        bench_test_fn: Callable[[Any], Any],
        kernel_name: str,
        metric_name: str,
        *_rest: Any,
        kernel_providers: Sequence[str],
        x_values: Sequence[float],
        kernel_operation_modes: Sequence[str | None] = (None,),
        **_options: Any,
    ) -> None:
        """`utils.run_benchmarks`, of the kernel of the row alone."""
        told = self._row.told
        if kernel_name != told["kernel_name"]:
            return
        asked: Any = _utils(self._row.folder).SingleBenchmarkRunInput
        if metric_name != "memory":
            for mode in kernel_operation_modes:
                for provider in kernel_providers:
                    smallest = asked(min(x_values), provider, mode, self._row.extra)
                    with contextlib.suppress(Exception):  # of a provider that is not installed
                        bench_test_fn(smallest)
            gc.collect()
            return
        mode = told["kernel_operation_mode"] or None
        bench_test_fn(asked(self._row.size, told["kernel_provider"], mode, self._row.extra))

    def _of_one_process(self, worker: Callable[..., Any], **_rest: Any) -> None:
        """Of a script that starts a process for each rank: what the only one measures, as a step."""
        told = self._row.told
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        torch.cuda.reset_peak_memory_stats = lambda: self._reached(sys._getframe(1).f_locals["step"])
        worker.__globals__["_bench_memory_one"](
            told["kernel_provider"],
            self._row.extra["S"],
            self._row.extra["B"],
            self._row.size,
            1,
            torch.distributed.group.WORLD,
            torch.device("cuda:0"),
        )

    def _reached(self, func: Callable[[], Any], *_args: Any, **_options: Any) -> None:
        self._call = func
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._run_benchmarks.__func__.__code__:
            self._alive.append(dict(frame.f_locals))
            frame = frame.f_back
        raise _Reached

    @contextlib.contextmanager
    def _card(self) -> Iterator[None]:
        """What scripts and kernels ask of the card, which for good is the row's."""
        cuda: Any = torch.cuda
        properties = card_properties(self._architecture, _TOTAL_BYTES)
        cuda.get_device_properties = lambda *_args: properties
        cuda.get_device_capability = lambda *_args: (properties.major, properties.minor)
        for module in (cuda, cuda.memory):
            for name in _READING_MEMORY:
                setattr(module, name, lambda *_args, **_options: _READ_BYTES)
        yield

    @contextlib.contextmanager
    def _imports(self) -> Iterator[None]:
        """The script's own folder and its library first."""
        before, arguments = list(sys.path), list(sys.argv)
        folder = self._row.folder
        sys.path[:0] = [str(folder / _SCRIPTS), str(folder / "src"), str(folder)]
        sys.argv = [str(self._row.script)]
        for name in list(sys.modules):
            if name.partition(".")[0] in _OF_A_COMMIT:
                del sys.modules[name]
        sys.modules.update({name: _Anything(name) for name in _PATCHING})
        triton.begin_program()
        try:
            yield
        finally:
            sys.path[:], sys.argv[:] = before, arguments


def _utils(_folder: Path) -> ModuleType:
    import utils  # type: ignore[import-not-found] # of the scripts' folder

    return utils  # type: ignore[no-any-return]
