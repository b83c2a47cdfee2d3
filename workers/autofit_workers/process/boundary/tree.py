"""File tree of a predicted workload: the machine's files for reading, with writes kept in memory.

    /            a file system in memory, of bounded size
    /home, …     an overlay for each top-level folder and each mount below it; a read-only mount stays
                 read-only, and so does a mount that cannot have an overlay
    /proc        that of the new process namespace; read-only but for the folders of processes
    /sys         read-only
    /dev         null, zero, full, random, urandom, terminals, and NVIDIA's, to be asked

An overlay over read-only files makes their sockets and named pipes unreachable, which a read-only mount does
not. Neither keeps devices from being written to, as those of `/dev` have to be.

One overlay over `/` is not possible: Linux refuses one whose lower layer has mounts that a user namespace may
not take apart, with EINVAL (`clone_private_mount`, fs/namespace.c).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath

from autofit_workers.process.boundary import kernel
from autofit_workers.process.boundary.mounts import Mount, visible_mounts

_KERNELS_OWN = ("/proc", "/sys", "/dev")
_STAGE = "/tmp"  # noqa: S108 - a folder that is always there, covered while the tree is made
_ROOT = f"{_STAGE}/root"
_MOST_ENTRIES = 4096
_COPIED_BYTES = 2**20
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_NVIDIA = "nvidia"
# Processes and threads at a time. Since Linux 6.14 a namespace has a limit of its own; before, the file sets
# the limit of the whole machine.
_MOST_PROCESSES, _PID_MAX_OF_NAMESPACES = 4096, (6, 14)
_SHARED_MEMORY_SHARE = 0.5  # of the bytes that may be written


def enter_tree(most_bytes: int, writable: Collection[str] | None = None) -> tuple[str, ...]:
    """Makes the workload's file tree and moves this process into it; keeps the current folder.

    The caller is the first process of new user, mount and process namespaces.

    Args:
        most_bytes: bytes that may be written in all.
        writable: paths of the mounts that the workload may write to, in memory; None for those that this
            process could write to. See `read_only`, which makes all of them read-only.

    Returns:
        Places that could not be made part of the tree, which are empty there.

    Raises:
        OSError: a necessary part cannot be made.
    """
    folder = os.getcwd()
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    mounts = mounts_of_files()
    if writable is not None:
        mounts = [replace(mount, is_writable=mount.place in writable) for mount in mounts]
    tree = _Tree({mount.place: mount for mount in mounts})
    tree.open_all()  # before the stage covers one of them
    kernel.mount("tmpfs", _STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={most_bytes},mode=755")
    os.mkdir(_ROOT)
    kernel.mount(_ROOT, _ROOT, None, kernel.MS_BIND)
    tree.lay()
    _make_proc(f"{_ROOT}/proc")
    _make_sys(f"{_ROOT}/sys")
    _make_dev(f"{_ROOT}/dev", int(most_bytes * _SHARED_MEMORY_SHARE))
    os.chdir(_ROOT)
    kernel.pivot_root(".", ".")  # the old root then lies over the new one
    kernel.unmount(".", kernel.MNT_DETACH)
    os.chdir("/")
    with suppress(OSError):  # the current folder is gone, which may happen without autofit too
        os.chdir(folder)
    return tuple(tree.missing)


def mounts_of_files() -> list[Mount]:
    """Mounts that this process sees, but those of `/proc`, `/sys` and `/dev`; parents first."""
    return [mount for mount in visible_mounts() if not _is_kernels(mount.place)]


def _is_kernels(place: str) -> bool:
    return f"{place}/".startswith(tuple(f"{each}/" for each in _KERNELS_OWN))


class _Tree:
    """Files and folders of the machine that are put into the workload's new root, one by one.

    Args:
        mounts: visible mounts, by their paths.

    Attributes:
        missing: places that could not be put into the new root.
    """

    def __init__(self, mounts: Mapping[str, Mount]) -> None:
        self._mounts = mounts
        # A folder with a mount below it cannot be the lower layer of an overlay (`has_locked_children`,
        # fs/namespace.c): its entries are put into the root one by one.
        self._split = {"/"}
        for place in mounts:
            self._split.update(str(parent) for parent in PurePosixPath(place).parents)
        self._entries: list[tuple[str, int]] = []
        self.missing: list[str] = []

    def open_all(self) -> None:
        """Opens all files and folders that go into the new root, parents first."""
        self._open_below("/")

    def _open_below(self, folder: str) -> None:
        """Opens files and folders in a folder, and in those of its folders that contain mounts."""
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            if _is_kernels(entry.path):
                continue
            if len(self._entries) == _MOST_ENTRIES:
                raise OSError(f"more than {_MOST_ENTRIES} files lie beside mounts, such as {entry.path}")
            try:
                number = os.open(entry.path, os.O_PATH | os.O_NOFOLLOW)
            except OSError:
                self.missing.append(entry.path)
                continue
            self._entries.append((entry.path, number))
            if entry.path in self._split and entry.is_dir(follow_symlinks=False):
                self._open_below(entry.path)

    def lay(self) -> None:
        """Puts all opened files and folders into the new root, and closes them."""
        for place, number in self._entries:
            try:
                self._lay(place, number)
            except OSError:
                self.missing.append(place)
            os.close(number)

    def _lay(self, place: str, number: int) -> None:
        found, target = os.fstat(number), f"{_ROOT}{place}"
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink("", dir_fd=number), target)
        elif stat.S_ISREG(found.st_mode):
            self._lay_file(found, number, target)
        elif stat.S_ISDIR(found.st_mode):
            os.mkdir(target)
            _like(number, target)
            if place not in self._split:
                self._lay_folder(place, number, target)

    def _lay_file(self, found: os.stat_result, number: int, target: str) -> None:
        """Puts a file into the new root: a small one as a writable copy, a large one or a mount read-only."""
        opened = os.open(target, os.O_CREAT | os.O_WRONLY)
        try:
            if found.st_size > _COPIED_BYTES or os.path.ismount(f"/proc/self/fd/{number}"):
                _bind_read_only(number, target)
                return
            with open(f"/proc/self/fd/{number}", "rb") as file:
                os.write(opened, file.read())
        finally:
            os.close(opened)
        _like(number, target)

    def _lay_folder(self, place: str, number: int, target: str) -> None:
        mount = self._mounts.get(place)
        try:
            _overlay(number, target)
        except OSError:
            _bind_read_only(number, target)
            return
        if mount is not None and not mount.is_writable:
            kernel.make_read_only(target)


def _like(number: int, target: str) -> None:
    """Gives `target` the owner, access rights and times of the file or folder open as descriptor `number`."""
    found = os.fstat(number)
    rights = stat.S_IMODE(found.st_mode)
    try:
        os.chown(target, found.st_uid, found.st_gid)
    except OSError:  # this user cannot give files to that owner: the target keeps its rights
        place = f"/proc/self/fd/{number}"
        mine = sum(right for right in (os.R_OK, os.W_OK, os.X_OK) if os.access(place, right))
        rights = (rights & ~stat.S_IRWXU) | mine << 6
    os.chmod(target, rights)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _overlay(lower: int, target: str) -> None:
    """Mounts an overlay of a folder at `target`: reads come from the folder, writes go to memory."""
    upper = f"{_STAGE}/written/{lower}"
    os.makedirs(f"{upper}/work")
    os.mkdir(f"{upper}/upper")
    _like(lower, f"{upper}/upper")
    # A descriptor, as a path may have colons and commas, which separate mount options.
    data = f"lowerdir=/proc/self/fd/{lower},upperdir={upper}/upper,workdir={upper}/work,userxattr"
    kernel.mount("overlay", target, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, data)


def _bind_read_only(lower: int, target: str) -> None:
    kernel.mount(f"/proc/self/fd/{lower}", target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only(target)


def _make_proc(target: str) -> None:
    """Mounts a new `/proc` at `target`, with files that could change the machine made read-only."""
    os.mkdir(target, 0o555)
    kernel.mount("proc", target, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    if _release() >= _PID_MAX_OF_NAMESPACES:
        with open(f"{target}/sys/kernel/pid_max", "w") as file:
            file.write(str(_MOST_PROCESSES))
    with open(f"{target}/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # in a nested user namespace the workload would have all rights of root again
    # Through these files root could change the machine from any namespace; changing their rights would too,
    # as they hold for all mounts of /proc.
    for entry in list(os.scandir(target)):
        if not (entry.name.isdigit() or entry.is_symlink()):
            with suppress(FileNotFoundError):  # a file of a module that was unloaded
                kernel.mount(entry.path, entry.path, None, kernel.MS_BIND)
                kernel.make_read_only(entry.path)


def _release() -> tuple[int, ...]:
    """First two numbers of the kernel's version, such as (6, 14)."""
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


