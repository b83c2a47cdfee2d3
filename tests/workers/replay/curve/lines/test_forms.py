"""Numbers of two variables: what is such a form is found, what is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.curve.lines.forms import Forms, polynomial_through
from autofit_workers.replay.curve.lines.polynomials import NotPolynomialError, value_at

coefficients = st.lists(st.integers(-20, 20), min_size=1, max_size=4)
places = st.lists(st.integers(0, 30), min_size=4, max_size=4, unique=True)


@given(coefficients, places)
def test_a_polynomial_is_found_from_its_points(polynomial, at):
    found = polynomial_through(at, [value_at(polynomial, place) for place in at])
    assert found == (*polynomial, *[0] * (4 - len(polynomial)))


def test_a_polynomial_of_fractions_is_refused():
    with pytest.raises(NotPolynomialError, match=r"\[0, 1\] at \[0, 2\]"):
        polynomial_through([0, 2], [0, 1])


@given(st.data(), st.integers(1, 2))
def test_a_form_is_known_at_every_batch_size_and_step(data, degree):
    form = tuple(tuple(data.draw(st.integers(0, 9)) for _ in range(degree + 1)) for _ in range(2))
    steps = data.draw(st.lists(st.integers(1, 9), min_size=degree + 2, max_size=degree + 2, unique=True))
    points = [*((batch, step) for batch in (4, 6) for step in steps), (10, steps[-1])]
    forms = Forms(points, degree=degree)

    def value(batch: int, step: int) -> int:
        return sum(value_at(form[power], step) * batch**power for power in range(2))

    found = forms.form([value(*point) for point in points])
    at = data.draw(st.integers(1, 1000)), data.draw(st.integers(1, 1000))
    assert value_at(forms.line(found, at[1]), at[0]) == value(*at)
    wrong = [value(*point) for point in points]
    wrong[-1] += 1
    with pytest.raises(NotPolynomialError):
        forms.form(wrong)


def test_one_batch_size_makes_forms_of_the_step_alone():
    forms = Forms([(1, 2), (1, 4), (1, 6)])
    assert forms.only_batch_size == 1
    assert forms.line(forms.form([10, 20, 30]), 100) == (500, 0)


@pytest.mark.parametrize("points", [[(4, 1), (6, 1)], [(4, 1), (6, 1), (4, 2)]])
def test_points_that_decide_no_form_are_refused(points):
    with pytest.raises(ValueError, match="do not decide"):
        Forms(points)
