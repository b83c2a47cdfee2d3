"""Landlock: kernel rules by which a process restricts its own writes to files and its signals.

The rules hold for all code of the process, in any library, and for all processes that it starts. They
need neither root rights nor namespaces. See landlock(7) and linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from autofit_workers.process.boundary import kernel

# Rights that the rules are about, by the version of Landlock that brought them.
_WRITE_FILE, _REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FOLDER = 1 << 1, 1 << 4, 1 << 5, 1 << 7
_MAKE_OTHERS = 1 << 6 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12  # devices, files, sockets, pipes, links
_REFER, _TRUNCATE = 1 << 13, 1 << 14
TRUNCATES = 3  # first version that knows `truncate`
SCOPES = 6  # first version that knows signals and abstract sockets
_FILES = {
    1: _WRITE_FILE | _REMOVE_FOLDER | _REMOVE_FILE | _MAKE_FOLDER | _MAKE_OTHERS,
    2: _REFER,
    TRUNCATES: _TRUNCATE,
}
_OF_A_FILE = _WRITE_FILE | _TRUNCATE
_FOLDERS_ALONE = _MAKE_FOLDER | _REMOVE_FOLDER
_SCOPED_SOCKETS, _SCOPED_SIGNALS = 1, 2

_ASK_VERSION = 1
_PATH_BENEATH = 1
_O_PATH = getattr(os, "O_PATH", 0)


def version() -> int:
    """Landlock version (ABI) of the kernel, as a number.

    Raises:
        OSError: the kernel has no Landlock, or does not let this process use it.
    """
    return kernel.call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))


def restrict_files(writable: Iterable[str]) -> int:
    """Restricts this process's writes to `writable`; elsewhere it may only make and remove empty folders.

    The process must be unable to gain further rights (`kernel.drop_capabilities`).

    Args:
        writable: paths of files, and of folders with everything in them. Paths that do not exist are left
            out.

    Returns:
        The version of Landlock in use, which decides what else is restricted. From version `SCOPES` on, this
        process can reach only its own descendants by signals and abstract sockets. Before version
        `TRUNCATES`, it can still shorten any file by `truncate`.

    Raises:
        OSError: the kernel does not allow it.
    """
    found = version()
    handled = sum(rights for since, rights in _FILES.items() if since <= found)
    scoped = _SCOPED_SOCKETS | _SCOPED_SIGNALS if found >= SCOPES else 0
    attributes = struct.pack("QQQ", handled, 0, scoped)[: None if scoped else 8]
    size = ctypes.c_size_t(len(attributes))
    rules = kernel.call("landlock_create_ruleset", attributes, size, ctypes.c_uint(0))
    try:
        _allow(rules, "/", _FOLDERS_ALONE)
        for path in writable:
            if os.path.isdir(path):  # noqa: PTH112 - asked before anything else is imported
                _allow(rules, path, handled)
            elif os.path.exists(path):  # noqa: PTH110
                _allow(rules, path, handled & _OF_A_FILE)
        kernel.call("landlock_restrict_self", ctypes.c_int(rules), ctypes.c_uint(0))
    finally:
        os.close(rules)
    return found


def _allow(rules: int, path: str, rights: int) -> None:
    place = os.open(path, _O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, place)
        kind = ctypes.c_int(_PATH_BENEATH)
        kernel.call("landlock_add_rule", ctypes.c_int(rules), kind, rule, ctypes.c_uint(0))
    finally:
        os.close(place)
