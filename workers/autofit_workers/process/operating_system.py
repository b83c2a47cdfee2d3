"""Differences between the operating systems that autofit runs on, in one place.

    Linux     what all other modules are written for; tested on x86-64
    macOS     no namespaces, Landlock, seccomp, `/proc`, limits of private memory, or cuDNN
    Windows   nothing: autofit runs in WSL there, which is Linux

A module that needs what one system lacks asks here, and says what it then goes without. Nothing here imports
what a system may lack.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path

_NAMES = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_TESTED = ("linux", "x86_64")
# Platforms on which nobody ran autofit, but whose wheels `tests/versions/platforms.py` reads.
_READ = (("linux", "aarch64"), ("darwin", "arm64"))
_KIB = 1024


def name() -> str:
    """Name of the operating system, such as `macOS`."""
    return _NAMES.get(sys.platform, sys.platform)


def is_linux() -> bool:
    """True on Linux, with its system calls and its `/proc`."""
    return sys.platform == "linux"


def unsupported() -> str | None:
    """Sentence on a system on which autofit does not run, with the next step; None elsewhere."""
    if sys.platform not in ("win32", "cygwin"):
        return None
    return (
        "autofit does not run on Windows itself: run it in WSL (`wsl --install`, then install autofit in "
        "there, as on Linux)"
    )


def untested() -> str:
    """Predicate on what is known of predictions on this platform; empty where they are tested."""
    machine = (sys.platform, platform.machine())
    if machine == _TESTED:
        return ""
    if machine in _READ:
        return "nobody ran autofit here: its hooks were compared with PyTorch's wheel for this platform"
    return "nothing is known of autofit here"


def library(stem: str) -> str:
    """File name of a shared library, such as `libc10.dylib` for `c10`."""
    return f"lib{stem}.dylib" if sys.platform == "darwin" else f"lib{stem}.so"


def num_processors() -> int:
    """Number of processors that this process may use; where it cannot be told, the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_resident_bytes() -> int:
    """Peak resident set of this process in its whole life, which macOS reports in bytes, and Linux in KiB."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB


def why_no_boundary() -> str:
    """Clause on a system that has nothing to isolate a workload by; empty on Linux, which has."""
    if is_linux():
        return ""
    return (
        f"{name()} has neither namespaces, Landlock nor seccomp, and a process that leaves both its parent "
        "and its group is not ended"
    )


def missing_for_cpu_trials() -> tuple[str, ...]:
    """Means of measuring on the CPU that this system lacks; empty on Linux."""
    if not is_linux():
        # macOS has RLIMIT_DATA, and does not count mapped memory, in which tensors lie.
        return (f"{name()} limits no process's private memory", "no peak can be read from /proc")
    missing = []
    if importlib.util.find_spec("resource") is None:
        missing.append("there are no limits of memory (RLIMIT_DATA)")
    if not Path("/proc/self/status").exists():
        missing.append("no peak can be read from /proc")
    return tuple(missing)
