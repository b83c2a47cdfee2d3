from __future__ import annotations

import functools
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.search.boundary import MAX_BATCH, Boundary, largest_fitting_batch
from autofit.search.curves import CachedCurve

BUDGET = 10_000_000_000


def line(base: float, slope: float) -> Any:
    class Line:
        def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
            return int(base + slope * batch_size)

        def lower_bound_bytes(self, batch_size: int) -> int:
            return int(base + slope * batch_size)

    return Line()


def settle(boundary: Boundary, peak_at: Callable[[int], float]) -> list[int]:
    """Measures what the boundary proposes until it is settled; a failure shows no peak."""
    tried: list[int] = []
    while (size := boundary.propose()) is not None:
        assert size not in tried
        assert len(tried) < 60
        tried.append(size)
        peak = int(peak_at(size))
        boundary.observe(size, fits=peak <= BUDGET, peak_bytes=peak if peak <= BUDGET else None)
    assert boundary.is_settled
    return tried


def shaken(base: float, slope: float, noise: float, rng: random.Random) -> Callable[[int], float]:
    """A line whose every size is off by its own share, the same whenever it is measured."""
    return functools.cache(lambda batch_size: (base + slope * batch_size) * rng.gauss(1, noise))


def random_memory(rng: random.Random, largest: float) -> tuple[float, float]:
    base = rng.uniform(0.02, 0.6) * BUDGET
    return base, (BUDGET - base) / largest * rng.uniform(0.97, 1)


# The scan


def test_the_scan_finds_the_largest_of_200_random_curves(random_curve: Any, budget_bytes: int) -> None:
    num_not_monotone = 0
    for seed in range(200):
        curve = random_curve(random.Random(seed))
        expected = curve.brute_force(budget_bytes)
        result = largest_fitting_batch(curve, budget_bytes, max_batch=300)
        assert result.largest_batch == expected
        fits = [peak <= budget_bytes for peak in curve.reserved]
        num_not_monotone += fits != sorted(fits, reverse=True)
        assert result.first_failing_batch == (None if expected == 300 else (expected or 0) + 1)
    assert num_not_monotone >= 30


@given(
    steps=st.lists(st.integers(0, 50), min_size=1, max_size=80),
    bumps=st.lists(st.integers(0, 300), min_size=80, max_size=80),
    budget=st.integers(0, 1200),
    first=st.integers(1, 5),
)
def test_the_scan_agrees_with_brute_force(
    steps: list[int], bumps: list[int], budget: int, first: int
) -> None:
    live = [sum(steps[: i + 1]) for i in range(len(steps))]
    reserved = [low + bump for low, bump in zip(live, bumps, strict=False)]
    last = max(len(live), first)
    live += [live[-1]] * (last - len(live))
    reserved += [live[-1]] * (last - len(reserved))

    class Table:
        def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
            return reserved[batch_size - 1]

        def lower_bound_bytes(self, batch_size: int) -> int:
            return live[batch_size - 1]

    expected = max((b for b in range(first, last + 1) if reserved[b - 1] <= budget), default=None)
    result = largest_fitting_batch(Table(), budget, min_batch=first, max_batch=last)
    assert result.largest_batch == expected
    assert result.first_failing_batch == {None: first, last: None}.get(expected, (expected or 0) + 1)


def test_the_scan_evaluates_a_line_a_few_times() -> None:
    result = largest_fitting_batch(line(BUDGET / 3, BUDGET / 1000), BUDGET)
    assert result.largest_batch == 666
    assert result.num_evaluations <= 12


def test_far_below_what_live_bytes_allow_the_scan_leaves_sizes_out() -> None:
    class Tripled:
        def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
            return 3 * batch_size

        def lower_bound_bytes(self, batch_size: int) -> int:
            return batch_size

    result = largest_fitting_batch(Tripled(), 60_000, max_batch=65_536)
    assert (result.largest_batch, result.first_failing_batch) == (20_000, 20_001)
    assert result.num_evaluations < 2_000
    assert largest_fitting_batch(Tripled(), 60_000, min_batch=20_001).largest_batch is None


def test_the_scan_evaluates_no_reserved_peak_whose_live_bytes_decide(
    tabulated_curve: Any, budget_bytes: int
) -> None:
    live = [40 * b for b in range(1, 301)]
    curve = tabulated_curve([low + 1000 for low in live], live)
    result = largest_fitting_batch(curve, budget_bytes, max_batch=300)
    assert curve.evaluated == list(range(250, 224, -1))
    assert result.num_evaluations >= len(curve.evaluated) + 2  # at least the bounds of both ends


