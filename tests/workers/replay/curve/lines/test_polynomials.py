"""Exact polynomials: what is one is found, what is none is refused."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autofit_workers.replay.curve.lines.polynomials import (
    NotPolynomialError,
    line_through,
    lines_through,
    product,
    size_factors,
    value_at,
    values_at,
)

batch_sizes = st.lists(st.integers(1, 64), min_size=2, max_size=4, unique=True)
lines = st.tuples(st.integers(0, 50), st.integers(0, 50))
large = st.integers(1, 1 << 20)


def polynomial_of(sizes, shapes, sizes_bytes):
    return product(size_factors(functools.partial(line_through, sizes), shapes, sizes_bytes))


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-9, 9))
def test_a_polynomial_has_the_value_of_its_powers(polynomial, at):
    assert value_at(polynomial, at) == sum(c * at**power for power, c in enumerate(polynomial))


@given(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), batch_sizes)
def test_a_line_is_found_from_its_points(line, sizes):
    assert line_through(sizes, [value_at(line, b) for b in sizes]) == line


@given(st.integers())
def test_a_single_point_gives_the_constant(value):
    assert line_through([7], [value]) == (value, 0)


@given(lines, batch_sizes, st.integers(1, 100), st.data())
def test_a_point_beside_the_line_is_refused(line, sizes, distance, data):
    assume(len(sizes) > 2)
    values = [value_at(line, b) for b in sizes]
    values[data.draw(st.integers(0, len(sizes) - 1))] += distance
    with pytest.raises(NotPolynomialError):
        line_through(sizes, values)


def test_a_line_of_fractions_is_refused():
    with pytest.raises(NotPolynomialError, match=r"\[1, 2\] at batch sizes \[4, 6\]"):
        line_through([4, 6], [1, 2])


@given(st.lists(lines, max_size=4), st.sampled_from([1, 2, 4, 8]), batch_sizes, large)
def test_a_tensor_whose_dimensions_are_lines_is_known_at_every_size(dimensions, element_bytes, sizes, at):
    shapes = [tuple(value_at(d, b) for d in dimensions) for b in sizes]
    assume(all(math.prod(shape) for shape in shapes))
    polynomial = polynomial_of(sizes, shapes, [element_bytes * math.prod(s) for s in shapes])
    assert value_at(polynomial, at) == element_bytes * math.prod(value_at(d, at) for d in dimensions)


@given(lines, batch_sizes, large)
def test_a_part_of_a_larger_storage_is_known_by_the_bytes_of_the_storage(line, sizes, at):
    # One element of a storage that grows with the batch.
    assume(line[1] > 0)
    polynomial = polynomial_of(sizes, [(1,)] * len(sizes), [8 * value_at(line, b) for b in sizes])
    assert value_at(polynomial, at) == 8 * value_at(line, at)


def test_a_square_of_the_batch_has_a_square_polynomial():
    polynomial = polynomial_of([4, 6, 9], [(4, 4), (6, 6), (9, 9)], [64, 144, 324])
    assert polynomial == (0, 0, 4)


def test_a_size_that_does_not_change_is_a_constant():
    assert polynomial_of([4, 6, 9], [(3, 5)] * 3, [60] * 3) == (60, 0)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 8), (3, 8), (3, 8)],  # batch // 2, then its ceiling
        [(1,), (8,), (16,)],  # a power of two above the batch
        [(4, 1), (6, 2), (9, 4)],
    ],
)
def test_dimensions_that_are_no_lines_are_refused(shapes):
    with pytest.raises(NotPolynomialError):
        polynomial_of([4, 6, 9], shapes, [4 * math.prod(shape) for shape in shapes])


def test_every_dimension_of_a_shape_has_a_line_of_its_own():
    lines = lines_through(functools.partial(line_through, [4, 6, 9]), [(8, 3, 5), (12, 3, 7), (18, 3, 10)])
    assert values_at(lines, 100) == (200, 3, 101)


def test_shapes_of_different_ranks_have_no_lines():
    with pytest.raises(NotPolynomialError):
        lines_through(functools.partial(line_through, [4, 6, 9]), [(4,), (6,), (9, 1)])


def test_three_sizes_that_only_a_parabola_fits_are_refused():
    # Through three points goes a parabola whatever they are: it would prove nothing.
    with pytest.raises(NotPolynomialError):
        polynomial_of([4, 6, 9], [(10,), (17,), (90,)], [40, 68, 360])
