"""Exact integer polynomials of the batch size, as coefficients from the constant upwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Line = tuple[int, int]
F = TypeVar("F")  # a function: a line, or one of more variables
# Finds the function, such as a line in the batch size, that has given values in several traces.
Fit = Callable[[Sequence[int]], F]
# Product of a number of bytes and of functions.
Factors = tuple[int, tuple[F, ...]]


class NotPolynomialError(ValueError):
    """Values in the traces do not lie on the polynomial with integer coefficients that was fitted to them."""


def value_at(polynomial: Sequence[int], batch_size: int) -> int:
    """Value of a polynomial in the batch size, given by its coefficients from the constant upwards."""
    value = 0
    for coefficient in reversed(polynomial):
        value = value * batch_size + coefficient
    return value


def line_through(batch_sizes: Sequence[int], values: Sequence[int]) -> Line:
    """Line (constant, slope) through the first two points, checked on the other points.

    A single point gives a constant.

    Args:
        batch_sizes: batch sizes of the points.
        values: value at each batch size.

    Raises:
        NotPolynomialError: the constant or the slope is not whole, or a point is off the line.
    """
    if len(values) == 1:
        return (values[0], 0)
    slope, remainder = divmod(values[1] - values[0], batch_sizes[1] - batch_sizes[0])
    line = (values[0] - slope * batch_sizes[0], slope)
    if remainder or any(value_at(line, b) != v for b, v in zip(batch_sizes, values, strict=True)):
        raise NotPolynomialError(f"{list(values)} at batch sizes {list(batch_sizes)}")
    return line


def lines_through(fit: Fit[F], shapes: Sequence[Sequence[int]]) -> tuple[F, ...]:
    """Fits a function, such as a line in the batch size, to each dimension of a tensor over several traces.

    Args:
        fit: finds the function through a dimension's values, such as
            `functools.partial(line_through, batch_sizes)`.
        shapes: shape of the tensor in each trace.

    Raises:
        NotPolynomialError: a dimension follows no such function, or some shapes have more dimensions than
            others.
    """
    if len({len(shape) for shape in shapes}) > 1:
        raise NotPolynomialError(f"shapes {list(shapes)}")
    return tuple([fit(dimension) for dimension in zip(*shapes, strict=True)])


def values_at(lines: Sequence[Line], batch_size: int) -> tuple[int, ...]:
    """Values of several lines (constant, slope) at a batch size, such as the dimensions of a shape."""
    return tuple([constant + slope * batch_size for constant, slope in lines])


def size_factors(fit: Fit[F], shapes: Sequence[tuple[int, ...]], sizes_bytes: Sequence[int]) -> Factors[F]:
    """Bytes of a tensor as a product: a number times a function of the batch size for each dimension.

    The dimensions are fitted, rather than the bytes, because lines can be checked. The bytes of a B×B tensor
    are a square of the batch size: a parabola goes through any three sizes, so a third trace would prove
    nothing. Its dimensions are lines, which a third trace does check.

    Args:
        fit: finds the function, such as a line in the batch size, from one number's values in the traces.
        shapes: shape of the tensor in each trace.
        sizes_bytes: bytes of the tensor's storage in each trace.

    Returns:
        The number and the functions. If the storage is no multiple of the tensor, its bytes are fitted as one
        function.

    Raises:
        NotPolynomialError: neither the dimensions nor the bytes themselves follow such functions.
    """
    if len(set(sizes_bytes)) == 1 and len(set(shapes)) == 1:
        return sizes_bytes[0], ()
    element_bytes = {
        _exact_ratio(size, math.prod(shape)) for shape, size in zip(shapes, sizes_bytes, strict=True)
    }
    if len(element_bytes) != 1 or None in element_bytes or len({len(s) for s in shapes}) != 1:
        return 1, (fit(sizes_bytes),)  # the tensor is a part of its storage
    return element_bytes.pop() or 0, lines_through(fit, shapes)


def product(factors: Factors[Line]) -> tuple[int, ...]:
    """Coefficients, from the constant upwards, of the product of a number and lines in the batch size."""
    number, lines = factors
    polynomial: tuple[int, ...] = (number, 0)
    for constant, slope in lines:
        multiplied = [constant * c for c in polynomial] + [0]
        for power, c in enumerate(polynomial):
            multiplied[power + 1] += slope * c
        polynomial = tuple(multiplied)
    return _without_leading_zeros(polynomial)


def _exact_ratio(size_bytes: int, num_elements: int) -> int | None:
    if num_elements == 0 or size_bytes % num_elements:
        return None
    return size_bytes // num_elements


def _without_leading_zeros(polynomial: tuple[int, ...]) -> tuple[int, ...]:
    degree = len(polynomial)
    while degree > 2 and polynomial[degree - 1] == 0:
        degree -= 1
    return polynomial[:degree]