def test_a_cached_curve_evaluates_each_size_once(tabulated_curve: Any) -> None:
    curve = tabulated_curve([100, 200], [100, 200])
    cached = CachedCurve.of(curve)
    assert cached.peak_reserved_bytes(2, stop_above_bytes=120) == 121
    assert cached.peak_reserved_bytes(2, stop_above_bytes=110) == 121
    assert curve.evaluated == [2]
    assert cached.peak_reserved_bytes(2, stop_above_bytes=150) == 151
    assert cached.peak_reserved_bytes(2) == 200
    assert cached.peak_reserved_bytes(2, stop_above_bytes=120) == 200
    assert cached.lower_bound_bytes(2) == cached.lower_bound_bytes(2) == 200
    assert curve.evaluated == [2, 2, 2]


# The boundary, measured


def test_a_right_prediction_costs_two_trials() -> None:
    memory = line(BUDGET / 2, BUDGET / 500)
    boundary = Boundary(budget_bytes=BUDGET, prior=memory)
    assert settle(boundary, memory.peak_reserved_bytes) == [250, 251]
    assert (boundary.largest_fitting, boundary.first_failing) == (250, 251)


def test_a_prediction_that_is_not_monotone_is_proved_by_two_trials(
    random_curve: Any, budget_bytes: int
) -> None:
    for seed in range(200):
        curve = random_curve(random.Random(seed))
        boundary = Boundary(budget_bytes=budget_bytes, max_batch=300, prior=curve)
        num_trials = 0
        while (size := boundary.propose()) is not None:
            num_trials += 1
            peak = curve.peak_reserved_bytes(size)
            boundary.observe(size, fits=peak <= budget_bytes, peak_bytes=peak)
        assert num_trials <= 2
        assert boundary.largest_fitting == curve.brute_force(budget_bytes)


@pytest.mark.parametrize(
    ("prior_share", "noise", "most_at_the_median", "most_at_the_90th"),
    [
        (1.0, 0.0, 2, 2),
        (0.9, 0.0, 4, 5),
        (1.1, 0.0, 3, 3),
        (0.7, 0.0, 5, 6),
        (0.9, 0.01, 5, 7),
        (1.1, 0.01, 4, 6),
        (None, 0.0, 5, 6),
        (None, 0.01, 6, 8),
    ],
)
def test_few_trials_settle_a_nearly_linear_boundary(
    prior_share: float | None, noise: float, most_at_the_median: int, most_at_the_90th: int
) -> None:
    """Up to batch 512; the noise is of each size, so that near the budget feasibility is not monotone."""
    rng = random.Random(0)
    counts = []
    for _ in range(200):
        base, slope = random_memory(rng, 2 ** rng.uniform(1, 9))
        peak_at = shaken(base, slope, noise, rng)
        prior = None if prior_share is None else CachedCurve.of(line(base * prior_share, slope * prior_share))
        boundary = Boundary(budget_bytes=BUDGET, prior=prior, max_batch=4096)
        counts.append(len(settle(boundary, peak_at)))
        largest = boundary.largest_fitting
        assert largest is None or peak_at(largest) <= BUDGET
        assert peak_at((largest or 0) + 1) > BUDGET
        assert boundary.first_failing == (largest or 0) + 1
    assert statistics.median(counts) <= most_at_the_median
    assert sorted(counts)[179] <= most_at_the_90th


def test_an_offset_that_the_prediction_does_not_know_is_learned() -> None:
    """As a process's own memory beside the tensors, when resident memory is measured."""
    boundary = Boundary(budget_bytes=BUDGET, prior=line(0, BUDGET / 100))
    assert len(settle(boundary, lambda b: 0.5 * BUDGET + BUDGET / 100 * b)) <= 7
    assert boundary.largest_fitting == 50


@given(seed=st.integers(0, 2**32), share=st.sampled_from([None, 0.001, 0.5, 1.0, 2.0, 1000.0]))
def test_any_feasibility_settles_in_a_logarithmic_number_of_trials(seed: int, share: float | None) -> None:
    """Peaks that have nothing to do with the batch, nor with the prediction."""
    rng = random.Random(seed)
    prior = None if share is None else line(share * BUDGET / 10, share * BUDGET / 1000)
    boundary = Boundary(budget_bytes=BUDGET, prior=prior)
    tried = settle(boundary, lambda _: BUDGET * rng.choice([0.1, 0.9, 0.99, 1.0, 1.01]))
    assert len(tried) <= 3 * math.log2(MAX_BATCH)
    largest = boundary.largest_fitting
    assert largest in (None, 65536) or boundary.first_failing == largest + 1
    assert largest is not None or boundary.first_failing == 1


def test_a_flat_peak_is_not_walked_along_one_by_one() -> None:
    """A segment's size hides the growth of a thousand sizes; the slope says one more each time."""
    boundary = Boundary(budget_bytes=BUDGET, prior=line(BUDGET * 0.5, BUDGET * 0.5 / 1000))
    tried = settle(boundary, lambda b: BUDGET if b <= 2000 else 2 * BUDGET)
    assert boundary.largest_fitting == 2000
    assert len(tried) <= 25


