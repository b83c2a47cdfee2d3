"""Numbers in place of values that are not there: what may be done with them, and what not."""

from __future__ import annotations

import math
import operator

import pytest
import torch

from workers.predict.scripts.made_up import MadeUpFloat, MadeUpInt, refuse_by


class RefusedError(Exception):
    pass


def refuse(what: str) -> None:
    raise RefusedError(what)


@pytest.fixture(autouse=True)
def refused():
    refuse_by(refuse)


LOSS, COUNT = MadeUpFloat(1.0), MadeUpInt()


@pytest.mark.parametrize(
    "result",
    [
        LOSS + 1, 2.0 * LOSS, LOSS / 3, 3 / LOSS, -LOSS, abs(LOSS), LOSS**2, round(LOSS, 3),
        sum([LOSS, LOSS]),
        COUNT / 5, 100.0 * COUNT, LOSS * COUNT, COUNT * LOSS, 1 / COUNT, COUNT / COUNT,
    ],
)  # fmt: skip
def test_what_is_computed_with_a_made_up_number_is_made_up(result):
    assert type(result) is MadeUpFloat


@pytest.mark.parametrize(
    "result", [COUNT + 1, 1 + COUNT, COUNT - COUNT, COUNT * 2, sum([COUNT, COUNT]), -COUNT]
)
def test_what_is_counted_with_one_is_made_up_too(result):
    assert type(result) is MadeUpInt


def test_they_can_be_printed_and_are_finite():
    assert f"{LOSS:.2f} {COUNT:3d} {COUNT} {LOSS / 2}" == "1.00   1 1 1.0"
    assert math.isfinite(LOSS) and not math.isnan(LOSS)
    assert math.inf > LOSS
    assert math.exp(LOSS) > 0


@pytest.mark.parametrize("other", [None, "nan"])
@pytest.mark.parametrize("number", [LOSS, COUNT])
def test_that_one_is_no_none_and_no_string_decides_nothing(number, other):
    assert operator.ne(number, other)
    assert not operator.eq(other, number)
    with pytest.raises(TypeError, match="not supported between"):
        operator.lt(number, other)


@pytest.mark.parametrize(
    "decide",
    [
        lambda: LOSS < 3, lambda: LOSS < 3, lambda: LOSS == 1.0, lambda: min(LOSS, 2.0), lambda: int(LOSS),
        lambda: bool(LOSS - 1), lambda: COUNT > 0, lambda: bool(COUNT), lambda: range(COUNT),
        lambda: [1, 2, 3][COUNT], lambda: int(COUNT), lambda: COUNT == 1, lambda: math.ceil(LOSS),
        lambda: operator.lt(LOSS, torch.ones(2)), lambda: operator.lt(COUNT, torch.ones(2)),
    ],
)  # fmt: skip
def test_none_of_them_decides_anything(decide):
    with pytest.raises(RefusedError):
        decide()
