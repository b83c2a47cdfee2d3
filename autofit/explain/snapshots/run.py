"""Run: a memory snapshot that was followed block by block, with the lives of its requests and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from autofit.errors import UsageError
from autofit.explain.snapshots.steps import step_starts
from autofit_workers.process.garbage import without_collections
from autofit_workers.replay.snapshots import Snapshot
from autofit_workers.replay.snapshots.blocks import Followed, follow
from autofit_workers.replay.snapshots.files import (
    SnapshotFile,
    open_snapshot,
    read_snapshots,
    unpacked,
)
from autofit_workers.replay.snapshots.frames import short
from autofit_workers.spec.documents import DocumentError
from autofit_workers.spec.pickles import MOST_PICKLE_BYTES

BEFORE = "(before the recording)"
NO_LINE = "(no line: backward, or another thread)"
_WRITE = "give a file that torch.cuda.memory._dump_snapshot(FILE) wrote, or NAME.events.csv of one"


class SnapshotError(UsageError):
    """A file is no memory snapshot, is damaged, or is beyond what autofit reads."""

    kind = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Memory of a real run on one device, from its snapshot.

    Positions are numbers of followed events: allocations and frees, those from before the recording first.

    Attributes:
        births, deaths: when each request was allocated and freed; a request that never was freed has the
            number of all events.
        starts: positions where steps begin; whole steps lie between two of them. Empty if none is known.
        names_steps: whether the program named its steps.
    """

    snapshot: Snapshot
    followed: Followed
    births: Sequence[int]
    deaths: Sequence[int]
    starts: tuple[int, ...]
    names_steps: bool

    @property
    def num_events(self) -> int:
        return len(self.followed.events)

    @property
    def num_steps(self) -> int:
        """Number of whole steps that were recorded; 0 if it is not known."""
        return max(len(self.starts) - 1, 0)

    @property
    def peak_position(self) -> int:
        """Number of events until the allocated memory first reaches its peak, from the first event on."""
        first = max(self.followed.num_before - 1, 0)
        allocated = self.followed.allocated[first:]
        return first + allocated.index(max(allocated)) + 1 if allocated else 0

    def alive_at(self, position: int) -> list[int]:
        """Requests that are allocated after the first `position` events."""
        lives = zip(self.births, self.deaths, strict=True)
        return [number for number, (birth, death) in enumerate(lives) if birth < position <= death]

    def line(self, request: int) -> str:
        """Line of the user's that a request comes from, without folders; or why there is none."""
        source = self.followed.sources[request]
        if source.where:
            return short(source.where)
        return BEFORE if request < self.followed.num_before else NO_LINE


def open_run(path: Path) -> Run:
    """Reads and follows a memory snapshot: a pickle, or CSV.

    Raises:
        SnapshotError: the file cannot be read, or is no snapshot; the message names it.
    """
    return run_of(read_content(path))


def read_content(path: Path) -> SnapshotFile:
    """Content of a file that may be a snapshot, unpacked; raises `SnapshotError` if it cannot be read."""
    try:
        return open_snapshot(path)
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror or error}; {_WRITE}") from error
    except DocumentError as error:
        raise SnapshotError(f"{path} {error}: {_WRITE}") from error


def in_content(name: str, stream: BinaryIO) -> SnapshotFile:
    """Content of a stream that may be a snapshot, unpacked; raises `SnapshotError` if it is too large."""
    data = stream.read(MOST_PICKLE_BYTES + 1)
    if len(data) > MOST_PICKLE_BYTES:
        raise SnapshotError(f"{name} is larger than {MOST_PICKLE_BYTES >> 20} MiB; {_WRITE}")
    try:
        return unpacked(name, data)
    except DocumentError as error:
        raise SnapshotError(f"{name} {error}: {_WRITE}") from error


@without_collections()
def run_of(file: SnapshotFile) -> Run:
    """Follows the snapshot in a file's content, on the device with the most reserved.

    Raises:
        SnapshotError: the content is no snapshot; the message names the file.
    """
    name = file.path or file.name
    try:
        found = read_snapshots(file)
    except OSError as error:
        reason = error.strerror or error
        raise SnapshotError(f"cannot read the tables of {name}: {reason}; {_WRITE}") from error
    except DocumentError as error:
        raise SnapshotError(f"{name} {error}: {_WRITE}") from error
    if not found:
        raise SnapshotError(
            f"{name} is a snapshot of a process that held nothing: take it while the model is on the device"
        )
    snapshot = max(
        found.values(), key=lambda held: (sum(each.size for each in held.segments), len(held.events))
    )
    try:
        followed = follow(snapshot)
    except ValueError as error:
        raise SnapshotError(
            f"{name} has events that contradict each other ({error}): take the snapshot again"
        ) from error
    if not followed.events:
        raise SnapshotError(
            f"{name} has no allocations: call torch.cuda.memory._record_memory_history() before the steps"
        )
    return _run(snapshot, followed)


def _run(snapshot: Snapshot, followed: Followed) -> Run:
    births = [0] * len(followed.sources)
    deaths = [len(followed.events)] * len(followed.sources)
    for position, event in enumerate(followed.events):
        if event >= 0:
            births[event] = position
        else:
            deaths[~event] = position
    starts, named = step_starts(snapshot, followed)
    return Run(
        snapshot=snapshot,
        followed=followed,
        births=births,
        deaths=deaths,
        starts=starts,
        names_steps=named,
    )
