"""Polynomials through points, by which sizes at other lengths are worked out."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.lines.least_squares import fitted

LENGTHS = [(311,), (87,), (902,), (95,), (411,)]


@pytest.mark.parametrize(
    "polynomial", [lambda n: 4096, lambda n: 1024 * n, lambda n: 16 * n * n + 3 * n + 7], ids=["0", "1", "2"]
)
def test_a_polynomial_of_a_length_is_found_beyond_the_points(polynomial):
    found = fitted(LENGTHS)([polynomial(n) for (n,) in LENGTHS])
    assert [found.at((n,)) for n in (1, 640, 4096)] == [polynomial(n) for n in (1, 640, 4096)]
    assert found.error < 1e-9


def test_a_polynomial_of_two_lengths_is_found():
    def bytes_of(source: int, target: int) -> int:
        return 64 * source * target + 12 * source * source + 100 * target + 5

    points = [(10, 20), (30, 15), (55, 40), (12, 60), (80, 33), (41, 9), (70, 71)]
    found = fitted(points)([bytes_of(*point) for point in points])
    assert found.at((128, 256)) == bytes_of(128, 256)


def test_what_is_no_polynomial_has_an_error():
    found = fitted(LENGTHS)([-(-n // 256) * 256 for (n,) in LENGTHS])
    assert 0 < found.error < 0.2


@pytest.mark.parametrize("points", [[(7,)], [(7,), (7,)], [(7,), (9,)]], ids=["one", "the same", "two"])
def test_few_points_give_what_they_tell(points):
    found = fitted(points)([10 * n for (n,) in points])
    assert found.at(points[0]) == 70
    assert found.at((100,)) == (1000 if len(set(points)) > 1 else 70)


def test_no_size_is_negative():
    found = fitted([(100,), (200,)])([0, 1000])
    assert found.at((0,)) == 0