def test_the_cap_and_the_minimum_settle_alone() -> None:
    capped = Boundary(budget_bytes=BUDGET, max_batch=64, prior=line(0, 1))
    assert settle(capped, lambda _: 1) == [64]
    assert (capped.largest_fitting, capped.first_failing) == (64, None)
    nothing = Boundary(budget_bytes=BUDGET, min_batch=2, prior=line(2 * BUDGET, 1))
    assert settle(nothing, lambda _: 2 * BUDGET) == [2]
    assert (nothing.largest_fitting, nothing.first_failing) == (None, 2)


def test_a_failure_with_its_peak_corrects_the_prediction() -> None:
    """A process that ran to its end above the budget says more than one that broke off."""
    boundary = Boundary(budget_bytes=1000, prior=line(0, 10))
    assert boundary.propose() == 100
    boundary.observe(100, fits=False, peak_bytes=2000)
    assert boundary.propose() == 50


def test_a_size_that_fitted_and_failed_counts_as_failing() -> None:
    boundary = Boundary(budget_bytes=1000, max_batch=8)
    boundary.observe(4, fits=True)
    boundary.observe(4, fits=False)
    boundary.observe(4, fits=True)
    assert (boundary.largest_fitting, boundary.first_failing) == (None, 4)


# Several sizes in flight


@pytest.mark.parametrize("prior", [None, line(BUDGET / 2, BUDGET / 500), line(BUDGET / 2, BUDGET / 550)])
@pytest.mark.parametrize("num_workers", [2, 4, 9])
def test_workers_get_different_sizes_and_outcomes_come_in_any_order(prior: Any, num_workers: int) -> None:
    rng = random.Random(num_workers)
    memory = line(BUDGET / 2, BUDGET / 500)
    boundary = Boundary(budget_bytes=BUDGET, prior=prior)
    in_flight: list[int] = []
    tried: list[int] = []
    while True:
        while len(in_flight) < num_workers and (size := boundary.propose()) is not None:
            assert size not in tried
            tried.append(size)
            in_flight.append(size)
        if not in_flight:
            break
        size = in_flight.pop(rng.randrange(len(in_flight)))
        peak = memory.peak_reserved_bytes(size)
        boundary.observe(size, fits=peak <= BUDGET, peak_bytes=peak if peak <= BUDGET else None)
    assert (boundary.largest_fitting, boundary.first_failing) == (250, 251)


def test_two_workers_ask_for_the_predicted_boundary_and_its_next_size_at_once() -> None:
    boundary = Boundary(budget_bytes=BUDGET, prior=line(BUDGET / 2, BUDGET / 500))
    assert [boundary.propose(), boundary.propose()] == [250, 251]


def test_four_workers_get_sizes_around_the_estimate() -> None:
    boundary = Boundary(budget_bytes=BUDGET, prior=line(BUDGET / 2, BUDGET / 500))
    assert [boundary.propose() for _ in range(4)] == [250, 251, 219, 282]


def test_once_a_peak_was_measured_workers_get_sizes_close_to_the_estimate() -> None:
    boundary = Boundary(budget_bytes=BUDGET, prior=line(BUDGET / 2, BUDGET / 500))
    boundary.observe(200, fits=True, peak_bytes=int(0.9 * BUDGET))
    sizes = [boundary.propose() for _ in range(4)]
    assert sizes[:2] == [250, 251]
    assert all(abs((size or 0) - 250) <= 20 for size in sizes)


def test_without_any_idea_workers_get_sizes_that_grow() -> None:
    boundary = Boundary(budget_bytes=BUDGET)
    assert [boundary.propose() for _ in range(4)] == [1, 8, 64, 512]


def test_a_bracket_is_cut_into_as_many_parts_as_there_are_workers() -> None:
    boundary = Boundary(budget_bytes=BUDGET)
    boundary.observe(40, fits=True)
    boundary.observe(100, fits=False)
    assert sorted([boundary.propose() or 0 for _ in range(3)]) == [55, 70, 85]


# Feasibility that is not monotone


