"""Checks whether memory grew since it was locked; the JSON document is `autofit.lock-check/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from autofit.errors import ExitCode
from autofit.identity import versions
from autofit.locks.configurations import Configuration, Configured
from autofit.locks.documents import plain
from autofit.locks.growth import Change, Comparison, compare
from autofit.locks.lock_file import (
    ANY_CARD,
    UPDATE_COMMAND,
    Lock,
    LockedConfiguration,
    LockedPeak,
    LockError,
    read_lock,
)
from autofit.locks.locked import Predict
from autofit.locks.locking import torch_of

LOCK_CHECK_SCHEMA = "autofit.lock-check/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCheck:
    """Whether memory grew since it was locked; `to_json()` is the document `autofit.lock-check/1`.

    Attributes:
        file: path of the lock, as it was named.
        tolerance: share of a peak by which it may grow.
        has_grown: whether a peak grew by more than that.
        configurations: for each configuration, release of PyTorch and card the memory as it was locked and
            now.
        notes: what to know besides, such as that a configuration was changed since.
    """

    file: str
    tolerance: float
    has_grown: bool
    configurations: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of `autofit check --lock`."""
        return ExitCode.GREW if self.has_grown else ExitCode.FOUND

    @property
    def shrunk(self) -> tuple[Comparison, ...]:
        """Configurations whose peak is lower by more than the tolerance."""
        return tuple(each for each in self.configurations if each.change is Change.SHRANK)

    def to_dict(self) -> dict[str, Any]:
        """Check as a dictionary of JSON's types."""
        return {"schema": LOCK_CHECK_SCHEMA, **plain(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def check_lock(
    path: Path,
    configured: Configured,
    names: Sequence[str],
    predict: Predict,
    *,
    tolerance: Decimal | None = None,
) -> LockCheck:
    """Predicts what is locked anew, and compares it with the lock.

    Configurations are those of pyproject.toml, and those that the lock alone has with their options. Entries
    without options, as tests write them, are left out: the tests check them.

    Args:
        path: file of the lock.
        configured: content of `[tool.autofit.lock]`.
        names: configurations to check; all if empty.
        predict: predicts configurations, with all holders.
        tolerance: share of a peak by which it may grow; None for the configured one.

    Raises:
        LockError: the file is no lock, or lacks an entry; nothing is predicted then.
        AutofitError: a configuration cannot be predicted.
    """
    lock = read_lock(path)
    wanted = _wanted(lock, path, configured, names)
    allowed = configured.tolerance if tolerance is None else tolerance
    for each in wanted:
        locked = lock.configurations[each.name]
        for gpu in each.gpus or (ANY_CARD,):
            _locked_peak(locked, _torch_of(each), gpu, path)
    compared = [
        compare(found.name, _locked_peak(lock.configurations[found.name], *_place(peak), path), peak, allowed)
        for found in predict(wanted)
        for peak in found.peaks
    ]
    return LockCheck(
        file=str(path),
        tolerance=float(allowed),
        has_grown=any(each.change is Change.GREW for each in compared),
        configurations=tuple(compared),
        notes=tuple(_notes(lock, wanted)),
    )


def _wanted(lock: Lock, path: Path, configured: Configured, names: Sequence[str]) -> list[Configuration]:
    """Configurations to be checked, each of which is locked.

    Raises:
        LockError: one is not locked, or nothing is there to be checked.
    """
    known = configured.with_those_of(lock)
    for name in names:
        if name not in known:
            lock.configuration(name, path)  # says so if there is none
            raise LockError(f"{name} is checked by the test that locked it: run that test with pytest")
    chosen = [each for name, each in known.items() if not names or name in names]
    if not chosen:
        raise LockError(f"{path} has nothing that this command could check: write it with `{UPDATE_COMMAND}`")
    for each in chosen:
        if each.name not in lock.configurations:
            raise LockError(
                f"{each.name} is configured and not in {path}: lock it with `{UPDATE_COMMAND} {each.name}`"
            )
    return chosen


def _torch_of(wanted: Configuration) -> str:
    """Version of PyTorch that a configuration is predicted for."""
    release = wanted.options.get("torch")
    return torch_of(versions(None if release is None else str(release)))


def _place(peak: LockedPeak) -> tuple[str, str]:
    return peak.torch, peak.gpu


def _locked_peak(locked: LockedConfiguration, torch: str, gpu: str, path: Path) -> LockedPeak:
    """Locked peak of a release and card; raises `LockError` if it is not locked, and says what is."""
    found = locked.peak(torch, gpu)
    if found is not None:
        return found
    there = [f"{_of_card(peak.gpu)} with PyTorch {peak.torch}" for peak in locked.peaks]
    raise LockError(
        f"{path} has no peak of {locked.name} {_of_card(gpu)} with PyTorch {torch}, "
        f"only {', '.join(there) or 'its options'}: add it with `{UPDATE_COMMAND} {locked.name}`"
    )


def _of_card(gpu: str) -> str:
    return "without a card" if gpu == ANY_CARD else f"on {gpu}"


def _notes(lock: Lock, wanted: Sequence[Configuration]) -> list[str]:
    """Sentences on configurations whose options are others than those that were locked."""
    changed = [
        each.name for each in wanted if lock.configurations[each.name].arguments not in ((), each.arguments)
    ]
    if not changed:
        return []
    verb = "has" if len(changed) == 1 else "have"
    return [f"{', '.join(changed)} {verb} other options than were locked: `{UPDATE_COMMAND}` locks these"]
