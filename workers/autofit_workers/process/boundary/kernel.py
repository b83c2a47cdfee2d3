"""Linux system calls that Python lacks, with errors as `OSError`; see the manual pages of their names."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterable, Sequence
from fcntl import ioctl

# linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# sys/mount.h
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2
# linux/capability.h: capabilities by which root reads and writes files of other users
OF_FILES = CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID = range(5)

_MOUNT_ATTR_RDONLY = 0x1
_AT_RECURSIVE = 0x8000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_KEYCTL_JOIN_SESSION_KEYRING = 1
_CAPABILITY_VERSION = 0x20080522
_MOST_CAPABILITIES = 64
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
# Numbers of system calls that glibc has no function for: asm/unistd.h.
_OF_ALL_MACHINES = {
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "keyctl": 250, **_OF_ALL_MACHINES},
    "aarch64": {"pivot_root": 41, "capset": 91, "keyctl": 219, **_OF_ALL_MACHINES},
}


def unshare(flags: int) -> None:
    """Moves this process, or for `CLONE_NEWPID` its children, into new namespaces."""
    _check(_libc().unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """Mounts a file system at `target`, or changes a mount."""
    texts = (None if text is None else os.fsencode(text) for text in (source, target, kind))
    _check(_libc().mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode()), target)


def unmount(target: str, flags: int = 0) -> None:
    """Unmounts the mount at `target`."""
    _check(_libc().umount2(os.fsencode(target), flags), target)


def pivot_root(new_root: str, old_root: str) -> None:
    """Makes the mount `new_root` the root of the file tree, and moves the old root to `old_root`."""
    call("pivot_root", os.fsencode(new_root), os.fsencode(old_root))


def make_read_only(target: str, *, with_mounts_below: bool = True) -> None:
    """Makes a mount read-only, with all mounts below it unless told otherwise."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    which = _AT_RECURSIVE if with_mounts_below else 0
    arguments = (ctypes.c_int(-1), os.fsencode(target), ctypes.c_uint(which))
    call("mount_setattr", *arguments, attributes, ctypes.c_size_t(len(attributes)))


def drop_capabilities(kept: Iterable[int] = ()) -> None:
    """Drops all capabilities of root but those in `kept`, for this process and its descendants."""
    kept = frozenset(kept)
    prctl = _libc().prctl
    for number in set(range(_MOST_CAPABILITIES)) - kept:
        prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for numbers that this kernel lacks
    mask = sum(1 << each for each in kept)
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    data = struct.pack("IIIIII", mask, mask, 0, 0, 0, 0)
    call("capset", header, data)
    _check(prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def die_with_parent(signal_number: int) -> None:
    """Has the kernel send this process `signal_number` when its parent ends."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def hide_from_others() -> None:
    """Denies unprivileged processes access to this process's files, memory and program."""
    _check(_libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def leave_session_keyring() -> None:
    """Gives this process an empty keyring in place of its session's; see keyrings(7).

    Raises:
        OSError: the kernel has no keyrings, or lets nobody use them.
    """
    call("keyctl", ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), None)


def set_filter(program: Sequence[bytes]) -> None:
    """Installs a seccomp filter for the system calls of this process and its descendants; see seccomp(2)."""
    steps = ctypes.create_string_buffer(b"".join(program))
    described = struct.pack("HxxxxxxP", len(program), ctypes.addressof(steps))
    _check(_libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, described, 0, 0), "prctl")


def call(name: str, *arguments: object) -> int:
    """Makes a system call that glibc has no function for, and returns its result.

    Raises:
        OSError: the call fails.
    """
    number = _NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        raise OSError(f"{name} is not known on {platform.machine()}")
    result = _libc().syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        _check(result, name)
    return int(result)


def bring_loopback_up() -> None:
    """Turns on the loopback interface, in a network namespace without any other interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        ioctl(any_socket, _SIOCGIFFLAGS, request)
        name, flags = struct.unpack("16sH22x", request)
        ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | _IFF_UP))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, subject: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
