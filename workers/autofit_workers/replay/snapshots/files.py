"""Finds out what a file of a snapshot is, and reads it: a pickle, or CSV, each gzipped or not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from autofit_workers.replay.snapshots.pickled import snapshots_in
from autofit_workers.replay.snapshots.snapshot import Snapshot
from autofit_workers.replay.snapshots.tables import EVENTS, HEADER, SEGMENTS, snapshot_of_tables
from autofit_workers.spec.documents import DocumentError, inflate, read_file
from autofit_workers.spec.pickles import MOST_PICKLE_BYTES

_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
_SUFFIX = ".gz"


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """Content of a file that may be a snapshot, and where it came from.

    Attributes:
        name: name of the file, without folders.
        data: content, unpacked.
        path: the file; None for standard input.
    """

    name: str
    data: bytes
    path: Path | None = None

    @property
    def is_pickle(self) -> bool:
        return self.data[:1] == _PICKLE

    @property
    def is_table(self) -> bool:
        return self.data.startswith((HEADER, b"segment_address,"))

    @property
    def is_snapshot(self) -> bool:
        """Whether the content begins as a snapshot does; reading may still find that there is none."""
        return self.is_pickle or self.is_table


def open_snapshot(path: Path) -> SnapshotFile:
    """Reads a file that may be a snapshot, and unpacks it if it is gzipped.

    Raises:
        OSError: the file cannot be read, or is larger than any snapshot that is read.
        DocumentError: it is gzipped and damaged, or grows too large.
    """
    return unpacked(path.name, read_file(path, MOST_PICKLE_BYTES), path)


def unpacked(name: str, data: bytes, path: Path | None = None) -> SnapshotFile:
    """Content that was read, unpacked if it is gzipped.

    Raises:
        DocumentError: it is gzipped and damaged, or grows too large.
    """
    is_packed = data.startswith(_GZIP)
    return SnapshotFile(name, inflate(data, MOST_PICKLE_BYTES) if is_packed else data, path)


def read_snapshots(file: SnapshotFile) -> dict[int, Snapshot]:
    """Snapshots in a file, by the number of the device.

    Raises:
        DocumentError: the file is no snapshot, or beyond a limit; the message is a predicate, to follow
            the file's name.
        OSError: the other table of a snapshot in CSV is there and cannot be read.
    """
    if file.is_pickle:
        return snapshots_in(file.data, file.name)
    if not file.is_table:
        raise DocumentError(
            "is no memory snapshot, which torch.cuda.memory._dump_snapshot writes as a pickle, nor CSV of one"
        )
    has_events = file.data.startswith(HEADER)
    other = _beside(file, SEGMENTS if has_events else EVENTS)
    if has_events:
        return {0: snapshot_of_tables(_name(file), file.data, other)}
    if other is None:
        raise DocumentError("has the segments of a snapshot, and its table of events is not beside it")
    return {0: snapshot_of_tables(_name(file), other, file.data)}


def _name(file: SnapshotFile) -> str:
    return file.name.removesuffix(_SUFFIX).removesuffix(EVENTS).removesuffix(SEGMENTS)


def _beside(file: SnapshotFile, suffix: str) -> bytes | None:
    """Content of the other table of a snapshot, packed or not; None if there is none."""
    if file.path is None or _name(file) == file.name.removesuffix(_SUFFIX):
        return None
    for packed in ("", _SUFFIX):
        other = file.path.parent / f"{_name(file)}{suffix}{packed}"
        if other.is_file() and os.access(other, os.R_OK):
            return open_snapshot(other).data
    return None
