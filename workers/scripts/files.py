"""What a script writes while it is tried: kept out of its user's files.

    open(path, "w")          goes to a folder of ours; reading that path again finds it there
    torch.save, safetensors  are serialized to nowhere, or not at all where tensors have no data
    mkdir                    is done, and undone at the end where the folder stayed empty
    remove, rename, rmtree   of what was there before is refused

Temporary folders and the caches of libraries are left to the script. What a C library opens by itself
is not seen.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch

from workers.measure.after_steps import CountingSink

_WRITING = frozenset("wax+")
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
_REMOVALS = ("os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree")


class KeptFiles:
    """While it is entered, this process changes no file that was there before.

    Args:
        guarded: folders that are the user's, wherever they are.
        saves: whether what is saved is serialized, which takes memory as saving it does.
    """

    def __init__(self, *guarded: str, saves: bool) -> None:
        self._saves = saves
        self._guarded = guarded
        self._stack = ExitStack()
        self._folder = ""
        self._copies: dict[str, str] = {}  # path → where it is written instead
        self._made: list[str] = []
        self._own: tuple[str, ...] = ()
        self._is_entered = False
        self._open: Callable[..., Any] = io.open

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="autofit-script-")
        caches = [os.environ[name] for name in _CACHES if name in os.environ]
        homes = [tempfile.gettempdir(), str(Path("~/.cache").expanduser()), *caches]
        self._own = (*_SYSTEM, *(f"{os.path.realpath(home)}/" for home in homes))
        deeper = (f"{os.path.realpath(folder)}/" for folder in self._guarded)
        self._guarded = tuple(f for f in deeper if f.startswith(self._own) and f not in self._own)
        self._replace(builtins, "open", self._opened)
        self._replace(io, "open", self._opened)
        self._replace(os, "mkdir", self._with_folder_noted(os.mkdir))
        for name in ("rename", "replace"):
            self._replace(os, name, self._renamed(getattr(os, name)))
        self._replace(torch, "save", self._saved(torch.save))
        finder = _WithoutSaves()
        sys.meta_path.insert(0, finder)
        self._stack.callback(sys.meta_path.remove, finder)
        self._is_entered = True
        sys.addaudithook(self._audit)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_entered = False
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for folder in reversed(self._made):
            with suppress(OSError):  # something was put into it
                Path(folder).rmdir()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _is_free(self, path: str) -> bool:
        """Whether the script may do there what it likes."""
        real = os.path.realpath(path)
        if real.startswith(f"{self._folder}/"):
            return True
        return real.startswith(self._own) and not real.startswith(self._guarded)

    def _opened(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, str | os.PathLike):
            return self._open(file, mode, *args, **kwargs)
        path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - `Path` would call what is replaced here
        if _WRITING.intersection(mode) and not self._is_free(path):
            self._divert(path, mode)
        return self._open(self._copies.get(path, file), mode, *args, **kwargs)

    def _divert(self, path: str, mode: str) -> None:
        """From here on the path leads to a copy; what cannot be written is refused as it would be."""
        if path in self._copies:
            return
        exists, folder = os.path.isfile(path), os.path.dirname(path)  # noqa: PTH113, PTH120
        is_refused = "x" in mode and exists
        if is_refused or not os.path.isdir(folder) or not os.access(folder, os.W_OK):  # noqa: PTH112
            return  # opening it raises what the script is used to
        copy = f"{self._folder}/{len(self._copies)}"
        if exists and not {"w", "x"}.intersection(mode):
            shutil.copyfile(path, copy)
        self._copies[path] = copy

    def _with_folder_noted(self, make: Callable[..., None]) -> Callable[..., None]:
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            make(path, *args, **kwargs)
            self._made.append(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100

        return mkdir

    def _renamed(self, rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any, **kwargs: Any) -> None:
            copy = None
            if isinstance(source, str | os.PathLike):
                copy = self._copies.pop(os.path.abspath(os.fsdecode(source)), None)  # noqa: PTH100
            if copy is None:
                rename(source, target, **kwargs)
            else:
                self._copies[os.path.abspath(os.fsdecode(target))] = copy  # noqa: PTH100

        return renamed

    def _saved(self, save: Callable[..., None]) -> Callable[..., None]:
        def saved(obj: Any, _file: Any, *args: Any, **kwargs: Any) -> None:
            if self._saves:
                save(obj, CountingSink(), *args, **kwargs)

        return saved

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_entered or event not in _REMOVALS:
            return
        paths = [argument for argument in arguments[:2] if isinstance(argument, str | bytes | os.PathLike)]
        for path in map(os.fsdecode, paths):
            made = any(os.path.abspath(path).startswith(folder) for folder in self._made)  # noqa: PTH100
            if os.path.lexists(path) and not (made or self._is_free(path) or _is_of_python(path)):
                raise PermissionError(
                    f"the script would change {path} ({event}), which autofit does not let it do while it is "
                    "tried"
                )


class _WithoutSaves(MetaPathFinder):
    """Lets safetensors, which writes by itself, be imported without its ways to save."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "safetensors.torch":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_without_saves(module: ModuleType) -> None:
                execute(module)
                vars(module).update(save_file=_nothing, save_model=_nothing)

            spec.loader.exec_module = execute_without_saves  # type: ignore[method-assign]
        return spec


def _is_of_python(path: str) -> bool:
    """Whether Python itself keeps compiled modules there."""
    return "/__pycache__/" in path


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None
