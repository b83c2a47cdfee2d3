"""Peaks of the marked tests of a run: in reports, in the lock, and at the end of pytest's output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autofit.errors import AutofitError
from autofit.locks.growth import Change, Comparison
from autofit.locks.lock_file import LockedConfiguration, LockedPeak, lock_text, read_lock_if_any, write_lock
from autofit.locks.locking import shortened
from autofit.questions.check import Answer, CheckResult
from autofit.testing.names import LOCK_FILE
from autofit.units import format_bytes
from autofit_workers.spec.plain import from_plain


def lock_path(config: pytest.Config) -> Path:
    """Path of the lock with the peaks of tests."""
    return config.rootpath / str(config.getini(LOCK_FILE))


def found(checked: CheckResult, peak: LockedPeak, compared: Comparison) -> dict[str, Any]:
    """Plain data of what was found out about a test, which its report carries.

    Args:
        checked: whether the peak fits the card.
        peak: the peak, with its holders.
        compared: the peak beside that of the lock.
    """
    short = shortened(LockedConfiguration(name=compared.name, peaks=(peak,))).peaks[0]
    return {
        "peak": {
            **dataclasses.asdict(short),
            "holders": [dataclasses.asdict(each) for each in short.holders],
        },
        "card": checked.device.name,
        "batch_size": checked.batch_size,
        "fits": checked.verdict is Answer.FITS,
        "usable_bytes": checked.budget.usable_bytes,
        "recorded_bytes": None if compared.before is None else compared.before.likely_bytes,
        "change": str(compared.change),
    }


def update_lock(config: pytest.Config, of_tests: Mapping[str, Mapping[str, Any]]) -> str:
    """Writes the peaks of tests that fit their cards to the lock; others keep what is recorded.

    Args:
        of_tests: data from `found`, by the name of the test.

    Returns:
        Sentence on why the lock cannot be written; empty if it was.
    """
    path = lock_path(config)
    try:
        lock = before = read_lock_if_any(path)
        for name, each in of_tests.items():
            if each["fits"]:
                known = lock.configurations.get(name) or LockedConfiguration(name=name)
                lock = lock.with_configuration(known.with_peak(from_plain(LockedPeak, each["peak"])))
        if not path.exists() or lock_text(lock) != lock_text(before):
            write_lock(path, lock)
    except AutofitError as error:
        return str(error)
    return ""


def summary_lines(of_tests: Mapping[str, Mapping[str, Any]], *, updates: bool) -> Iterator[str]:
    """Lines for the end of pytest's output, one a test, in the order of their names."""
    width = max(map(len, of_tests))
    for name, each in sorted(of_tests.items()):
        peak = each["peak"]
        yield (
            f"{name:{width}}  {format_bytes(peak['likely_bytes']):>11} likely, "
            f"{format_bytes(peak['high_bytes']):>11} at most of {format_bytes(each['usable_bytes'])} on "
            f"{each['card']}, batch {each['batch_size']}: {_said(each, updates=updates)}"
        )


def _said(each: Mapping[str, Any], *, updates: bool) -> str:
    if not each["fits"]:
        return "does not fit for sure"
    if updates:
        return "recorded"
    if each["change"] == Change.NEW:
        return "not recorded"
    difference = each["peak"]["likely_bytes"] - each["recorded_bytes"]
    return "as recorded" if not difference else f"{'+' if difference > 0 else ''}{format_bytes(difference)}"
