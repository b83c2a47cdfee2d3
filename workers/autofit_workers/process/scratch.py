"""Scratch folder for files that a script writes in a trial: made before its process and removed after.

    autofit-script-x7ab/
      owner     locked for as long as the command lives that made the folder
      made      paths that the script made beside its user's files, to be removed again
      started   exists once the script has started a process, which may have made more files
      0 1 2 …   files that it wrote, in place of its user's
      tmp…      its temporary folder, if it is predicted

Removing the folder also removes the files noted in it. If the command is killed, its lock is released,
and the next command removes the folder.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "_AUTOFIT_SCRATCH"  # environment variable by which a process knows its folder
_PREFIX = "autofit-script-"
_OWNER, _MADE, _STARTED = "owner", "made", "started"
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR")


class Scratch:
    """Temporary folder for the files of a script that a trial runs; the autofit command makes and removes it.

    Attributes:
        folder: path of the folder.
    """

    def __init__(self) -> None:
        _sweep()
        self.folder, self._lock = _new_folder()

    def remove(self) -> None:
        """Removes the folder and the files noted in it; to be called once no process writes to the folder."""
        remove(self.folder)
        os.close(self._lock)


class Notes:
    """Record, in a script's scratch folder, of the files that the script makes elsewhere.

    The process that runs the script writes it; the autofit command removes those files afterwards.

    Args:
        folder: path of the scratch folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # Kept open: processes that are forked later write to it too, each note as a whole.
        self._made = os.open(f"{folder}/{_MADE}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._has_started = False

    def made(self, path: str) -> None:
        """Notes the path of a new file or folder that the script makes."""
        os.write(self._made, os.fsencode(path) + b"\0")

    def started(self) -> None:
        """Notes that the script has started another process."""
        if not self._has_started:
            self._has_started = True
            os.close(os.open(f"{self._folder}/{_STARTED}", os.O_CREAT | os.O_WRONLY))

    def close(self) -> None:
        os.close(self._made)


def shared_folders() -> list[str]:
    """Paths of folders where any program may put files: the temporary folder, and the existing caches."""
    caches = [os.environ[name] for name in _CACHES if os.environ.get(name)]
    found = [tempfile.gettempdir(), os.path.expanduser("~/.cache"), *caches]  # noqa: PTH111
    return [path for path in found if os.path.isdir(path)]  # noqa: PTH112 - `Path` calls what is replaced


def _new_folder() -> tuple[str, int]:
    """Makes a scratch folder and locks it, so that no other command removes it as abandoned.

    Returns:
        The folder's path and the descriptor of its lock.
    """
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        lock = os.open(f"{folder}/{_OWNER}", os.O_CREAT | os.O_RDWR)
        if _is_locked(lock) is not False and Path(folder, _OWNER).exists():
            return folder, lock
        os.close(lock)


def _is_locked(lock: int) -> bool | None:
    """Locks a file: True if locked, False if another process holds the lock, None if there are no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: its folders stay
        return None
    return True


@functools.cache
def _sweep() -> None:
    """Removes this user's scratch folders that earlier autofit commands left behind when they ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another command removes it
            if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if _is_locked(lock):
                    remove(folder)
            finally:
                os.close(lock)


def remove(folder: str | Path) -> None:
    """Removes a scratch folder and the files noted in it."""
    _take_away(Path(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _take_away(folder: Path) -> None:
    """Removes the files and folders that a script made, except folders that hold files of others.

    Args:
        folder: the scratch folder, in which the files are noted.
    """
    try:
        noted = (folder / _MADE).read_bytes().split(b"\0")[:-1]
    except FileNotFoundError:
        return
    started = folder / _STARTED
    moment = started.stat().st_mtime if started.exists() else None
    for path in map(Path, map(os.fsdecode, reversed(noted))):
        with suppress(OSError):  # it is gone already, or was never made
            if path.is_symlink() or not path.is_dir():
                path.unlink()
                continue
            for file in () if moment is None else _files_since(path, moment):
                file.unlink()
            path.rmdir()


def _files_since(folder: Path, moment: float) -> Iterator[Path]:
    """Yields this user's regular files in a folder that were changed at `moment` or later.

    Args:
        folder: folder that the script made; its subfolders are not searched.
        moment: modification time in seconds since the epoch.
    """
    for entry in os.scandir(folder):
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_mtime >= moment and found.st_uid == os.geteuid():
            yield Path(entry.path)
