"""Exact functions of batch size and sample size: lines in the batch size, polynomials in the sample size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autofit_workers.replay.curve.lines.polynomials import Line, NotPolynomialError, line_through, value_at

Point = tuple[int, int]
# Two polynomials of the step: the part that does not depend on the batch size, and the factor of the batch
# size; coefficients from the constant upwards. A step is a sample size in units of its multiple (`multiple`
# of `curves_by_size`).
Form = tuple[tuple[int, ...], tuple[int, ...]]


class Forms:
    """Fits numbers of a step, such as a dimension, by exact functions of batch size and sample size.

    A form is such a function: a line in the batch size, whose constant and slope are polynomials in the
    sample size. The sample size counts in steps: distances between the sizes that are covered, such as 64
    tokens. The two smallest batch sizes with the `degree + 1` smallest sample sizes determine the
    coefficients; all other points are checked.

    Args:
        points: batch size and sample size (in steps) of each trace. If all have one batch size, the forms
            hold at that batch size only.
        degree: degree of the polynomials in the sample size.

    Raises:
        ValueError: there are too few points to determine a form of this degree.
    """

    def __init__(self, points: Sequence[Point], *, degree: int = 1) -> None:
        self._points = tuple(points)
        places = {point: place for place, point in enumerate(self._points)}
        self._batch_sizes = sorted({batch_size for batch_size, _ in points})[:2]
        self._steps = sorted({step for _, step in points})[: degree + 1]
        grid = [[(batch_size, step) for step in self._steps] for batch_size in self._batch_sizes]
        if len(self._steps) <= degree or any(point not in places for row in grid for point in row):
            raise ValueError(f"{len(points)} points do not decide a form of degree {degree}")
        self._rows = [[places[point] for point in row] for row in grid]
        self._found: dict[tuple[int, ...], Form] = {}

    @property
    def only_batch_size(self) -> int | None:
        """Batch size at which alone the forms hold, if all points have it; None if there are several."""
        return self._batch_sizes[0] if len(self._batch_sizes) == 1 else None

    def form(self, values: Sequence[int]) -> Form:
        """Function of batch size and sample size that takes the given values at the points.

        Args:
            values: value at each point, in the order of the points.

        Raises:
            NotPolynomialError: the coefficients are not whole, or the function misses a point.
        """
        key = tuple(values)
        if key not in self._found:
            self._found[key] = self._through(key)
        return self._found[key]

    def line(self, form: Form, step: int) -> Line:
        """Line in the batch size to which a form reduces at one sample size, `step` (in steps)."""
        constant, slope = form
        return value_at(constant, step), value_at(slope, step)

    def _through(self, values: tuple[int, ...]) -> Form:
        rows = [polynomial_through(self._steps, [values[place] for place in row]) for row in self._rows]
        lines = [line_through(self._batch_sizes, column) for column in zip(*rows, strict=True)]
        form = tuple(constant for constant, _ in lines), tuple(slope for _, slope in lines)
        for (batch_size, step), value in zip(self._points, values, strict=True):
            if value_at(self.line(form, step), batch_size) != value:
                raise NotPolynomialError(f"{list(values)} at (batch size, step) {list(self._points)}")
        return form


def polynomial_through(places: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
    """Coefficients of the lowest-degree polynomial through points, from the constant upwards.

    It uses Newton's divided differences.

    Args:
        places: arguments of the polynomial, all different.
        values: the polynomial's value at each of them.

    Raises:
        NotPolynomialError: its coefficients are not whole.
    """
    differences, leading = list(values), list[int]()
    for distance in range(len(places)):
        leading.append(differences[0])
        quotients = []
        for place, (low, high) in enumerate(pairwise(differences)):
            quotient, remainder = divmod(high - low, places[place + distance + 1] - places[place])
            if remainder:
                raise NotPolynomialError(f"{list(values)} at {list(places)}")
            quotients.append(quotient)
        differences = quotients
    coefficients = [0] * len(places)
    for place, difference in zip(reversed(places), reversed(leading), strict=True):
        # Horner's rule: the polynomial so far times (x - place), plus the next divided difference.
        coefficients = [
            lower - place * own for lower, own in zip([0, *coefficients[:-1]], coefficients, strict=True)
        ]
        coefficients[0] += difference
    return tuple(coefficients)
