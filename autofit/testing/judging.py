"""Judges a predicted peak: against the card, against a limit, and against the lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from autofit.locks.growth import Change, Comparison
from autofit.locks.lock_file import LockedHolder, LockedPeak
from autofit.questions.check import Answer, CheckResult
from autofit.testing.names import UPDATE
from autofit.units import format_bytes

_MOST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that a peak is judged by.

    Attributes:
        tolerance: share by which the peak may be higher than the one in the lock.
        max_peak_bytes: most bytes of the likely peak; None for no such limit.
        updates: whether peaks are written to the lock, so that none has to be there.
    """

    tolerance: Decimal
    max_peak_bytes: int | None
    updates: bool


def problems_of(
    name: str, checked: CheckResult, peak: LockedPeak, compared: Comparison, limits: Limits
) -> list[str]:
    """Problems of a test's peak, each a block of text with the next step; empty if the test passes.

    Args:
        name: name of the test.
        checked: whether the peak fits the card.
        peak: the peak, with its holders.
        compared: the peak beside that of the lock.
        limits: what the test allows.
    """
    problems = []
    if checked.verdict is not Answer.FITS:
        problems.append(_too_large_for_card(checked, peak))
    if limits.max_peak_bytes is not None and peak.likely_bytes > limits.max_peak_bytes:
        problems.append(_above_limit(checked, peak, limits.max_peak_bytes))
    if limits.updates:
        return problems
    if compared.change is Change.GREW:
        problems.append(_grown(checked, compared, limits.tolerance))
    elif compared.change is Change.NEW and limits.max_peak_bytes is None and not problems:
        problems.append(
            f"no peak of {name} is recorded for {_where(checked, peak.torch)} (it is "
            f"{format_bytes(peak.likely_bytes)} now): run pytest {UPDATE} to record it, or give the mark a "
            "limit such as max_peak='10GiB'"
        )
    return problems


def _too_large_for_card(checked: CheckResult, peak: LockedPeak) -> str:
    usable = format_bytes(checked.budget.usable_bytes)
    is_sure = checked.verdict is Answer.DOES_NOT_FIT
    said = "does not fit" if is_sure else "may not fit"
    return _block(
        f"batch {checked.batch_size} {said} {checked.device.name}: the peak is {_range(peak)}, and "
        f"{usable} are usable there",
        "largest:",
        _largest(peak.holders),
        "Next: take a smaller batch, or another setting that saves memory; `autofit tune` finds both.",
    )


def _above_limit(checked: CheckResult, peak: LockedPeak, limit: int) -> str:
    return _block(
        f"the peak of batch {checked.batch_size} on {checked.device.name} is {_range(peak)}, and max_peak is "
        f"{format_bytes(limit)}",
        "largest:",
        _largest(peak.holders),
        "Next: save memory where the largest lines take it, or raise max_peak in the test.",
    )


def _grown(checked: CheckResult, compared: Comparison, tolerance: Decimal) -> str:
    before, after = compared.before, compared.after
    assert before is not None
    rows = [
        f"          {'likely':>12} {'high':>12}",
        f"recorded  {format_bytes(before.likely_bytes):>12} {format_bytes(before.high_bytes):>12}",
        f"now       {format_bytes(after.likely_bytes):>12} {format_bytes(after.high_bytes):>12}",
    ]
    grown = [
        f"{f'+{format_bytes(line.difference_bytes)}':>13}  {line.place}  {line.module or '(no module)'}"
        f"{f'  {line.code}' if line.file is not None and line.code else ''}"
        for line in compared.grown_lines
    ]
    return _block(
        f"memory of batch {checked.batch_size} grew by {_share(before.likely_bytes, after.likely_bytes)} on "
        f"{_where(checked, compared.torch)}, where {tolerance:.3%} are allowed".replace(".000%", "%"),
        "",
        rows,
        "",
        "grew most:" if grown else "",
        grown[:_MOST_LINES],
        f"Next: undo the growth, or record it if it is meant: pytest {UPDATE}",
    )


def _share(before_bytes: int, after_bytes: int) -> str:
    """Growth in percent, as `12.3 %`; in bytes where the likely peak did not grow."""
    if before_bytes <= 0 or after_bytes <= before_bytes:
        return format_bytes(max(after_bytes - before_bytes, 0))
    return f"{100 * (after_bytes - before_bytes) / before_bytes:.1f} %"


def _where(checked: CheckResult, torch: str) -> str:
    return f"{checked.device.name} with PyTorch {torch}"


def _range(peak: LockedPeak) -> str:
    return f"{format_bytes(peak.likely_bytes)} likely, {format_bytes(peak.high_bytes)} at most"


def _largest(holders: Iterable[LockedHolder]) -> list[str]:
    return [
        f"{format_bytes(each.num_bytes):>13}  {each.line}  {each.module or '(no module)'}"
        f"{f'  {each.code}' if each.code else ''}"
        for each in list(holders)[:_MOST_LINES]
    ]


def _block(*parts: str | list[str]) -> str:
    """Text of lines and lists of lines, the latter indented; empty lists vanish with their titles."""
    return "\n".join(_lines(parts))


def _lines(parts: Iterable[str | list[str]]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        else:
            yield from (f"  {line}" for line in part)
