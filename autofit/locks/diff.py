"""Memory diff of two locks, profiles, configurations or revisions; the JSON document is `autofit.diff/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from autofit.errors import UsageError, did_you_mean
from autofit.explain.profile import Profile, alive_at, peak_position, profile_in, unreadable
from autofit.locks.configurations import TABLE, Configuration, chosen, read_configured
from autofit.locks.documents import plain
from autofit.locks.growth import Comparison, compare
from autofit.locks.holders import holders_at_peak
from autofit.locks.lock_file import (
    ANY_CARD,
    LOCK_NAME,
    LockedConfiguration,
    LockedPeak,
    parse_lock,
    read_lock_if_any,
)
from autofit.locks.locked import Predict
from autofit.locks.locking import torch_of
from autofit_workers.spec.documents import read_file
from autofit_workers.spec.pythons import StrEnum
from autofit_workers.spec.trace import Category

DIFF_SCHEMA = "autofit.diff/1"
_GZIP = b"\x1f\x8b"


class SideKind(StrEnum):
    """Kind of a diff's side."""

    LOCK = "lock"
    PROFILE = "profile"
    CONFIGURATION = "configuration"
    REVISION = "revision"
    WORKING_TREE = "working-tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a diff.

    Attributes:
        kind: `lock`, `profile`, `configuration`, `revision` or `working-tree`.
        title: name of the file, the configuration or the revision.
        configurations: its configurations, with the holders of each peak.
    """

    kind: SideKind
    title: str
    configurations: tuple[LockedConfiguration, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTitle:
    """Side of a diff as its document names it.

    Attributes:
        kind: `lock`, `profile`, `configuration`, `revision` or `working-tree`.
        title: name of the file, the configuration or the revision.
    """

    kind: SideKind
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDiff:
    """Memory before and after, by module and line; `to_json()` is the document `autofit.diff/1`.

    Attributes:
        before, after: what is compared.
        configurations: for each configuration, release of PyTorch and card the memory before and after.
        notes: what to know besides, such as configurations that one side lacks.
    """

    before: SideTitle
    after: SideTitle
    configurations: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Diff as a dictionary of JSON's types."""
        return {"schema": DIFF_SCHEMA, **plain(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def side_named(text: str, folder: Path, predict: Predict) -> Side:
    """Side of a diff: a lock or a saved profile if there is such a file, else a configuration by its name.

    Args:
        text: path of the file, or name of the configuration in pyproject.toml or in the lock.
        folder: absolute folder of the project.
        predict: predicts configurations, with all holders.

    Raises:
        UsageError: it is neither, or the file is damaged.
    """
    path = Path(text)
    if path.is_file():
        return _side_of_file(path, folder)
    known = read_configured(folder).with_those_of(read_lock_if_any(folder / LOCK_NAME))
    if text not in known:
        raise UsageError(
            f"{text} is no file and no configuration.{did_you_mean(text, known)} Give two locks, two "
            f"profiles of `autofit profile --save`, two names of [{TABLE}.configurations], or --rev A..B"
        )
    found = predict(chosen(known, (text,)))
    return Side(kind=SideKind.CONFIGURATION, title=text, configurations=found)


def _side_of_file(path: Path, folder: Path) -> Side:
    try:
        data = read_file(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if data.startswith(_GZIP):
        profile = profile_in(data, path)
        found = LockedConfiguration(name=profile.title, peaks=(_peak_of_profile(profile, folder),))
        return Side(kind=SideKind.PROFILE, title=str(path), configurations=(found,))
    lock = parse_lock(data, path)
    return Side(kind=SideKind.LOCK, title=str(path), configurations=tuple(lock.configurations.values()))


def _peak_of_profile(profile: Profile, folder: Path) -> LockedPeak:
    """Peak of a saved profile, whose interval is its likely peak alone."""
    alive = alive_at(profile, peak_position(profile))
    categories = [profile.trace.allocations[number].category for number in alive]

    def held(category: Category) -> int:
        pairs = zip(alive, categories, strict=True)
        return sum(profile.block_bytes[number] for number, of in pairs if of is category)

    return LockedPeak(
        torch=torch_of(profile.versions),
        gpu=profile.card or ANY_CARD,
        likely_bytes=profile.peak_reserved_bytes,
        high_bytes=profile.peak_reserved_bytes,
        allocated_bytes=profile.peak_allocated_bytes,
        parameters_bytes=held(Category.PARAMETER),
        activations_bytes=held(Category.ACTIVATION),
        holders=holders_at_peak(profile, folder),
    )


def diff_sides(before: Side, after: Side, notes: Sequence[str] = ()) -> MemoryDiff:
    """Memory diff of two sides: of what both have by its name, or of the one thing that each has.

    Raises:
        UsageError: both have nothing in common.
    """
    pairs, lacking = _pairs(before, after)
    compared, without_cards = list[Comparison](), list[str]()
    for old, new in pairs:
        name = new.name if old.name == new.name else f"{old.name} → {new.name}"
        peaks = _peaks(old, new)
        compared += [compare(name, first, second, Decimal(0)) for first, second in peaks]
        if len(peaks) < max(len(old.peaks), len(new.peaks)):
            without_cards.append(f"{name} has cards or releases of PyTorch that one side lacks")
    if not compared:
        raise UsageError(
            f"{before.title} and {after.title} have no configuration, card and release of PyTorch in common: "
            "compare what is alike"
        )
    return MemoryDiff(
        before=SideTitle(kind=before.kind, title=before.title),
        after=SideTitle(kind=after.kind, title=after.title),
        configurations=tuple(compared),
        notes=(*lacking, *without_cards, *notes),
    )


def _pairs(
    before: Side, after: Side
) -> tuple[list[tuple[LockedConfiguration, LockedConfiguration]], list[str]]:
    """Configurations of both sides that are compared, and sentences on those that one side lacks."""
    if len(before.configurations) == len(after.configurations) == 1:
        return [(before.configurations[0], after.configurations[0])], []
    old = {each.name: each for each in before.configurations}
    new = {each.name: each for each in after.configurations}
    lacking = [f"{name} is in {before.title} alone" for name in old if name not in new]
    lacking += [f"{name} is in {after.title} alone" for name in new if name not in old]
    return [(old[name], new[name]) for name in old if name in new], lacking


def _peaks(old: LockedConfiguration, new: LockedConfiguration) -> list[tuple[LockedPeak, LockedPeak]]:
    """Peaks of two configurations for the same card and release, or the one peak that each has."""
    if len(old.peaks) == len(new.peaks) == 1:
        return [(old.peaks[0], new.peaks[0])]
    there = {peak.place: peak for peak in old.peaks}
    return [(there[peak.place], peak) for peak in new.peaks if peak.place in there]


def diff_revisions(text: str, wanted: Sequence[Configuration], folder: Path, predict: Predict) -> MemoryDiff:
    """Memory diff of two revisions of the project, or of one and the working tree.

    Args:
        text: the revisions, such as `main..HEAD`, or one.
        wanted: configurations to predict at both.
        folder: absolute folder of the project in the working tree.
        predict: predicts configurations in the working tree, with all holders.

    Raises:
        UsageError: the folder is in no repository, or git does not know a revision.
        AutofitError: a configuration cannot be predicted at a revision; the message begins with its name.
    """
    from autofit.locks.revisions import Repository

    repository = Repository.of(folder)
    first, second = repository.revisions(text)
    found, notes = repository.predicted_at(first, wanted)
    before = Side(kind=SideKind.REVISION, title=first.title, configurations=found)
    if second is None:
        after = Side(kind=SideKind.WORKING_TREE, title="working tree", configurations=predict(wanted))
    else:
        found, more = repository.predicted_at(second, wanted)
        after = Side(kind=SideKind.REVISION, title=second.title, configurations=found)
        notes = (*notes, *more)
    return diff_sides(before, after, notes)
