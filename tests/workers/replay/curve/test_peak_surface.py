"""The peak surface, from traces at five points or seven, against a trace at the point that is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.lines.step_lines import BatchDependentEventsError
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.peak_surface import curves_by_size

# By workload: how far sizes lie apart, the degree, and where the surface is traced.
SURFACES = {
    "texts": (32, 1, [(4, 32), (6, 32), (4, 64), (6, 64), (10, 96)]),
    "patches": (32, 2, [*((batch, side) for side in (32, 64, 96) for batch in (4, 6)), (10, 128)]),
}
ASKED = {"texts": [(3, 128), (8, 224), (33, 64), (2, 512)], "patches": [(3, 160), (9, 64), (2, 224)]}


@pytest.fixture(scope="module")
def surface_of(trace_of):
    def make(workload: str) -> Callable[[int], PeakCurve]:
        multiple, degree, points = SURFACES[workload]
        traces = {(b, size): trace_of(f"small:{workload}", b, seq_len=size) for b, size in points}
        return curves_by_size(traces, multiple=multiple, degree=degree)

    return make


@pytest.mark.parametrize("workload", SURFACES)
def test_a_surface_gives_every_byte_that_a_trace_there_gives(workload, surface_of, trace_of):
    surface = surface_of(workload)
    for batch_size, size in ASKED[workload]:
        found = surface(size).on_card(batch_size, Conditions())
        trace = trace_of(f"small:{workload}", batch_size, seq_len=size)
        known = PeakCurve.through([trace]).on_card(batch_size, Conditions())
        for level in Level:
            assert found.by_first_source.sizes(level) == known.by_first_source.sizes(level)
        assert found.estimate().reserved_bytes == known.estimate().reserved_bytes
        assert found.estimate().allocated_bytes == known.estimate().allocated_bytes


def test_squares_of_the_size_are_no_lines(trace_of):
    points = SURFACES["patches"][2]
    traces = {(b, size): trace_of("small:patches", b, seq_len=size) for b, size in points}
    with pytest.raises(BatchDependentEventsError, match="is not a polynomial"):
        curves_by_size(traces, multiple=32, degree=1)


def test_a_step_whose_events_depend_on_the_size_has_no_surface(trace_of):
    points = [(4, 64), (6, 64), (4, 128), (6, 128)]
    traces = {(b, size): trace_of("small:by_parts", b, seq_len=size) for b, size in points}
    with pytest.raises(BatchDependentEventsError):
        curves_by_size(traces, multiple=32)


def test_sizes_that_leave_different_remainders_make_no_surface(trace_of):
    traces = {(4, size): trace_of("small:texts", 4, seq_len=size) for size in (32, 33)}
    with pytest.raises(ValueError, match="one remainder by 32"):
        curves_by_size(traces, multiple=32)


def test_a_surface_knows_the_sizes_of_its_remainder(surface_of):
    surface = surface_of("texts")
    assert surface(64) is surface(64)
    with pytest.raises(AssertionError):
        surface(65)
