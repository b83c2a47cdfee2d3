"""Mounts that a process sees, read from `/proc/self/mountinfo` (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Mount that a process sees: its path, its file system, and whether it is writable.

    Attributes:
        place: path that it is mounted at.
        kind: type of the file system, such as `ext4`.
        is_writable: whether neither the mount nor its file system is read-only.
    """

    place: str
    kind: str
    is_writable: bool


def visible_mounts(text: str | None = None) -> list[Mount]:
    """Mounts that no later mount hides, parents before the mounts below them.

    Args:
        text: content of `/proc/self/mountinfo`; this process's unless given.

    Raises:
        OSError: there is no such file.
    """
    if text is None:
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        mount = _read(line)
        below = mount.place.rstrip("/") + "/"
        # A mount hides what was mounted at its place before, and below it.
        found = {place: each for place, each in found.items() if not f"{place}/".startswith(below)}
        found[mount.place] = mount
    return sorted(found.values(), key=lambda mount: mount.place.count("/") if mount.place != "/" else 0)


def _read(line: str) -> Mount:
    of_mount, _, of_file_system = line.partition(" - ")
    fields, (kind, _, options) = of_mount.split(" "), of_file_system.split(" ", 2)
    is_writable = "ro" not in (fields[5].split(",")[0], options.split(",")[0])
    place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
    return Mount(place=place, kind=kind, is_writable=is_writable)
