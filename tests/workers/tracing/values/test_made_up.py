"""Numbers in place of values that are not there: they compute, and say what hangs on them."""

from __future__ import annotations

import json
import math
import operator
import pickle

import pytest

from autofit_workers.tracing.values.decisions import Decisions, begin
from autofit_workers.tracing.values.made_up import MadeUpFloat, MadeUpInt, made_up

LOSS, COUNT = MadeUpFloat(1.0), MadeUpInt(1)


@pytest.fixture(autouse=True)
def decisions() -> Decisions:
    found = Decisions()
    begin(found)
    return found


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (LOSS + 1, 2.0), (2.0 * LOSS, 2.0), (LOSS / 4, 0.25), (3 / LOSS, 3.0), (-LOSS, -1.0),
        (abs(LOSS), 1.0), (LOSS**2, 1.0),
        (round(LOSS, 3), 1.0), (sum([LOSS, LOSS]), 2.0), (COUNT / 5, 0.2),
        (LOSS * COUNT, 1.0), (COUNT * LOSS, 1.0), (1 / COUNT, 1.0), (LOSS / (LOSS - LOSS), 1.0),
    ],
)  # fmt: skip
def test_what_is_computed_with_a_made_up_number_is_made_up(result, value):
    assert (type(result), float.__float__(result)) == (MadeUpFloat, value)


@pytest.mark.parametrize(
    ("result", "value"),
    [(COUNT + 1, 2), (1 + COUNT, 2), (COUNT - COUNT, 0), (COUNT * 2, 2), (sum([COUNT] * 3), 3), (-COUNT, -1),
     (round(LOSS), 1), (math.ceil(LOSS), 1), (COUNT << 3, 8)],
)  # fmt: skip
def test_what_is_counted_with_one_is_made_up_too(result, value):
    assert (type(result), int.__int__(result)) == (MadeUpInt, value)


def test_they_can_be_printed_written_and_are_finite(decisions):
    assert f"{LOSS:.2f} {COUNT:3d} {COUNT} {LOSS / 2}" == "1.00   1 1 0.5"
    assert json.dumps([LOSS, COUNT]) == "[1.0, 1]"
    assert [type(each) for each in pickle.loads(pickle.dumps([LOSS, COUNT]))] == [float, int]
    assert math.isfinite(LOSS) and not math.isnan(LOSS)
    assert math.inf > LOSS
    assert math.exp(LOSS) > 0
    assert made_up(True) is True
    assert decisions.taken == {}


@pytest.mark.parametrize("other", [None, "nan"])
@pytest.mark.parametrize("number", [LOSS, COUNT])
def test_that_one_is_no_none_and_no_string_decides_nothing(number, other, decisions):
    assert operator.ne(number, other)
    assert not operator.eq(other, number)
    with pytest.raises(TypeError, match="not supported between"):
        operator.lt(number, other)
    assert decisions.taken == {}


@pytest.mark.parametrize(
    ("decide", "way"),
    [
        (lambda: LOSS < 3, True), (lambda: LOSS == 2.0, False), (lambda: bool(LOSS - 1), False),
        (lambda: COUNT > 0, True), (lambda: bool(COUNT), True), (lambda: COUNT > 3, False),
    ],
)  # fmt: skip
def test_a_branch_goes_the_way_of_the_number_and_is_noted_with_its_line(decide, way, decisions):
    assert decide() is way
    ((site, taken),) = decisions.taken.items()
    assert taken is way
    assert site.startswith(f"{__file__}:{decide.__code__.co_firstlineno}:")
    assert site in decisions.notes[0]


def test_the_same_branch_takes_the_other_way_where_that_is_asked_for(decisions):
    def branch() -> bool:
        return LOSS < 3

    assert branch() is True
    begin(Decisions(turned=decisions.taken))
    assert branch() is False
