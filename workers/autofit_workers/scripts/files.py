"""What a script writes while it is tried: kept out of its user's files.

    open(path, "w")          goes to a folder of ours; reading that path again finds it there
    os.open(path, …)         likewise where a file is there; a new one is gone at the end
    other ways to write      to what was there before are refused, as far as Python sees them
    torch.save, safetensors  likewise; where tensors have no values, as objects of this process
    mkdir                    is done, and undone at the end where the folder stayed empty
    remove, rename, rmtree   of what was there before is refused

Temporary folders and the caches of libraries are left to the script. What a C library opens by itself
is not seen, nor what processes write that the script starts: their files in folders that it made are
removed at the end.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch

from autofit_workers.scripts.saved import SavedObjects
from autofit_workers.scripts.sink import CountingSink
from autofit_workers.workload.libraries.finders import ExecutingFinder

_WRITING = frozenset("wax+")
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
_MOST_OF_DISK = 0.5  # of what is free, that one checkpoint may take
_REMOVALS = ("os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree")


class KeptFiles:
    """While it is entered, this process changes no file that was there before.

    Args:
        guarded: folders that are the user's, wherever they are.
        saves: whether what is saved is written, which takes memory as saving it does; else tensors have
            no values, and are kept as they are.
        saving: is told before something is.
        is_inside: whether the process is inside the boundary, where whatever it writes is in memory: then
            only objects that are saved without values are kept apart.
    """

    def __init__(
        self,
        *guarded: str,
        saves: bool,
        saving: Callable[[], None] = lambda: None,
        is_inside: bool = False,
    ) -> None:
        self._is_inside = is_inside
        self._saving = saving
        self._saves = saves
        self._guarded = guarded
        self._stack = ExitStack()
        self._folder = ""
        self._copies: dict[str, str] = {}  # path → where it is written instead
        self._names = itertools.count()
        self._made: list[str] = []
        self._created: set[str] = set()  # files that were not there, and are written where the script says
        self._own: tuple[str, ...] = ()
        self._is_entered = False
        self._entered_seconds, self._faults_before = 0.0, 0
        self._open: Callable[..., Any] = io.open
        self._objects = SavedObjects()

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="autofit-script-")
        self._replace(torch, "save", self._saved(torch.save))
        self._replace(torch, "load", self._loaded(torch.load))
        finder = ExecutingFinder(("safetensors.torch",), self._execute_with_own_saves)
        sys.meta_path.insert(0, finder)
        self._stack.callback(sys.meta_path.remove, finder)
        if not self._is_inside:
            self._divert_all()
        return self

    def _divert_all(self) -> None:
        """Replaces the ways to write to files, as far as Python has them."""
        caches = [os.environ[name] for name in _CACHES if name in os.environ]
        homes = [tempfile.gettempdir(), str(Path("~/.cache").expanduser()), *caches]
        self._own = (*_SYSTEM, *(f"{os.path.realpath(home)}/" for home in homes))
        deeper = (f"{os.path.realpath(folder)}/" for folder in self._guarded)
        self._guarded = tuple(f for f in deeper if f.startswith(self._own) and f not in self._own)
        self._replace(builtins, "open", self._opened)
        self._replace(io, "open", self._opened)
        self._replace(os, "open", self._opened_descriptor(os.open))
        self._replace(os, "mkdir", self._with_folder_noted(os.mkdir))
        for name in ("rename", "replace"):
            self._replace(os, name, self._renamed(getattr(os, name)))
        for name in ("remove", "unlink"):
            self._replace(os, name, self._removed(getattr(os, name)))
        for name in ("stat", "chmod", "utime", "access"):
            self._replace(os, name, self._led(getattr(os, name)))
        self._entered_seconds = time.time()
        self._faults_before = _faults_of_children()
        self._is_entered = True
        sys.addaudithook(self._audit)

    def __exit__(self, *_exception: object) -> None:
        was_diverting, self._is_entered = self._is_entered, False
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if not was_diverting:
            return
        for path in (*self._created, *self._of_children()):
            with suppress(OSError):  # it is gone already, or was never made
                Path(path).unlink()
        for folder in reversed(self._made):
            with suppress(OSError):  # something was put into it
                Path(folder).rmdir()

    def _of_children(self) -> Iterator[str]:
        """What processes that the script started have written to folders that it made, meanwhile."""
        if _faults_of_children() == self._faults_before:
            return  # it started none; what is there is another program's
        for folder in filter(lambda made: not self._is_free(made), self._made):
            for entry in os.scandir(folder) if os.path.isdir(folder) else ():  # noqa: PTH112
                found = entry.stat(follow_symlinks=False)
                is_of_this_run = found.st_mtime >= self._entered_seconds and found.st_uid == os.getuid()
                if stat.S_ISREG(found.st_mode) and is_of_this_run:
                    yield entry.path

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _is_free(self, path: str) -> bool:
        """Whether the script may do there what it likes."""
        real = os.path.realpath(path)
        if real.startswith(f"{self._folder}/"):
            return True
        return real.startswith(self._own) and not real.startswith(self._guarded)

    def _is_made(self, path: str) -> bool:
        """Whether the script has made the file, or a folder that it is in."""
        return path in self._created or any(
            path == folder or path.startswith(f"{folder}/") for folder in self._made
        )

    def _has_contents_of_users(self, path: str) -> bool:
        """Whether there is something to lose; the files that libraries lock are empty."""
        if self._is_free(path) or _is_of_python(path) or self._is_made(path):
            return False
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size > 0

    def _opened(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, str | os.PathLike):
            return self._open(file, mode, *args, **kwargs)
        path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - `Path` would call what is replaced here
        if _WRITING.intersection(mode) and not self._is_free(path):
            self._divert(path, mode)
        return self._open(self._copies.get(path, file), mode, *args, **kwargs)

    def _divert(self, path: str, mode: str) -> None:
        """From here on the path leads to a copy; what cannot be written is refused as it would be."""
        if path in self._copies or self._is_inside:
            return
        exists, folder = os.path.isfile(path), os.path.dirname(path)  # noqa: PTH113, PTH120
        is_refused = "x" in mode and exists
        if is_refused or not os.path.isdir(folder) or not os.access(folder, os.W_OK):  # noqa: PTH112
            return  # opening it raises what the script is used to
        copy = f"{self._folder}/{next(self._names)}"
        if exists and not {"w", "x"}.intersection(mode):
            shutil.copyfile(path, copy)
        self._copies[path] = copy

    def _opened_descriptor(self, open_: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is not None:
                return open_(path, flags, mode, dir_fd=dir_fd)
            full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
            if _writes_existing(flags) and self._has_contents_of_users(full):
                self._divert(full, "a")
            return open_(self._copies.get(full, path), flags, mode)

        return opened

    def _with_folder_noted(self, make: Callable[..., None]) -> Callable[..., None]:
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            make(path, *args, **kwargs)
            self._made.append(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100

        return mkdir

    def _renamed(self, rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any, **kwargs: Any) -> None:
            old, new = (os.path.abspath(os.fsdecode(path)) for path in (source, target))  # noqa: PTH100
            copy = self._copies.pop(old, None)
            if copy is None and os.path.isfile(old) and self._comes_new(old, new):  # noqa: PTH113
                copy = f"{self._folder}/{next(self._names)}"
                rename(source, copy, **kwargs)
            if copy is None:
                rename(source, target, **kwargs)
                self._follow(old, new)
            else:
                self._copies[new] = copy

        return renamed

    def _comes_new(self, old: str, new: str) -> bool:
        """Whether a name that the user did not have is given to what comes from a temporary folder."""
        return self._is_free(old) and not (self._is_free(new) or os.path.lexists(new))

    def _follow(self, old: str, new: str) -> None:
        """Knows what the script made under its new name, a folder with all that is in it."""

        def renamed(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path

        self._copies = {renamed(path): copy for path, copy in self._copies.items()}
        self._created = set(map(renamed, self._created))
        self._made = list(map(renamed, self._made))
        if self._is_free(old) and not self._is_free(new):
            for folder, _, files in os.walk(new):
                self._made.append(folder)
                self._created.update(f"{folder}/{name}" for name in files)

    def _removed(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                return remove(path, dir_fd=dir_fd)
            full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
            if full not in self._copies or os.path.lexists(full):
                remove(path)
            self._copies.pop(full, None)
            return None

        return removed

    def _led(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a path, which finds the copy where there is one."""

        def led(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._copies and isinstance(path, str | os.PathLike):
                path = self._copies.get(os.path.abspath(os.fsdecode(path)), path)  # noqa: PTH100
            return call(path, *args, **kwargs)

        return led

    def _saved(self, save: Callable[..., None]) -> Callable[..., None]:
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            self._saving()
            if not self._saves:
                self.keep(obj, f)
                return
            if not isinstance(f, str | os.PathLike):
                save(obj, f, *args, **kwargs)
                return
            sink = CountingSink()
            save(obj, sink, *args, **kwargs)
            if sink.num_bytes > shutil.disk_usage(self._folder).free * _MOST_OF_DISK:
                return  # nobody could load it again
            opened = self._open if self._is_inside else self._opened
            with opened(f, "wb") as file:
                save(obj, file, *args, **kwargs)

        return saved

    def keep(self, obj: Any, file: Any) -> None:
        """Keeps an object as the content of a file, a path's or an open one."""
        head = self._objects.save(obj)
        if hasattr(file, "write"):
            file.write(head)
            return
        path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100
        self._divert(path, "w")  # in a temporary folder too: what is no checkpoint is not to stay there
        with self._open(self._copies.get(path, path), "wb") as opened:
            opened.write(head)

    def _loaded(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._saves:
                with suppress(LookupError, OSError, ValueError):  # what is wrong with it, `load` says
                    return self._objects.load(self._objects.head_of(f), map_location)
            return load(f, map_location, *args, **kwargs)

        return loaded

    def kept(self, file: Any, device: Any = "cpu") -> Any:
        """The object that a file is of; raises `LookupError` where it is another file."""
        return self._objects.load(self._objects.head_of(file), device)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_entered:
            return
        if event == "open":
            self._audit_open(*arguments)
        elif event in _REMOVALS:
            named = (each for each in arguments[:2] if isinstance(each, str | bytes | os.PathLike))
            for path in map(os.path.abspath, map(os.fsdecode, named)):
                if os.path.lexists(path) and not (
                    self._is_made(path) or self._is_free(path) or _is_of_python(path)
                ):
                    raise _refusal(path, event)

    def _audit_open(self, file: Any, _mode: str | None, flags: int) -> None:
        """Sees what was not opened by the functions that are replaced, too."""
        if not flags & _WRITING_FLAGS or not isinstance(file, str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100
        if _writes_existing(flags) and self._has_contents_of_users(path):
            raise _refusal(path, "open")
        if flags & os.O_CREAT and not (os.path.lexists(path) or self._is_free(path) or _is_of_python(path)):
            self._created.add(path)

    def _execute_with_own_saves(self, module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        """Of safetensors, which writes by itself: with ways to save that do not."""
        execute(module)
        load_file = module.load_file

        def save_file(tensors: Any, filename: Any, *_args: Any, **_kwargs: Any) -> None:
            self._saving()
            self.keep(dict(tensors), filename)

        def save_model(model: torch.nn.Module, filename: Any, *_args: Any, **_kwargs: Any) -> None:
            self._saving()
            self.keep(model.state_dict(), filename)

        def loaded(filename: Any, device: Any = "cpu") -> Any:
            with suppress(LookupError, OSError):  # what is wrong with it, `load_file` says
                return self.kept(filename, device)
            return load_file(filename, device)

        vars(module).update(save_file=save_file, save_model=save_model, load_file=loaded)


def _faults_of_children() -> int:
    """Page faults of this process's children that have ended: more of them where there was another one."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def _is_of_python(path: str) -> bool:
    """Whether Python itself keeps compiled modules there."""
    return "/__pycache__/" in path


def _writes_existing(flags: int) -> bool:
    """Whether a file opened with these flags, which may be there already, may change."""
    return bool(flags & _WRITING_FLAGS) and not flags & os.O_EXCL


def _refusal(path: str, event: str) -> PermissionError:
    return PermissionError(
        f"autofit does not let the script change {path} ({event}) while it tries the script"
    )
