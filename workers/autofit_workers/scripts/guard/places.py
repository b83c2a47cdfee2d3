"""Distinguishes a user's files, which must not change, from files that a script made during its trial.

autofit's folder   the script's copies
temporary, caches  existing files are the user's; new ones are the script's, and stay
everywhere else    the user's; files that the script makes are noted, and removed at the end

The script may change and remove its own files.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Collection
from typing import Any

from autofit_workers.process.scratch import Notes, shared_folders

_LONGEST_PATH = 1024  # of macOS, fcntl(2)
_NO_FOLDER = -1  # the descriptor of none
_lstat = os.lstat  # the original, which is replaced later
_inquiry = threading.local()


class Places:
    """Distinguishes files of the user from files made by a script during its trial.

    Args:
        folder: autofit's folder, for the copies.
        guarded: folders that belong to the user, wherever they are.
        notes: notes on files that the script makes among the user's.
    """

    def __init__(self, folder: str, guarded: Collection[str], notes: Notes) -> None:
        self._folder = f"{os.path.realpath(folder)}/"
        # By the file system's clock. A file changed in the same tick counts as the user's, as files that
        # Python code makes are recorded anyway.
        self._began_ns = os.stat(f"{folder}/made").st_ctime_ns  # noqa: PTH116 - `Path` calls what is replaced
        free = (f"{os.path.realpath(home)}/" for home in shared_folders())
        self._free = ("/dev/", f"/proc/{os.getpid()}/", *free)
        deeper = (f"{os.path.realpath(each)}/" for each in guarded)
        self._guarded = tuple(
            each for each in deeper if each.startswith(self._free) and each not in self._free
        )
        self._notes = notes
        self._made: set[str] = set()

    def is_free(self, path: str) -> bool:
        """Whether `path` lies in a folder where the script may write freely, such as a temporary one."""
        return path.startswith(self._folder) or (
            path.startswith(self._free) and not path.startswith(self._guarded)
        )

    def is_made(self, path: str) -> bool:
        """Whether the script has made the file at `path`, or a folder above it."""
        while path not in self._made:
            path, _, name = path.rpartition("/")
            if not name:
                return False
        return True

    def is_users(self, path: str) -> bool:
        """Whether `path` is an existing file or folder of the user, not one that the script made."""
        if path.startswith(self._folder) or _is_of_python(path) or self.is_made(path):
            return False
        try:
            found = _lstat(path)
        except OSError:
            return False
        # A folder's time changes when entries are added to it.
        is_new = found.st_ctime_ns > self._began_ns and not stat.S_ISDIR(found.st_mode)
        return not (is_new and self.is_free(path))

    def is_users_content(self, path: str) -> bool:
        """Whether writing to `path` would change a user's file; false for a folder, terminal or pipe."""
        try:
            kind = _lstat(path).st_mode
        except OSError:
            return False
        return (stat.S_ISREG(kind) or stat.S_ISBLK(kind)) and self.is_users(path)

    def may_be_written(self, path: str) -> bool:
        """Whether the script may write to the file at `path` itself, rather than to a copy."""
        return self.is_free(path) and not self.is_users_content(path)

    def make(self, path: str) -> None:
        """Records that the script makes `path`, which is removed at the end, before its folder."""
        if not is_there(path) and not _is_of_python(path):
            self._add(path)

    def follow(self, old: str, new: str) -> None:
        """Records that a file or folder that the script made was renamed, with all files in it."""
        below = f"{old}/"
        for path in [each for each in self._made if each == old or each.startswith(below)]:
            self._made.discard(path)
            self._add(new + path[len(old) :])
        if self.is_free(old) and not self.is_free(new):
            for folder, _, files in os.walk(new):
                for path in (folder, *(f"{folder}/{name}" for name in files)):
                    self._add(path)

    def _add(self, path: str) -> None:
        self._made.add(path)
        if not self.is_free(path):
            self._notes.made(path)


def absolute(path: Any, folder: Any = None) -> str | None:
    """Absolute path of a path or open descriptor, as text; None for any other object.

    Args:
        folder: descriptor of the folder that `path` is relative to, if that is not the current one.
    """
    if isinstance(path, int) and not isinstance(path, bool):
        return _of_descriptor(path)
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder != _NO_FOLDER and not os.path.isabs(text):  # noqa: PTH117
        parent = _of_descriptor(folder)
        return None if parent is None else os.path.normpath(f"{parent}/{text}")
    return os.path.abspath(text)  # noqa: PTH100 - `Path` would call what is replaced


def named(path: str) -> str:
    """Path with symbolic links in its parent folders resolved, but not in its last part, as for a removal."""
    folder, name = os.path.split(path)
    return f"{followed(folder).rstrip('/')}/{name}"


def followed(path: str) -> str:
    """Path with all symbolic links resolved, as opening a file takes it."""
    _inquiry.is_on = True
    try:
        return os.path.realpath(path)
    finally:
        _inquiry.is_on = False


def is_inquiry() -> bool:
    """Whether the current thread is resolving a real path, for which no copy may be substituted."""
    return getattr(_inquiry, "is_on", False)


def is_there(path: str) -> bool:
    """Whether anything exists at `path` on disk, even a broken link; copies of the script do not count."""
    try:
        _lstat(path)
    except OSError:
        return False
    return True


def _of_descriptor(number: int) -> str | None:
    try:
        if sys.platform == "darwin":
            import fcntl

            return os.fsdecode(fcntl.fcntl(number, fcntl.F_GETPATH, bytes(_LONGEST_PATH)).rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    except OSError:
        return None


def _is_of_python(path: str) -> bool:
    """Whether `path` lies in a folder in which Python keeps compiled modules."""
    return "/__pycache__/" in path
