"""Mount namespace in which a process sees the machine's files read-only, for a process that forks workloads.

A process that was forked outside of the boundary could change the rights of its program's file, to which
`/proc/self/exe` leads, and of its libraries' files. Here these belong to mounts that are read-only.
"""

from __future__ import annotations

import os

from autofit_workers.process.boundary import kernel
from autofit_workers.process.boundary.mounts import Mount
from autofit_workers.process.boundary.namespaces import map_users
from autofit_workers.process.boundary.tree import mounts_of_files


def make_files_read_only() -> list[str]:
    """Moves this process to new user and mount namespaces, in which no file can be written.

    Its program and libraries are those of the mounts before until it executes a program anew. Call it while
    the process has one thread.

    Returns:
        Paths of the mounts that are writable outside, for `enter_tree`.

    Raises:
        OSError: the kernel refuses the namespaces.
    """
    mounts = mounts_of_files()
    ready, enter = os.pipe()
    process = os.getpid()
    mapper = os.fork()  # users are mapped from outside
    if mapper == 0:
        os.close(enter)
        is_entered = os.read(ready, 1) == b"\n"
        os._exit(int(not is_entered or bool(map_users(process))))
    os.close(ready)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        os.write(enter, b"\n")
    finally:
        os.close(enter)
        _, status = os.waitpid(mapper, 0)
    if status:
        raise PermissionError("users cannot be mapped into a user namespace")
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)  # so that an unmount arrives here too
    for mount in filter(_is_reachable, mounts):
        kernel.make_read_only(mount.place, with_mounts_below=False)
    return [mount.place for mount in mounts if mount.is_writable]


def all_files_are_read_only() -> bool:
    """True if no mount of files that this user can reach is writable."""
    return not any(mount.is_writable for mount in filter(_is_reachable, mounts_of_files()))


def _is_reachable(mount: Mount) -> bool:
    """Whether the user can look up a mount: others' lie below folders that only they may enter.

    `Path.exists` would raise an error for these.
    """
    return os.path.exists(mount.place)  # noqa: PTH110
