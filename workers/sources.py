"""Which of a user's own files a process has loaded or read, and what was in them."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

_WORKERS = f"{Path(__file__).parent}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
# A user's own installations, and Debian's, lie elsewhere.
_PACKAGES = ("/site-packages/", "/dist-packages/")
# What a machine and its libraries read, and is not what a workload is made of.
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib", "/run/", "/var/", f"{sys.base_prefix}/")
_COMPILED = "__pycache__"
_READING = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_LARGE_BYTES = 64 * 1024**2

_digests: dict[str, str] = {}
_reads: dict[str, dict[str, None]] = {}  # by whose they are
_reader = ""


def is_installed(path: str) -> bool:
    """Whether a file is Python's own or of an installed package, rather than the user's."""
    return path.startswith(_INSTALLED) or any(folder in path for folder in _PACKAGES)


def watch_reads() -> None:
    """Notes from here on, for the life of the process, which files are opened to be read."""
    sys.addaudithook(_note)


def reads_are_of(reader: str) -> None:
    """Says whose the files are that are read from here on, for `loaded_sources`."""
    global _reader  # noqa: PLW0603 - an audit hook is the process's, and so is what it notes
    _reader = reader


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook; see the audit event `open` in Python's documentation."""
    if event != "open":
        return
    path, mode, flags = arguments
    is_read = mode.startswith("r") if isinstance(mode, str) else flags & _READING == os.O_RDONLY
    if is_read and isinstance(path, str | os.PathLike):
        reads = _reads.setdefault(_reader, {})
        reads[os.path.abspath(path)] = None  # noqa: PTH100 - a hook that runs at every opening


def loaded_sources(reader: str) -> dict[str, str]:
    """The files of all modules that are loaded and those that a reader has read: path → digest.

    Neither installed ones nor those of `workers` or of the system. A file is looked at when it is
    first seen here: what is changed later was not what ran.
    """
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = dict.fromkeys(str(Path(file).absolute()) for file in modules if isinstance(file, str))
    found: dict[str, str] = {}
    for file in {**files, **_reads.get(reader, {})}:
        if file not in _digests and _is_users(file) and Path(file).is_file():
            digest = digest_of(Path(file))
            if digest is not None:
                _digests[file] = digest
        if file in _digests:
            found[file] = _digests[file]
    return found


def digest_of(path: Path) -> str | None:
    """What tells whether a file has changed: its SHA-256, of a large one size and time; None for no file."""
    try:
        found = path.stat()
        if found.st_size > _LARGE_BYTES:
            return f"{found.st_size} bytes of {found.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _is_users(file: str) -> bool:
    return not (is_installed(file) or file.startswith((_WORKERS, *_SYSTEM)) or _COMPILED in file)
