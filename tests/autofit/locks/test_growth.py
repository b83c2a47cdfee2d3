"""What grew is decided by the peaks and shown by the lines; code that moved or was renamed shows nothing."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest

from autofit.locks.growth import Change, LineChange, compare, line_changes
from autofit.locks.lock_file import LockedHolder, LockedPeak

_MIB = 1 << 20
_TWO_PERCENT = Decimal("0.02")


def _peak(*holders: LockedHolder, other_bytes: int = 0, **changed: int) -> LockedPeak:
    allocated = sum(each.num_bytes for each in holders) + other_bytes
    return LockedPeak(
        torch="2.13.0", gpu="t4", likely_bytes=changed.get("likely_bytes", allocated),
        high_bytes=changed.get("high_bytes", allocated), allocated_bytes=allocated, parameters_bytes=0,
        activations_bytes=0, other_bytes=other_bytes, holders=holders,
    )  # fmt: skip


def _held(mib: int, line: str, code: str = "", module: str = "layers.*") -> LockedHolder:
    return LockedHolder(module=module, line=line, code=code, num_bytes=mib * _MIB)


_A = _held(64, "model.py:10", "h = self.a(x)")
_B = _held(64, "model.py:11", "h = relu(h)")
_STATE = _held(30, "(optimizer state)")
_BEFORE = _peak(_A, _B, _STATE)


def _shown(before: LockedPeak, after: LockedPeak) -> list[tuple[str, str, int]]:
    changes = line_changes(before, after)
    return [(each.place, each.module, each.difference_bytes // _MIB) for each in changes]


def _moved(holder: LockedHolder, **changed: str) -> LockedHolder:
    return dataclasses.replace(holder, **changed)


@pytest.mark.parametrize(
    "after",
    [
        (_A, _B),
        (_moved(_A, line="model.py:90"), _moved(_B, line="model.py:10")),
        (_moved(_A, line="net.py:10"), _moved(_B, line="net.py:11")),
        (_moved(_A, code="h = self.first(x)"), _moved(_B, code="h = activate(h)")),
        (_moved(_A, module="blocks.*"), _moved(_B, module="blocks.*")),
        (
            _moved(_A, module="blocks.*", line="net.py:70", code="y = self.first(x)"),
            _moved(_B, module="blocks.*", line="net.py:71", code="y = activate(y)"),
        ),
    ],
    ids=["equal", "moved", "file", "function", "module", "all"],
)
def test_code_that_moved_or_was_renamed_shows_nothing(after: tuple[LockedHolder, ...]) -> None:
    found = compare("a", _BEFORE, _peak(*after, _STATE), Decimal(0))
    assert (found.change, found.lines, found.others_bytes) == (Change.SAME, (), 0)


def test_a_line_that_is_added_above_equal_ones_is_the_one_that_is_shown() -> None:
    kept = _held(64, "model.py:10", "self.kept = x.float()")
    after = _peak(kept, _moved(_A, line="model.py:11"), _moved(_B, line="model.py:12"), _STATE)
    assert _shown(_BEFORE, after) == [("model.py:10", "layers.*", 64)]


def test_a_line_that_holds_more_is_shown_with_both_sizes_and_where_it_was() -> None:
    after = _peak(dataclasses.replace(_B, num_bytes=128 * _MIB, line="model.py:13"), _A, _STATE)
    (change,) = line_changes(_BEFORE, after)
    assert change == LineChange(
        module="layers.*", file="model.py", line=13, former_line=11, code="h = relu(h)",
        before_bytes=64 * _MIB, after_bytes=128 * _MIB,
    )  # fmt: skip


def test_the_lines_are_in_the_order_of_their_growth_and_add_up() -> None:
    grown_state = _held(50, "(optimizer state)")
    new = _held(8, "loss.py:3", "return logits.float()", module="")
    found = compare("a", _BEFORE, _peak(_A, grown_state, new, other_bytes=5), _TWO_PERCENT)
    shown = [(each.place, each.difference_bytes // _MIB) for each in found.lines]
    assert shown == [("(optimizer state)", 20), ("loss.py:3", 8), ("model.py:11", -64)]
    assert found.lines[0].file is None
    assert [each.place for each in found.grown_lines] == ["(optimizer state)", "loss.py:3"]
    assert found.others_bytes == 5
    assert found.before is not None
    listed = sum(each.difference_bytes for each in found.lines) + found.others_bytes
    assert listed == found.after.allocated_bytes - found.before.allocated_bytes


def test_what_a_shortened_list_would_not_have_is_no_change_of_a_line() -> None:
    short = _peak(_A, other_bytes=94 * _MIB)
    assert _shown(short, _BEFORE) == []
    assert _shown(_BEFORE, short) == []


@pytest.mark.parametrize(
    ("likely", "high", "change"),
    [
        (1000, 2000, Change.SAME),
        (1020, 2040, Change.SAME),
        (1021, 2000, Change.GREW),
        (1000, 2041, Change.GREW),
        (900, 2041, Change.GREW),
        (980, 1960, Change.SAME),
        (979, 2000, Change.SHRANK),
        (1000, 1959, Change.SHRANK),
    ],
)
def test_a_peak_grew_where_it_is_higher_by_more_than_the_tolerance(
    likely: int, high: int, change: Change
) -> None:
    before, after = _peak(likely_bytes=1000, high_bytes=2000), _peak(likely_bytes=likely, high_bytes=high)
    assert compare("a", before, after, _TWO_PERCENT).change is change


def test_a_step_that_allocates_more_grew_though_its_blocks_leave_fewer_gaps() -> None:
    before = _peak(_A, likely_bytes=100 * _MIB, high_bytes=100 * _MIB)
    after = _peak(_A, _B, likely_bytes=90 * _MIB, high_bytes=90 * _MIB)
    assert compare("a", before, after, _TWO_PERCENT).change is Change.GREW


def test_a_configuration_that_is_not_locked_yet_is_new() -> None:
    found = compare("a", None, _BEFORE, _TWO_PERCENT)
    assert (found.change, found.before, found.difference_bytes) == (Change.NEW, None, 0)