def test_a_larger_size_that_the_prediction_has_below_the_first_failing_one_is_measured() -> None:
    """From 30 on a cheaper algorithm is chosen: 20 to 29 do not fit, 30 to 33 do."""

    class Cheaper:
        def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
            return 50 * batch_size if batch_size < 30 else 30 * batch_size

        def lower_bound_bytes(self, batch_size: int) -> int:
            return 30 * batch_size

    boundary = Boundary(budget_bytes=1000, max_batch=100, prior=Cheaper())
    boundary.observe(19, fits=True, peak_bytes=950)
    boundary.observe(20, fits=False)
    assert not boundary.is_settled
    assert boundary.propose() == 33
    boundary.observe(33, fits=True, peak_bytes=990)
    assert boundary.propose() == 34
    boundary.observe(34, fits=False)
    assert boundary.is_settled
    assert (boundary.largest_fitting, boundary.first_failing) == (33, 34)

    failed = Boundary(budget_bytes=1000, max_batch=100, prior=Cheaper())
    failed.observe(19, fits=True, peak_bytes=950)
    for size in (20, 33):
        failed.observe(size, fits=False)
    assert failed.is_settled, "one size beyond is believed"
    assert failed.propose() is None


def test_a_size_fails_just_beyond_where_no_other_lies_between() -> None:
    boundary = Boundary(budget_bytes=BUDGET, sizes=(8, 16, 32, 64))
    assert boundary.fails_just_beyond(8) is None
    boundary.observe(8, fits=True)
    boundary.observe(32, fits=False)
    assert boundary.fails_just_beyond(8) is None, "16 may fit"
    assert boundary.fails_just_beyond(16) == 32


def test_a_neighbour_that_fails_too_is_believed() -> None:
    boundary = Boundary(budget_bytes=BUDGET)
    boundary.observe(19, fits=True)
    boundary.observe(20, fits=False)
    assert (boundary.is_settled, boundary.propose()) == (False, 21)
    assert not boundary.has_proposal
    boundary.observe(21, fits=False)
    assert boundary.is_settled
    assert boundary.propose() is None


def test_a_neighbour_that_fits_moves_the_boundary_once() -> None:
    boundary = Boundary(budget_bytes=BUDGET)
    tried = settle(boundary, lambda b: BUDGET / 2 if b <= 19 or b == 21 else 2 * BUDGET)
    assert (boundary.largest_fitting, boundary.first_failing) == (21, 22)
    assert 23 not in tried


def test_a_prediction_that_rises_costs_no_trial_beyond_the_first_failure() -> None:
    boundary = Boundary(budget_bytes=BUDGET, prior=line(BUDGET / 2, BUDGET / 500))
    boundary.observe(240, fits=True, peak_bytes=int(0.9 * BUDGET))
    boundary.observe(241, fits=False)
    assert boundary.is_settled


# Which size may be the last


def test_a_size_may_be_the_last_once_its_next_fails_or_measured_peaks_point_to_it() -> None:
    boundary = Boundary(budget_bytes=BUDGET, prior=line(BUDGET / 2, BUDGET / 500))
    assert not boundary.may_be_last(250)
    boundary.observe(200, fits=True, peak_bytes=int(0.9 * BUDGET))
    assert boundary.may_be_last(250)
    assert not boundary.may_be_last(249)
    boundary.observe(231, fits=False)
    assert boundary.may_be_last(230)


def test_the_next_size_is_doubtful_while_it_is_open_and_not_estimated_to_fit() -> None:
    boundary = Boundary(budget_bytes=BUDGET, max_batch=300, prior=line(BUDGET / 2, BUDGET / 500))
    assert boundary.doubtful_size_beyond(250) == 251
    assert boundary.doubtful_size_beyond(249) is None, "estimated to fit"
    assert boundary.doubtful_size_beyond(300) is None, "beyond the cap"
    boundary.expect(251)
    assert boundary.doubtful_size_beyond(250) is None
    boundary.withdraw(251)
    assert boundary.doubtful_size_beyond(250) == 251
    boundary.observe(251, fits=False)
    assert boundary.doubtful_size_beyond(250) is None, "known"
    unpredicted = Boundary(budget_bytes=BUDGET, sizes=(8, 16, 32))
    assert unpredicted.doubtful_size_beyond(8) == 16
    assert unpredicted.at_most(31) == 16


@pytest.mark.parametrize(("fits", "fails", "middle"), [(10, 40, 25), (10, 41, 20), (100, 160, 130)])
def test_a_bracket_is_cut_at_its_geometric_mean_once_its_ends_are_more_than_fourfold_apart(
    fits: int, fails: int, middle: int
) -> None:
    boundary = Boundary(budget_bytes=BUDGET)
    boundary.observe(fits, fits=True)
    boundary.observe(fails, fits=False)
    assert boundary.propose() == middle


def test_nothing_is_proposed_while_every_open_size_is_in_flight() -> None:
    boundary = Boundary(budget_bytes=BUDGET, max_batch=2)
    boundary.expect(1)
    boundary.expect(2)
    assert not boundary.has_proposal
    assert boundary.propose() is None
    assert not boundary.is_settled


def test_the_boundary_needs_no_optuna() -> None:
    code = "import sys, autofit.search.boundary; assert 'optuna' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
