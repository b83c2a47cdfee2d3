"""Curves that guide a search."""

from __future__ import annotations

import pytest

from autofit.search.boundary import Boundary
from autofit.search.curves import KnownPeaks, line_through

MIB = 1024**2


class Segments:
    """Live bytes are a line; what is reserved comes in segments of 20 MiB, and is asked for rarely."""

    def __init__(self, bytes_per_sample: int) -> None:
        self._bytes_per_sample = bytes_per_sample
        self.asked: list[int] = []

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        self.asked.append(batch_size)
        return -(-self.lower_bound_bytes(batch_size) // (20 * MIB)) * 20 * MIB

    def lower_bound_bytes(self, batch_size: int) -> int:
        return 100 * MIB + batch_size * self._bytes_per_sample


def test_a_line_begins_where_the_peak_is_and_rises_as_live_bytes_do() -> None:
    line = line_through(Segments(MIB), 4, 10)
    assert line.peak_reserved_bytes(10) == 120 * MIB
    assert line.peak_reserved_bytes(1_000) == line.lower_bound_bytes(1_000) == 1_110 * MIB
    assert line.peak_reserved_bytes(1) == 111 * MIB


def test_a_curve_that_does_not_rise_gives_no_line() -> None:
    with pytest.raises(ValueError, match="batch 4 and 10"):
        line_through(Segments(0), 4, 10)


def test_a_line_leads_to_the_boundary_in_a_few_trials() -> None:
    curve, budget = Segments(3 * MIB), 10_000 * MIB
    boundary = Boundary(budget_bytes=budget, prior=line_through(curve, 4, 10))
    num_trials = 0
    while (size := boundary.propose()) is not None:
        peak = curve.peak_reserved_bytes(size)
        boundary.observe(size, fits=peak <= budget, peak_bytes=peak)
        num_trials += 1
    assert boundary.largest_fitting == 3_300
    assert num_trials <= 6


def test_a_peak_is_worked_out_once_and_one_that_was_stopped_again_where_it_may_fit() -> None:
    memory, asked = KnownPeaks(), []

    def worked_out(value: int) -> int:
        asked.append(value)
        return value

    assert memory.least_bytes(8) == 0
    assert memory.peak(8, 100, lambda: worked_out(120)) == 120  # it was stopped there
    assert memory.peak(8, 110, lambda: worked_out(0)) == 120
    assert memory.least_bytes(8) == 120
    assert memory.peak(8, 130, lambda: worked_out(150)) == 150
    assert memory.peak(8, None, lambda: worked_out(160)) == 160
    assert memory.peak(8, 150, lambda: worked_out(0)) == memory.least_bytes(8) == 160
    assert asked == [120, 150, 160]
