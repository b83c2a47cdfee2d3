"""Folders of autofit's durable files, and the writing of files.

$AUTOFIT_STATE_DIR/       default: the platform's state directory
├── studies/              Optuna journals, one a study
├── traces/               traces of predictions, by digest
├── kept/                 outcomes of the trials that made them, by what decided them
├── observations/         observed peaks, one a file
├── step-times/           measured steps, one a file
├── errors/               reports of internal errors, one a file
├── warm/                 socket and lock of the warm tracer
└── cache/                files that can be made again
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import platformdirs

from autofit.errors import StorageError
from autofit_workers.spec.documents import resolved

STATE_DIR_VARIABLE = "AUTOFIT_STATE_DIR"
_OWN = 0o700  # folders hold names of models and lines of code, which others need not read
_OTHERS_WRITE = 0o022
# Version 0.2 wanted it for releases of PyTorch that were not tried; it has no effect now, and is no error.
UNVERIFIED_VARIABLE = "AUTOFIT_UNVERIFIED_TORCH"
# Environment variable of the key that signs jobs, see autofit.jobs.signing.
KEY_VARIABLE = "AUTOFIT_STORAGE_KEY"

_log = logging.getLogger(__name__)


def state_dir() -> Path:
    """Folder of all files that autofit keeps; it is not created here.

    It is `$AUTOFIT_STATE_DIR` if set, where `~` is the user's home; else the platform's folder for state.

    Raises:
        StorageError: `~` cannot be resolved.
    """
    configured = os.environ.get(STATE_DIR_VARIABLE)
    try:
        return Path(configured).expanduser() if configured else platformdirs.user_state_path("autofit")
    except RuntimeError as error:
        raise StorageError(f"{configured}: {error}; set {STATE_DIR_VARIABLE} to a folder") from error


def studies_path() -> Path:
    """Folder of studies (stored searches), a journal file each; it is not created here."""
    return state_dir() / "studies"


def studies_dir() -> Path:
    """Folder of studies (stored searches), a journal file each; created if missing.

    Raises:
        StorageError: when the folder cannot be created or written to.
    """
    return _writable(studies_path())


def traces_path() -> Path:
    """Folder of traces (recorded steps); not created here."""
    return state_dir() / "traces"


def traces_dir() -> Path:
    """Folder of traces (recorded steps), created if missing; raises `StorageError` if it is not writable."""
    return _writable(traces_path())


def kept_path() -> Path:
    """Folder of the outcomes of trials that made traces; not created here."""
    return state_dir() / "kept"


def kept_dir() -> Path:
    """Folder of the outcomes of trials that made traces, created if missing.

    Raises:
        StorageError: the folder cannot be created or written to.
    """
    return _writable(kept_path())


def warm_path() -> Path:
    """Folder of the warm tracer's socket; not created here."""
    return state_dir() / "warm"


def warm_dir() -> Path:
    """Folder of the warm tracer's socket, created if missing; raises `StorageError` if it is not writable."""
    return _writable(warm_path())


def observations_path() -> Path:
    """Folder of peaks that users reported with `autofit observe`; it is not created here."""
    return state_dir() / "observations"


def observations_dir() -> Path:
    """Folder of peaks that users reported with `autofit observe`, created if missing.

    Raises:
        StorageError: the folder cannot be created or written to.
    """
    return _writable(observations_path())


def step_times_path() -> Path:
    """Folder of measured step times; not created here."""
    return state_dir() / "step-times"


def step_times_dir() -> Path:
    """Folder of measured step times, created if missing; raises `StorageError` if it is not writable."""
    return _writable(step_times_path())


def errors_dir() -> Path:
    """Folder of reports on autofit's own failures, created if missing.

    Raises:
        StorageError: the folder cannot be created or written to.
    """
    return _writable(state_dir() / "errors")


def cache_path() -> Path:
    """Folder of cached files, which autofit can make again; it is not created here."""
    return state_dir() / "cache"


def cache_dir() -> Path:
    """Folder of cached files, created if missing; raises `StorageError` if it is not writable."""
    return _writable(cache_path())


