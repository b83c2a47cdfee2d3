"""Takes from a Python on Linux what macOS does not have, at its start: names, symbols, `/proc`, namespaces.

It is a simulation of what macOS lacks, and not macOS: the kernel, the C library, and the builds of PyTorch
and psutil stay those of Linux. It shows that no module fails for a missing name, and that predictions need
none of these; it shows nothing about how macOS's own calls behave.
"""

import asyncio
import builtins
import concurrent.futures.process
import ctypes
import ctypes.util
import errno
import fcntl
import getpass
import importlib.metadata
import io
import multiprocessing.context
import multiprocessing.pool
import os
import platform
import resource
import select
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import uuid
import webbrowser
from functools import wraps

import psutil

# Modules that decide by `sys.platform` when they are imported; they stay those of this system.
SETTLED = (
    asyncio,
    concurrent,
    getpass,
    importlib,
    shutil,
    ssl,
    subprocess,
    tempfile,
    urllib,
    uuid,
    webbrowser,
)
sysconfig.get_config_vars()
psutil.virtual_memory()

# `os.waitid` came to macOS with Python 3.13.
MISSING = {
    os: """
        copy_file_range eventfd fdatasync getrandom getresgid getresuid getxattr listxattr
        memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate removexattr
        sched_getaffinity sched_getparam sched_getscheduler sched_rr_get_interval
        sched_setaffinity sched_setparam sched_setscheduler setns setresgid setresuid setxattr
        splice unshare waitid P_ALL P_PID P_PIDFD P_PGID WEXITED WNOWAIT WSTOPPED O_DIRECT
        O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE RTLD_DEEPBIND
    """,
    signal: """
        SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait
        sigwaitinfo struct_siginfo
    """,
    resource: """
        prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_OFILE RLIMIT_RTPRIO RLIMIT_RTTIME
        RLIMIT_SIGPENDING RUSAGE_THREAD
    """,
    select: """
        epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLL_CLOEXEC
    """,
    fcntl: """
        F_ADD_SEALS F_GETPIPE_SZ F_NOTIFY F_SETLEASE F_SETPIPE_SZ F_SETSIG
    """,
    socket: """
        AF_ALG AF_NETLINK AF_PACKET SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_DOMAIN
        SO_PEERCRED SO_PROTOCOL
    """,
    time: """
        CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid
    """,
}
SYMBOLS = ("prctl", "unshare", "mount", "umount2", "capset", "setns", "malloc_trim", "mallopt", "mallinfo2")


class Library(ctypes.CDLL):
    """Library that lacks Linux's symbols, and whose file may be asked for by macOS's ending."""

    def __init__(self, name, *arguments, **named):
        own = name is not None and str(name).endswith(".dylib")
        super().__init__(f"{str(name).removesuffix('.dylib')}.so" if own else name, *arguments, **named)

    def __getattr__(self, name):
        if name in SYMBOLS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


def without_proc(call):
    """A function whose first argument is a path, in a system without `/proc`; psutil's here is Linux's."""

    @wraps(call)
    def called(path=".", *arguments, **named):
        asked = os.fspath(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if os.fsdecode(asked).startswith(("/proc", "/sys/fs")) and not is_of_psutil():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(asked))
        return call(path, *arguments, **named)

    return called


def is_of_psutil():
    frame = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith("psutil"):
            return True
        frame = frame.f_back
    return False


for module, names in MISSING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for module, name in (
    (builtins, "open"),
    (io, "open"),
    *((os, name) for name in ("access", "listdir", "lstat", "open", "readlink", "scandir", "stat")),
):
    setattr(module, name, without_proc(getattr(module, name)))
ctypes.CDLL = Library
selectors.DefaultSelector = selectors.PollSelector
multiprocessing.context._default_context.set_start_method("spawn")
platform.machine = lambda: "arm64"
sys.platform = "darwin"
