"""Memory of the machine and of processes in bytes, as Linux reports it; `ps` and `vm_stat` elsewhere."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from autofit_workers.process import operating_system, process_table

_KIB = 1024
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc_pid_clear_refs(5): sets the peak resident set to the current one
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_VM_STAT, _SECONDS = "/usr/bin/vm_stat", 5.0


def status_bytes(*names: str, process: int | str = "self") -> int | None:
    """Sum in bytes of fields such as `VmHWM` of a process's status; None where the process is not found."""
    with suppress(OSError):
        return _sum_of_lines(_PROC / str(process) / "status", names)
    return None


def reset_peak_resident() -> None:
    """Sets this process's peak resident set to its current one.

    Raises:
        OSError: the kernel or a sandbox does not allow it.
    """
    _CLEAR_REFS.write_text(_RESET_PEAK)


def peak_resident_bytes() -> int:
    """Peak resident set of this process in bytes, since the peak was last reset."""
    return status_bytes("VmHWM") or operating_system.peak_resident_bytes()


def resident_bytes(process: int) -> int:
    """Bytes of a process's memory that no file backs, private, shared or swapped; 0 if it is gone.

    Systems other than Linux report the resident set, which counts its libraries too.
    """
    if not operating_system.is_linux():
        return process_table.resident_bytes(process)
    return status_bytes("RssAnon", "RssShmem", "VmSwap", process=process) or 0


def proportional_bytes(process: int) -> int:
    """Bytes as `resident_bytes`, with pages that processes share divided among them; slower to read."""
    num_bytes = 0
    with suppress(OSError):
        path = _PROC / str(process) / "smaps_rollup"
        num_bytes = _sum_of_lines(path, ("Pss_Anon", "Pss_Shmem", "SwapPss"))
    return num_bytes or resident_bytes(process)  # older kernels do not report shares


def _sum_of_lines(path: Path, names: tuple[str, ...]) -> int:
    total_bytes = 0
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in names:
            total_bytes += int(value.split()[0]) * _KIB
    return total_bytes


def available_bytes() -> int | None:
    """Bytes available without swapping: the least of the machine and control groups; None if unknown."""
    if not operating_system.is_linux():
        return _available_of_mach()
    available: list[int] = []
    with suppress(OSError):
        available.append(_sum_of_lines(_PROC / "meminfo", ("MemAvailable",)))
    for folder, limit, usage in _memory_groups():
        with suppress(OSError, ValueError):  # `max` is no number: no limit
            limit_bytes = int((folder / limit).read_text())
            cache_bytes = _cache_bytes(folder / "memory.stat")
            available.append(limit_bytes - int((folder / usage).read_text()) + cache_bytes)
    return min(available, default=None)


def _available_of_mach() -> int | None:
    """Bytes that macOS has left by `vm_stat`; None on a system without it."""
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run([_VM_STAT], capture_output=True, text=True, check=True, timeout=_SECONDS).stdout  # noqa: S603
        return pages_left(told)
    return None


def pages_left(told: str) -> int | None:
    """Bytes of pages that are free or may be taken from caches, by what `vm_stat` printed; None if unread."""
    size = re.search(r"page size of (\d+) bytes", told)
    counts = dict(re.findall(r"^Pages (free|inactive|speculative): +(\d+)\.$", told, re.MULTILINE))
    return int(size[1]) * sum(map(int, counts.values())) if size and "free" in counts else None


def _cache_bytes(path: Path) -> int:
    """Bytes of cached files that count as used but are given up when memory is short."""
    values = dict(line.split() for line in path.read_text().splitlines())
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def num_kernel_kills() -> int | None:
    """Number of processes that the kernel has killed for lack of memory; None if it is not reported.

    The count is that of this process's control group, of either version, else the machine's.
    """
    events = ((folder / "memory.events", folder / "memory.oom_control") for folder, *_ in _memory_groups())
    for path in (*(path for pair in events for path in pair), _PROC / "vmstat"):
        with suppress(OSError):
            values = dict(line.split() for line in path.read_text().splitlines())
            if "oom_kill" in values:
                return int(values["oom_kill"])
    return None


def _memory_groups() -> Iterator[tuple[Path, str, str]]:
    """Yields folders of this process's memory control group, with the names of its limit and usage.

    In a container this path may be the host's, while the container's own group is mounted at the top.
    """
    lines = []
    with suppress(OSError):
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            tops, limit, usage = [_CGROUPS, _CGROUPS / "unified"], "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            tops, limit, usage = [_CGROUPS / "memory"], "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        for top in tops:
            for folder in (top / path.lstrip("/"), top):
                yield folder, limit, usage