def _writable(folder: Path) -> Path:
    """Folder of autofit, created if missing; raises `StorageError` if it cannot be written to."""
    try:
        for each in (state_dir(), folder):
            each.parent.mkdir(parents=True, exist_ok=True)
            each.mkdir(mode=_OWN, exist_ok=True)
    except OSError as error:
        raise _storage_error(f"cannot create {folder}", error) from error
    _narrow(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(
            f"cannot write to {folder}: make it writable or set {STATE_DIR_VARIABLE} to a folder that is"
        )
    return folder


def _narrow(folder: Path) -> None:
    """Removes other users' permissions on a folder, which earlier versions of autofit created with them.

    The folder is left unchanged if others may write to it, if it belongs to another user, or if it is a link:
    it was then shared on purpose. A failure is only logged.
    """
    try:
        found = folder.lstat()
        mode = stat.S_IMODE(found.st_mode)
        is_shared = mode & _OTHERS_WRITE or found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode)
        if mode & ~_OWN and not is_shared:
            folder.chmod(mode & _OWN)
    except OSError as error:
        _log.info("%s stays readable for others: %s", folder, error)


def require_writable(path: Path) -> None:
    """Checks that a file can be written at a path; called before long work whose result goes there.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        if stat.S_ISDIR(_mode(path)):
            raise StorageError(f"cannot write {path}: it is a folder; name a file in it")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _storage_error(f"cannot write {path}", error) from error


def _mode(path: Path) -> int:
    """Mode bits of the file that a path leads to; 0 if there is no such file.

    Raises:
        OSError: the path cannot be looked up, or no file can have such a name.
    """
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise OSError(errno.EINVAL, f"no file can have that name ({error})") from error


FileStamp = tuple[int, int, int]
"""Modification time in nanoseconds, inode and size of a file."""


def stamp_of(path: Path) -> FileStamp:
    """Numbers that change when a file is written or replaced, also by links that lead to another file.

    Raises:
        OSError: the file is not there, or cannot be looked up.
    """
    status = path.stat()
    return status.st_mtime_ns, status.st_ino, status.st_size


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file atomically: after a crash the file has the old or the new content, never a part.

    If the path is a symbolic link, the file that it leads to is replaced. A device or a pipe is written to
    directly.

    Args:
        content: new content; a text is encoded as UTF-8.

    Raises:
        StorageError: the folder is missing or not writable, the disk is full, or nobody reads the pipe.
    """
    data = content.encode(errors="replace") if isinstance(content, str) else content
    try:
        path = resolved(path)
        if path.exists() and not (path.is_file() or path.is_dir()):
            _write_through(path, data)
            return
        temporary = path.parent / f".{uuid.uuid4().hex}"  # a suffix could exceed the limit on names
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _storage_error(f"cannot write {path}", error) from error


def _write_through(path: Path, data: bytes) -> None:
    """Writes to a device or a pipe, without replacing it.

    Raises:
        OSError: writing fails; immediately if nobody reads the pipe.
    """
    number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(number, True)
    with os.fdopen(number, "wb") as file:
        file.write(data)


def keep(
    folder: Callable[[], Path], name: str, content: Callable[[], str | bytes], *, replaces: bool = False
) -> None:
    """Writes a file that autofit can do without; a failure to write is only logged.

    Args:
        folder: returns the folder of the file, created if missing.
        name: name of the file within it.
        content: returns the content; not called if the file exists and is not replaced.
        replaces: whether to write a file that exists again.
    """
    try:
        path = folder() / name
        if replaces or not path.exists():
            write_atomically(path, content())
    except (StorageError, OSError) as error:
        _log.info("%s", error)


def touch(path: Path) -> None:
    """Marks a file as used now, for `bound`; a failure is only logged."""
    try:
        os.utime(path)
    except OSError as error:
        _log.info("%s is not marked as used: %s", path, error)


def bound(folder: Path, *, most_bytes: int, most_seconds: float) -> None:
    """Removes files of a folder that were not written or used for long, and the oldest ones beyond a size.

    A file counts as used when `touch` is called for it. A failure is only logged.

    Args:
        most_bytes: bytes that the files may take together.
        most_seconds: age from which a file is removed.
    """
    try:
        found = [(entry, entry.stat()) for entry in os.scandir(folder) if entry.is_file()]
        found.sort(key=lambda each: each[1].st_mtime, reverse=True)
        oldest, num_bytes = time.time() - most_seconds, 0
        for entry, status in found:
            num_bytes += status.st_size
            if num_bytes > most_bytes or status.st_mtime < oldest:
                Path(entry.path).unlink(missing_ok=True)
    except OSError as error:
        _log.info("files of %s cannot be removed: %s", folder, error)


def _storage_error(what: str, error: OSError) -> StorageError:
    return StorageError(
        f"{what}: {error.strerror or error}; choose another place, or set {STATE_DIR_VARIABLE} to a writable "
        "folder if it lies in autofit's own"
    )