def _make_sys(target: str) -> None:
    os.mkdir(target, 0o555)
    kernel.mount("/sys", target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only(target)


def _make_dev(target: str, most_bytes: int) -> None:
    """Mounts a small `/dev` at `target`, with the usual devices, NVIDIA's, and `shm` in memory."""
    os.mkdir(target, 0o755)
    kernel.mount("tmpfs", target, "tmpfs", kernel.MS_NOSUID, "size=1M,mode=755")
    for name in (*_DEVICES, *(each for each in os.listdir("/dev") if each.startswith(_NVIDIA))):
        source = f"/dev/{name}"
        if os.path.exists(source) and not os.path.isdir(source):
            os.close(os.open(f"{target}/{name}", os.O_CREAT | os.O_WRONLY))
            kernel.mount(source, f"{target}/{name}", None, kernel.MS_BIND)
            kernel.make_read_only(f"{target}/{name}")  # its rights; devices can be written to
    for name, link in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(link, f"{target}/{name}")
    os.mkdir(f"{target}/shm", 0o1777)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", f"{target}/shm", "tmpfs", flags, f"size={most_bytes},mode=1777")
    os.mkdir(f"{target}/pts", 0o755)
    kernel.mount(
        "devpts", f"{target}/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666"
    )
    os.symlink("pts/ptmx", f"{target}/ptmx")
