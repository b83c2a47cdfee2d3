"""The timeline: what is allocated and reserved over the events, and its highest moments."""

from __future__ import annotations

import dataclasses

import pytest

from autofit.errors import UsageError
from autofit.explain.views.timeline import course_of, timeline
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Category
from tests.autofit.explain.profiles import allocation, profile_of

MIB = 1 << 20
PROFILE = profile_of(
    [
        allocation(3 * MIB, Category.PARAMETER),
        allocation(700, Category.INPUT),
        allocation(30 * MIB),
        allocation(4 * MIB, Category.GRADIENT),
        allocation(5 * MIB, Category.OTHER),
    ],
    (0, 1, 2, 3, ~2, ~1, 4, ~4),
    [
        (0, "model"),
        (1, "step 1 input"),
        (2, "step 1 forward"),
        (3, "step 1 backward"),
        (6, "step 2 input"),
        (6, "step 2 forward"),
    ],
)


def test_after_each_event_the_categories_add_up_to_what_is_allocated():
    course = course_of(PROFILE)

    rounded = 1024
    small = [0, rounded, rounded, rounded, rounded, 0, 0, 0]
    large = [3, 3, 33, 37, 7, 7, 12, 7]
    assert course.allocated == [extra + size * MIB for extra, size in zip(small, large, strict=True)]
    assert [sum(column) for column in zip(*course.categories.values(), strict=True)] == course.allocated
    assert course.categories[Category.INPUT] == small


def test_a_profile_is_replayed_with_the_allocators_settings_that_it_was_made_with():
    profile = dataclasses.replace(PROFILE, knobs=Knobs(allocator="expandable_segments"))
    found = [size // MIB for size in course_of(profile).reserved]
    assert found == [20, 22, 42, 42, 42, 42, 42, 42]  # by pages of 20 MiB, where blocks follow each other


def test_segments_stay_reserved_when_their_blocks_are_free():
    assert [size // MIB for size in course_of(PROFILE).reserved] == [20, 22, 52, 52, 52, 52, 52, 52]


def test_the_peaks_are_the_simulators():
    (lane,) = timeline(PROFILE)

    assert lane.device == "cuda:0"
    assert lane.peak.allocated_bytes == PROFILE.peak_allocated_bytes == sum(lane.peak.categories.values())
    assert lane.peak_reserved_bytes == PROFILE.peak_reserved_bytes
    assert (lane.peak.position, lane.peak.phase.step, lane.peak.phase.name) == (4, 1, "backward")


def test_every_phase_with_events_has_its_peak():
    (lane,) = timeline(PROFILE)

    assert [(m.phase.step, m.phase.name, m.position) for m in lane.phase_peaks] == [
        (0, "model", 1),
        (1, "input", 2),
        (1, "forward", 3),
        (1, "backward", 4),
        (2, "forward", 7),
    ]


@pytest.mark.parametrize("num_moments", [1, 3, 8, 100])
def test_however_few_moments_there_are_the_peak_is_among_them(num_moments):
    (lane,) = timeline(PROFILE, num_moments=num_moments)

    assert lane.peak in lane.moments
    assert [moment.position for moment in lane.moments] == sorted({m.position for m in lane.moments})
    assert len(lane.moments) <= min(num_moments + len(lane.phase_peaks), 8)


def test_one_step_can_be_looked_at_alone():
    (lane,) = timeline(PROFILE, step=2)

    assert lane.peak.allocated_bytes == 12 * MIB
    assert {moment.phase.step for moment in lane.moments} == {2}


def test_categories_are_told_apart_without_changing_what_is_allocated():
    (lane,) = timeline(PROFILE, categories=[Category.GRADIENT])

    assert lane.peak.allocated_bytes == PROFILE.peak_allocated_bytes
    assert lane.peak.categories == {Category.GRADIENT: 4 * MIB}


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="no step 7; choose from 0, 1, 2"):
        timeline(PROFILE, step=7)


def test_a_profile_without_events_has_no_lanes():
    assert timeline(profile_of([], [])) == ()
