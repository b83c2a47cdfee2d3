"""Restrictions that deny a process most effects on others, where the kernel allows no namespaces.

    files    Landlock: it writes only to temporary folders, caches and a few devices
    others   Landlock: its signals and its debugging reach only processes of its own
    calls    seccomp: see `seccomp.restrict_calls`

All restrictions hold for libraries in any language, and for all processes that it starts.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from dataclasses import dataclass

from autofit_workers.process.boundary import kernel, landlock, seccomp
from autofit_workers.process.scratch import shared_folders

_DEVICES = ("null", "zero", "full", "random", "urandom", "ptmx", "pts", "shm", "nvidia*", "dri", "kfd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Kinds of restrictions that the kernel has put on a process, as flags."""

    files: bool = False
    others: bool = False
    calls: bool = False


def restrict() -> Restrictions:
    """Denies this process, for good, writes, signals and calls that affect others, as far as the kernel can.

    Call it while the process has one thread.
    """
    version, calls = 0, False
    with suppress(OSError):  # the answer's note names what the kernel refuses
        kernel.drop_capabilities(kernel.OF_FILES if os.geteuid() == 0 else ())
        version = landlock.restrict_files([*shared_folders(), f"/proc/{os.getpid()}", *_devices()])
    with suppress(OSError):
        seccomp.restrict_calls(truncates=version >= landlock.TRUNCATES)
        calls = True
    return Restrictions(files=version > 0, others=version >= landlock.SCOPES, calls=calls)


def _devices() -> list[str]:
    return [path for name in _DEVICES for path in glob.glob(f"/dev/{name}")]  # noqa: PTH207
