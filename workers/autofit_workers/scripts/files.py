"""Protects the user's files from a script under trial, which writes to copies instead.

    open(path, "w")          writes to a copy in autofit's folder; reading that path again reads the copy
    os.open, os.symlink      likewise
    libraries' own writers   likewise, for the functions listed in `guard.table`
    torch.save, safetensors  likewise; tensors without values are kept as objects of this process
    mkdir                    is done, and undone at the end if the folder stayed empty
    remove, rename, chmod …  are refused for files that existed before

Existing files in temporary folders and in caches of libraries are the user's too; new ones are the
script's. Files that a native library opens itself are not noticed, except by functions in the table. Nor are
writes of processes that the script starts: their files in folders that it made are removed at the end.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from types import ClassMethodDescriptorType, ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from autofit_workers.process import scratch
from autofit_workers.scripts.guard.auditing import Audit
from autofit_workers.scripts.guard.places import Places, absolute, followed, is_inquiry, is_there, named
from autofit_workers.scripts.guard.table import CALLS, Call, Rule, Way
from autofit_workers.scripts.replacing import Replacements
from autofit_workers.scripts.saving.saves import Saves
from autofit_workers.spec.pythons import Self

_WRITING = frozenset("wax+")
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_DATABASES_IN_MEMORY = ("", ":memory:")
_READ_ONLY_URIS = ("mode=ro", "mode=memory", "immutable=1")
_BESIDE_DATABASES = ("-wal", "-journal")
_MOST_LINKS = 40  # links that follow each other, as in Linux
_open: Callable[..., Any] = io.open


class KeptFiles:
    """Keeps a script from changing any file that existed before: its writes go to copies.

    The protection holds for the whole process from `begin` on. A process that only runs a script need not
    call `end`: its exit handlers and its remaining threads are the script's too.

    Args:
        guarded: folders that belong to the user, wherever they are.
        saves: whether saved objects are written to a file, which takes memory; else tensors have
            no values, and are kept as objects.
        saving: called before something is saved.
        is_inside: whether the process is inside the process boundary, where all its writes are in memory.
            Then only objects that are saved without values are kept.

    Attributes:
        folder: autofit's folder, for the copies.
        notes: notes in `folder` on files that the script makes; only outside the process boundary.
    """

    notes: scratch.Notes

    def __init__(
        self,
        *guarded: str,
        saves: bool,
        saving: Callable[[], None] = lambda: None,
        is_inside: bool = False,
    ) -> None:
        self._is_inside = is_inside
        self._guarded = guarded
        self._is_own_folder = scratch.VARIABLE not in os.environ
        self.folder = os.environ.get(scratch.VARIABLE) or tempfile.mkdtemp(prefix="autofit-files-")
        self._copies: dict[str, str] = {}  # path → path of the copy
        self._links: dict[str, str] = {}  # path of a link that the script made → its target
        self._names = itertools.count()
        self._replaced = Replacements()
        self._saves = Saves(self, saves=saves, saving=saving)

    def begin(self) -> None:
        """Replaces Python's functions that write files, for the whole process."""
        self._saves.begin(self._replaced)
        if self._is_inside:
            return
        self.notes = scratch.Notes(self.folder)
        self._places = Places(self.folder, self._guarded, self.notes)
        adapted: dict[str, Callable[[Any], Any]] = {
            "open": self._opened_descriptor,
            "symlink": self._linked,
            **dict.fromkeys(("rename", "replace"), self._renamed),
            **dict.fromkeys(("remove", "unlink"), self._removed),
        }
        of_os = [(name, getattr(os, name), adapt(getattr(os, name))) for name, adapt in adapted.items()]
        for owner in (builtins, io):
            self._replaced.put(owner, "open", self.open)
        for name, _, put in of_os:
            self._replaced.put(os, name, put)
        self._replaced.put_everywhere([(_open, self.open), *((plain, put) for _, plain, put in of_os)])
        for module, calls in itertools.groupby(CALLS, lambda call: call.module):
            self._replaced.when_imported(module, functools.partial(self._lead_all, tuple(calls)))
        self._audit = Audit(
            {
                Rule.OPENED: self._require_opened,
                Rule.CHANGED: self._require_own,
                Rule.MADE: self._note_made,
                Rule.DATABASE: self._require_own_database,
            }
        )
        self._replaced.callback(setattr, self._audit, "is_on", False)

    def end(self) -> None:
        """Restores Python's file functions, for a process that continues after the script."""
        self._replaced.take_back()
        if not self._is_inside:
            self.notes.close()
        if self._is_own_folder:
            scratch.remove(self.folder)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()

    # ── resolving paths ─────────────────────────────────────────────────────────────────────────

    def written(self, path: Any, mode: str = "w", *, always: bool = False) -> str:
        """Path at which to write a file: that of a copy for a user's file, else `path` itself.

        Args:
            mode: mode that the path is opened with.
            always: whether to replace a path in a temporary folder too.
        """
        full = absolute(path)
        if self._is_inside or full is None:
            return os.fsdecode(path)
        if (through := self._through_links(full)) != full:
            path = full = through
        real = followed(full)
        if (copy := self._copy_of(full)) is not None:
            return copy
        if self._places.may_be_written(real) and not always:
            return os.fsdecode(path)
        exists, folder = os.path.isfile(real), os.path.dirname(real)  # noqa: PTH113, PTH120
        is_refused = "x" in mode and exists
        if is_refused or not os.path.isdir(folder) or not os.access(folder, os.W_OK):  # noqa: PTH112
            return os.fsdecode(path)
        copy = self._new_copy(real)
        if exists and not {"w", "x"}.intersection(mode):
            shutil.copyfile(real, copy)
        self._copies[real] = copy
        return copy

    def _new_copy(self, path: str) -> str:
        """New path for a copy of `path`, with the same suffix, as some writers choose the format by it."""
        return f"{self.folder}/{next(self._names)}{os.path.splitext(path)[1]}"  # noqa: PTH122

    def _copy_of(self, full: str) -> str | None:
        if not self._copies:
            return None
        through = self._through_links(full)
        copy = self._copies.get(named(through)) or self._copies.get(followed(through))
        return through if copy is None and through != full else copy

    def _through_links(self, full: str) -> str:
        """Path with the script's own symbolic links resolved; raises `OSError` if these form a cycle."""
        if not self._links:
            return full
        for _ in range(_MOST_LINKS):
            place = named(full)
            on_the_way = (each for each in self._links if place == each or place.startswith(f"{each}/"))
            if (link := next(on_the_way, None)) is None:
                return full
            full = self._links[link] + place[len(link) :]
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), full)

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Opens a file as the built-in `open` does; opens its copy if the script has written one."""
        has_opener = len(args) > 5 or kwargs.get("opener") is not None  # an opener opens by `os.open`
        if isinstance(file, str | bytes | os.PathLike) and not has_opener:
            full = absolute(file)
            writes = not _WRITING.isdisjoint(mode)
            led = self.written(file, mode) if writes else full and self._copy_of(full)
            file = led or file
        return _open(file, mode, *args, **kwargs)

    def _opened_descriptor(self, open_: Callable[..., int]) -> Callable[..., int]:
        """Wrapper of `os.open` that opens a copy in place of a user's file, or of a new one."""

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            full = absolute(path, dir_fd)
            if full is None or isinstance(path, int):
                return open_(path, flags, mode, dir_fd=dir_fd)
            real = followed(self._through_links(full))
            if (_writes_existing(flags) and self._places.is_users_content(real)) or (
                flags & os.O_CREAT and not is_there(real)
            ):
                return open_(self.written(full, "a"), flags, mode)
            return open_(self._copy_of(full) or (path if dir_fd is None else full), flags, mode)

        return opened

    def _linked(self, link: Callable[..., None]) -> Callable[..., None]:
        """Wrapper of `os.symlink` that makes a new link in a scratch copy, except in temporary folders."""

        def linked(
            src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
        ) -> None:
            full = absolute(dst, dir_fd)
            place = None if full is None else named(full)
            if place in self._copies:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
            if place is None or self._places.is_free(place) or not self._is_new(place):
                link(src, dst, target_is_directory, dir_fd=dir_fd)
                return
            target = os.path.join(os.path.dirname(place), os.fsdecode(src))  # noqa: PTH118, PTH120
            self._copies[place] = copy = self._new_copy(place)
            self._links[place] = target
            link(target, copy, target_is_directory)

        return linked

    @staticmethod
    def _is_new(path: str) -> bool:
        """Whether nothing exists at `path` but its parent folder does."""
        return os.path.isdir(os.path.dirname(path)) and not is_there(path)  # noqa: PTH112, PTH120

    def _renamed(self, rename: Callable[..., None]) -> Callable[..., None]:
        """Wrapper of `os.rename` that moves copies, and never replaces a user's file."""

        def renamed(
            src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            paths = absolute(src, src_dir_fd), absolute(dst, dst_dir_fd)
            if None in paths:
                rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            old, new = (named(path) for path in paths if path is not None)
            copy = self._copies.pop(old, None)
            if copy is None and os.path.isfile(old) and self._is_kept_apart(old, new):  # noqa: PTH113
                copy = self._new_copy(new)
                _move(rename, old, copy)
            self._links.pop(new, None)
            if copy is not None:
                self._copies[new] = copy
                if old in self._links:
                    self._links[new] = self._links.pop(old)
                return
            rename(old, new)
            self._copies = {_moved(path, old, new): copy for path, copy in self._copies.items()}
            self._places.follow(old, new)

        return renamed

    def _is_kept_apart(self, old: str, new: str) -> bool:
        """Whether a rename would move a script's file over a user's file, or out of a temporary folder."""
        places = self._places
        if places.is_users(old) or os.path.isdir(new):  # noqa: PTH112
            return False
        return places.is_users(new) or (places.is_free(old) and not places.is_free(new))

    def _removed(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            full = absolute(path, dir_fd)
            place = None if full is None else named(full)
            if place not in self._copies or is_there(place):
                remove(path, dir_fd=dir_fd)
            self._copies.pop(place or "", None)
            self._links.pop(place or "", None)

        return removed

    # ── libraries' functions ────────────────────────────────────────────────────────────────────

    def _lead_all(self, calls: tuple[Call, ...], module: ModuleType) -> None:
        for call in calls:
            *classes, name = call.name.split(".")
            owner: Any = module
            for each in classes:
                owner = getattr(owner, each, None)
            if (function := getattr(owner, name, None)) is not None:
                # A class's function is found by its object, bound like a Python method.
                is_static = isinstance(owner, type) and not _is_method(owner, name)
                led = self._led(function, call)
                self._replaced.put(owner, name, staticmethod(led) if is_static else led)

    def _led(self, function: Callable[..., Any], call: Call) -> Callable[..., Any]:
        """Wrapper of `function` that gives it a copy's path in place of a user's file.

        Args:
            function: library function that reads or writes a file.
            call: describes which argument is the path, and what the function does to the file.
        """

        @functools.wraps(function)
        def led(*args: Any, **kwargs: Any) -> Any:
            if call.way in (Way.READ, Way.LOOK) and (is_inquiry() or not self._copies):
                return function(*args, **kwargs)
            args, kwargs, path = _with_default(call, args, kwargs)
            full = None if isinstance(path, int) else absolute(path, kwargs.get("dir_fd"))
            if full is None or (call.keyword == "database" and not _is_file_of_database(path)):
                return function(*args, **kwargs)
            if call.way is Way.FILL:
                return self._filled(full, lambda folder: function(*_put(call, args, folder), **kwargs))
            target = self._led_path(call.way, full)
            if target is None:
                return function(*args, **kwargs)
            kwargs.pop("dir_fd", None)
            return function(*_put(call, args, target), **kwargs)

        return led

    def _led_path(self, way: Way, full: str) -> str | None:
        """Path of a copy to pass to a guarded function in place of `full`; None to pass `full` itself."""
        if way is Way.LOOK:
            return self._copies.get(named(full))
        if way is Way.READ:
            return self._copy_of(full)
        is_new = followed(full) not in self._copies
        target = self.written(full, "w" if way is Way.REPLACE else "a")
        if target == full:
            return None
        for end in _BESIDE_DATABASES if is_new else ():
            if os.path.isfile(full + end):  # noqa: PTH113
                shutil.copyfile(full + end, target + end)
        return target

    def _filled(self, folder: str, fill: Callable[[str], Any]) -> Any:
        """Calls `fill` with a new private folder instead of `folder`, so that no file in `folder` changes.

        Reads of `folder` then find the new files as well. A folder that the script itself made is passed
        unchanged. Returns the result of `fill`, with paths in `folder`.
        """
        real = followed(folder)
        is_own = self._places.is_free(real) and self._places.is_made(real)
        if is_own or not os.path.isdir(folder):  # noqa: PTH112
            return fill(folder)
        ours = self._new_copy(folder)
        os.mkdir(ours)  # noqa: PTH102
        told = fill(ours)
        for name in os.listdir(ours):  # noqa: PTH208
            self._copies[f"{real}/{name}"] = f"{ours}/{name}"
        return [_moved(path, ours, folder) for path in told] if isinstance(told, list) else told

    # ── refusals ────────────────────────────────────────────────────────────────────────────────

    def _require_opened(self, event: str, file: Any, flags: Any) -> None:
        """Raises an error if a user's file is opened for writing; records files that the opening creates."""
        writes = isinstance(flags, int) and flags & _WRITING_FLAGS
        if not writes or not isinstance(file, str | bytes | os.PathLike):
            return
        path = followed(absolute(file) or "")
        if _writes_existing(flags) and self._places.is_users_content(path):
            raise _refusal(path, event)
        if flags & os.O_CREAT:
            self._places.make(path)

    def _require_own(self, event: str, path: Any, folder: Any) -> None:
        full = absolute(path, folder)
        if full is not None and self._places.is_users(named(full)):
            raise _refusal(full, event)

    def _note_made(self, _event: str, path: Any, folder: Any) -> None:
        full = absolute(path, folder)
        if full is not None:
            self._places.make(named(full))

    def _require_own_database(self, event: str, database: Any, _beside: Any) -> None:
        if not _is_file_of_database(database):
            database = _file_of_uri(database)
        full = None if database is None else absolute(database)
        if full is not None and not self._places.may_be_written(followed(full)):
            raise _refusal(full, event)


def _with_default(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Arguments of a guarded file function, rewritten so that the path is a positional argument.

    Returns:
        Positional arguments with the path among them; the other keyword arguments; and the path, or None if
        the call has none and the function no default.
    """
    path = kwargs.get(call.keyword) if call.position >= len(args) else args[call.position]
    if path is None and call.default is not None:
        path = os.path.expanduser(call.default)  # noqa: PTH111
    if path is None or call.position > len(args):
        return args, kwargs, None
    others = {name: value for name, value in kwargs.items() if name != call.keyword}
    return _put(call, args, path), others, path


def _put(call: Call, args: tuple[Any, ...], path: Any) -> tuple[Any, ...]:
    return (*args[: call.position], path, *args[call.position + 1 :])


def _is_method(kind: type, name: str) -> bool:
    """Whether an attribute of a class is an instance method, not a static or class method."""
    found = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
    return not isinstance(found, staticmethod | classmethod | ClassMethodDescriptorType)


def _is_file_of_database(name: Any) -> bool:
    """Whether SQLite takes a database name as a file's path, not as a URI or an in-memory database."""
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else ""
    return text not in _DATABASES_IN_MEMORY and not text.startswith("file:")


def _file_of_uri(name: Any) -> str | None:
    """Path of the file that SQLite may write through a URI; None for a read-only or in-memory database."""
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else ""
    uri = urlsplit(text)
    is_harmless = text in _DATABASES_IN_MEMORY or any(each in uri.query for each in _READ_ONLY_URIS)
    return None if is_harmless or unquote(uri.path) in _DATABASES_IN_MEMORY else unquote(uri.path)


def _moved(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path


def _move(rename: Callable[..., None], old: str, copy: str) -> None:
    try:
        rename(old, copy)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(old, copy)
        os.remove(old)  # noqa: PTH107


def _writes_existing(flags: int) -> bool:
    """Whether opening with `flags` may change a file that already exists."""
    return bool(flags & _WRITING_FLAGS) and not flags & os.O_EXCL


def _refusal(path: str, event: str) -> PermissionError:
    return PermissionError(
        f"autofit does not let the script change {path} ({event}) while it tries the script"
    )
