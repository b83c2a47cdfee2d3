"""Records which of the user's own files a process has used, with digests of their content.

These are the loaded modules, and the files that Python code opened: settings,
vocabularies, weights. Files that a C library opens itself, and listed folders, are not recorded.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import sysconfig
from pathlib import Path

_WORKERS = f"{Path(__file__).parents[1]}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
# Packages that users installed for themselves, and Debian's, lie elsewhere than Python's own.
_PACKAGES = ("/site-packages/", "/dist-packages/")
# Files of the system, which belong to no workload.
_SYSTEM = (
    "/proc/", "/sys/", "/dev/", "/etc/", "/lib/", "/run/",
    "/usr/lib", "/usr/share/", "/usr/local/lib/", "/usr/local/share/",  # projects may lie in /usr/src
)  # fmt: skip
_WHOLE_BYTES = 64 * 1024**2  # of a larger file, size and modification time stand for its content

# The originals, before a script has them replaced by functions that may find another file.
_open, _stat = io.open, os.stat

_opened: set[str] = set()
_digests: dict[str, str] = {}
_modules: dict[str, str] = {}
_is_watching = False


def is_installed(path: str) -> bool:
    """Whether a file belongs to Python or an installed package, rather than to the user."""
    return path.startswith(_INSTALLED) or any(folder in path for folder in _PACKAGES)


def watch() -> None:
    """Starts to record the files that this process opens for reading, by an audit hook, for good."""
    global _is_watching  # noqa: PLW0603 - a hook belongs to the process
    if not _is_watching:
        _is_watching = True
        sys.addaudithook(_note)


def used_files() -> dict[str, str]:
    """SHA-256 digests by path of the user's files that this process used: modules, and files that it opened.

    Opened files are known since `watch` was called. A module is digested when it is first seen here: a later
    change of its file does not run.
    """
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file not in _modules and _is_users(file):
            digest = content_digest(Path(file))
            if digest is not None:
                _modules[file] = digest
    opened = set(_opened)
    for file in filter(_is_users, opened):
        digest = content_digest(Path(file))
        if digest is not None:
            _digests[file] = digest
    _opened.difference_update(opened)  # files that were opened here only to be digested
    return {str(Path(file).absolute()): digest for file, digest in {**_digests, **_modules}.items()}


def content_digest(path: Path) -> str | None:
    """SHA-256 of a file, or its size and time of change above 64 MiB; None if it is no readable file."""
    try:
        status = _stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > _WHOLE_BYTES:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        with _open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open":
        return
    path, mode, flags = arguments
    if not isinstance(path, str | os.PathLike):
        return
    is_written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
    if not is_written and (mode is None or "r" in str(mode)):
        _opened.add(os.path.abspath(os.fspath(path)))  # noqa: PTH100 - on every open


def _is_users(file: str) -> bool:
    return not (file.startswith((_WORKERS, *_SYSTEM, "<")) or file.endswith(".pyc") or is_installed(file))
