"""Polynomials in several variables fitted to values by least squares. Standard library only.

A polynomial has as many coefficients as the points determine: it is of the second degree, else of the first,
else a constant, the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

Numbers = Sequence[int]

_SMALLEST_PIVOT = 1e-9  # of the matrix of correlations; below it, points do not determine all coefficients


@dataclass(frozen=True, slots=True)
class Fitted:
    """Polynomial in several variables, fitted to values at several points by least squares.

    Attributes:
        degree: degree of the polynomial, 0 to 2.
        means, scales: the variables are shifted by these means and divided by these scales first.
        coefficients: coefficients of the products of variables, the constant first.
        error: largest deviation from the values it was fitted to, as a share of the largest value;
            infinite if the points are too few to fit values that differ.
    """

    degree: int
    means: tuple[float, ...]
    scales: tuple[float, ...]
    coefficients: tuple[float, ...]
    error: float

    def at(self, numbers: Numbers) -> int:
        """Returns the polynomial's value at a point, rounded and not below 0."""
        features = _features(numbers, self.means, self.scales, self.degree)
        value = sum(a * b for a, b in zip(self.coefficients, features, strict=True))
        return max(0, round(value))


def fitted(points: Sequence[Numbers]) -> Callable[[Sequence[int]], Fitted]:
    """Returns a function that fits a polynomial to values at `points`, and can do so for many sets of values.

    Args:
        points: the variables at each point; they decide the degree, at most 2.
    """
    columns = list(zip(*points, strict=True))
    means = tuple(sum(column) / len(column) for column in columns)
    scales = tuple(
        max(abs(value - mean) for value in column) or 1.0 for column, mean in zip(columns, means, strict=True)
    )
    degree, rows, solver = 0, [[1.0]] * len(points), None
    for tried in (2, 1):
        rows = [_features(point, means, scales, tried) for point in points]
        solver = _solver(rows) if len(set(map(tuple, points))) >= len(rows[0]) else None
        if solver is not None:
            degree = tried
            break

    def fit(values: Sequence[int]) -> Fitted:
        first = values[0]
        if solver is None or all(value == first for value in values):
            error = 0.0 if all(value == first for value in values) else math.inf
            return Fitted(0, means, scales, (float(max(values)),), error)
        coefficients = tuple(sum(a * v for a, v in zip(row, values, strict=True)) for row in solver)
        found = (sum(a * b for a, b in zip(coefficients, row, strict=True)) for row in rows)
        missed = max(abs(value - each) for value, each in zip(values, found, strict=True))
        return Fitted(degree, means, scales, coefficients, missed / max(map(abs, values)))

    return fit


def _features(numbers: Numbers, means: Sequence[float], scales: Sequence[float], degree: int) -> list[float]:
    scaled = [(n - mean) / scale for n, mean, scale in zip(numbers, means, scales, strict=True)]
    features = [1.0]
    for power in range(1, degree + 1):
        features += [math.prod(each) for each in combinations_with_replacement(scaled, power)]
    return features


def _solver(rows: Sequence[Sequence[float]]) -> list[list[float]] | None:
    """Matrix `(AᵀA)⁻¹Aᵀ`, which turns values at points into coefficients by least squares.

    Args:
        rows: the matrix `A`: for each point the products of variables that have coefficients.

    Returns:
        The matrix; None if `AᵀA` is singular, so the points determine no coefficients.
    """
    columns = list(zip(*rows, strict=True))
    size = len(columns)
    matrix = [
        [sum(a * b for a, b in zip(one, other, strict=True)) for other in columns] + list(one)
        for one in columns
    ]
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(matrix[row][place]))
        if abs(matrix[pivot][place]) < _SMALLEST_PIVOT:
            return None
        matrix[place], matrix[pivot] = matrix[pivot], matrix[place]
        head = matrix[place]
        matrix[place] = head = [value / head[place] for value in head]
        for row in range(size):
            if row != place and matrix[row][place]:
                factor = matrix[row][place]
                matrix[row] = [value - factor * own for value, own in zip(matrix[row], head, strict=True)]
    return [row[size:] for row in matrix]
