"""Divisors of a global batch: the same searches, among them alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from autofit.search.boundary import Boundary, largest_fitting_batch
from autofit.search.sizes import Ranks, sizes_for
from autofit.search.space import SearchSpace
from autofit_workers.spec.knobs import Knobs

WHOLE = 240
DIVISORS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 24, 30, 40, 48, 60, 80, 120, 240)


def test_the_sizes_of_a_setting_are_a_range_or_the_divisors_in_it() -> None:
    space = SearchSpace(choices={"global_batch": (None, WHOLE)}, min_batch=2, max_batch=100)
    free, fixed = (space.sizes(knobs) for knobs in space.settings)
    assert free == range(2, 101)
    assert fixed == tuple(size for size in DIVISORS if 2 <= size <= 100)
    assert sizes_for(Knobs(global_batch=97), min_batch=2, max_batch=96) == ()


def test_ranks_lead_there_and_back() -> None:
    ranks = Ranks(DIVISORS)
    assert [ranks.size(ranks.of(size)) for size in DIVISORS] == list(DIVISORS)
    assert [ranks.at_most(size) for size in (0, 1, 59, 60, 61)] == [0, 1, 48, 60, 60]
    assert [Ranks(range(3, 9)).at_most(size) for size in (2, 5)] == [0, 5]


@pytest.mark.parametrize("seed", range(20))
def test_scan_and_trials_find_the_largest_divisor_that_fits(random_curve: Any, seed: int) -> None:
    curve = random_curve(random.Random(seed))
    budget_bytes = curve.reserved[random.Random(seed).randrange(20, len(curve.reserved))]
    fitting = [size for size in DIVISORS if curve.peak_reserved_bytes(size) <= budget_bytes]
    largest = max(fitting, default=None)
    beyond = next((size for size in DIVISORS if size > (largest or 0)), None)
    scan = largest_fitting_batch(curve, budget_bytes, sizes=DIVISORS)
    assert (scan.largest_batch, scan.first_failing_batch) == (largest, beyond)

    boundary = Boundary(budget_bytes=budget_bytes, prior=curve, sizes=DIVISORS)
    tried = []
    while (size := boundary.propose()) is not None:
        tried.append(size)
        peak_bytes = curve.peak_reserved_bytes(size)
        boundary.observe(size, fits=peak_bytes <= budget_bytes, peak_bytes=peak_bytes)
    assert (boundary.largest_fitting, boundary.first_failing) == (largest, beyond)
    assert len(tried) <= 3
    assert set(tried) <= set(DIVISORS)
