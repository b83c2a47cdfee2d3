"""Writes a lock, and says what changed against the one before; the JSON document is `autofit.locked/1`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from autofit.locks.configurations import Configuration
from autofit.locks.documents import plain
from autofit.locks.growth import Comparison, compare
from autofit.locks.lock_file import LockedConfiguration, lock_text, read_lock_if_any, write_lock
from autofit.locks.locking import shortened
from autofit.paths import require_writable

LOCKED_SCHEMA = "autofit.locked/1"

Predict = Callable[[Sequence[Configuration]], tuple[LockedConfiguration, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedAnswer:
    """Answer of `autofit lock`: what was written; `to_json()` is the document `autofit.locked/1`.

    Attributes:
        file: path of the lock, as it was named.
        is_changed: whether the file was written, as something in it differs from before.
        configurations: for each configuration, release of PyTorch and card the memory before and now.
    """

    file: str
    is_changed: bool
    configurations: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        """Answer as a dictionary of JSON's types."""
        return {"schema": LOCKED_SCHEMA, **plain(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def lock_configurations(wanted: Sequence[Configuration], path: Path, predict: Predict) -> LockedAnswer:
    """Predicts configurations, and writes them into a lock, whose other entries stay.

    Peaks of a configuration for other releases of PyTorch and other cards stay too, unless its options differ
    from those that were locked. A lock that would be the same is not written.

    Args:
        wanted: the configurations.
        path: file of the lock.
        predict: predicts configurations, with all holders.

    Raises:
        LockError: the file is no lock, or one of another version; it stays as it is.
        StorageError: the file cannot be written; checked before anything is predicted.
        AutofitError: a configuration cannot be predicted; nothing is written.
    """
    before = read_lock_if_any(path)
    require_writable(path)
    after, compared = before, []
    for found in predict(wanted):
        former = before.configurations.get(found.name)
        compared += _compared(former, found)
        after = after.with_configuration(_merged(former, shortened(found)))
    is_changed = not path.exists() or lock_text(after) != lock_text(before)
    if is_changed:
        write_lock(path, after)
    return LockedAnswer(file=str(path), is_changed=is_changed, configurations=tuple(compared))


def _merged(former: LockedConfiguration | None, found: LockedConfiguration) -> LockedConfiguration:
    """Configuration with what is found, and the former peaks of other releases and cards."""
    if former is None or former.arguments != found.arguments:
        return found
    merged = former
    for peak in found.peaks:
        merged = merged.with_peak(peak)
    return merged


def _compared(former: LockedConfiguration | None, found: LockedConfiguration) -> list[Comparison]:
    return [
        compare(
            found.name,
            None if former is None else former.peak(peak.torch, peak.gpu),
            peak,
            tolerance=Decimal(0),
        )
        for peak in found.peaks
    ]
