"""Requests that do with less where their size cannot be had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.allocator import Choice, Choices, replay

MIB = 1 << 20
FIRST = 0  # who asks


def reserved_mib(sizes: list[int], choices: Choices, limit_mib: int, events: list[int]) -> int | None:
    """The reserved peak of requests in MiB; None where memory ran out."""
    outcome = replay(events, [size * MIB for size in sizes], limit_bytes=limit_mib * MIB, choices=choices)
    return outcome.peak_reserved_bytes // MIB if outcome.completed else None


def mib(*sizes: int) -> tuple[int, ...]:
    return tuple(size * MIB for size in sizes)


@pytest.mark.parametrize(
    ("limit_mib", "expected"), [(130, 130), (129, 80), (80, 80), (79, 54), (54, 54), (53, None)]
)
def test_the_first_size_that_can_be_had_is_taken(limit_mib, expected):
    choices = {1: Choice(FIRST, mib(100, 50, 24))}
    assert reserved_mib([30, 100], choices, limit_mib, [0, 1]) == expected


def test_nothing_at_all_can_be_the_last_choice():
    assert reserved_mib([30, 100], {1: Choice(FIRST, mib(100, 0))}, 30, [0, 1, ~1]) == 30


def test_who_came_down_stays_there_though_there_is_room_again():
    # A workspace of 100 or 20 beside 50, then once more when those are given back.
    choices = {1: Choice(FIRST, mib(100, 20)), 2: Choice(FIRST, mib(100, 20))}
    assert reserved_mib([50, 100, 100], choices, 120, [0, 1, ~1, ~0, 2]) == 70
    others = {1: Choice(FIRST, mib(100, 20)), 2: Choice(FIRST + 1, mib(100, 20))}
    assert reserved_mib([50, 100, 100], others, 120, [0, 1, ~1, ~0, 2]) == 100


def test_who_was_refused_a_size_does_not_ask_for_more_later_whatever_else_there_is_to_choose():
    choices = {1: Choice(FIRST, mib(100, 20)), 2: Choice(FIRST, mib(110, 60, 20))}
    assert reserved_mib([50, 100, 110], choices, 120, [0, 1, ~1, ~0, 2]) == 70


def test_who_looks_for_room_lets_others_keep_their_cache():
    # 60 are cached and 40 are left: 100 would be had by giving the 60 back, 60 without.
    sizes = mib(60, 100)
    for found, retries, peak_mib in ((), 1, 100), (mib(20), 0, 60):
        choices = {1: Choice(FIRST, mib(100, 60, 20), found)}
        outcome = replay([0, ~0, 1], sizes, limit_bytes=100 * MIB, choices=choices)
        assert outcome.completed
        assert (outcome.num_alloc_retries, outcome.peak_reserved_bytes // MIB) == (retries, peak_mib)


def test_where_the_room_is_freed_all_that_is_cached_is_given_back_and_the_plan_that_was_found_runs():
    # 70 lie in the cache when 40 of room are freed: with them 110 are reserved, and 30 or 70 would be left.
    events, sizes = [0, 1, ~0, ~1, 2], mib(70, 40, 90)
    for limit_mib, choices, peak_mib in (
        (None, {}, 200),
        (None, {1: Choice(FIRST, mib(40), mib(30))}, 120),
        (None, {1: Choice(FIRST, mib(40), (0,))}, 110),
        (110, {1: Choice(FIRST, mib(40), (0,))}, 110),
    ):
        limit_bytes = None if limit_mib is None else limit_mib * MIB
        outcome = replay(events, sizes, limit_bytes=limit_bytes, choices=choices)
        assert outcome.completed
        assert (outcome.num_alloc_retries, outcome.peak_reserved_bytes // MIB) == (0, peak_mib)


def test_room_of_nothing_gives_the_cache_back_too():
    outcome = replay([0, ~0, 1, ~1, 2], mib(70, 0, 90), choices={1: Choice(FIRST, (0,), (0,))})
    assert outcome.peak_reserved_bytes == 90 * MIB


def test_a_plan_that_was_found_comes_down_too_and_where_none_can_be_had_the_replay_says_where():
    # Beside 80 that stay, 20 of room were to be had: what is larger is not asked for again.
    for found, completed in (mib(30, 20), True), (mib(30, 25), False):
        choices = {1: Choice(FIRST, mib(40, 20), found)}
        outcome = replay([0, 1, ~1], mib(80, 40), limit_bytes=100 * MIB, choices=choices)
        assert outcome.completed is completed
        assert outcome.failed_position == (None if completed else 2)


def test_the_cache_is_given_back_before_a_smaller_size_is_tried():
    outcome = replay(
        [0, ~0, 1], mib(60, 100), limit_bytes=100 * MIB, choices={1: Choice(FIRST, mib(100, 20))}
    )
    assert outcome.completed
    assert outcome.num_alloc_retries == 1
    assert outcome.peak_allocated_bytes == 100 * MIB


def test_what_was_taken_is_what_is_freed():
    outcome = replay(
        [0, 1, ~1, 2], mib(30, 100, 20), limit_bytes=60 * MIB, choices={1: Choice(FIRST, mib(100, 20))}
    )
    assert outcome.completed
    assert outcome.peak_allocated_bytes == outcome.peak_reserved_bytes == 50 * MIB


def test_where_the_last_choice_is_refused_the_replay_says_where():
    outcome = replay([0, 1], mib(30, 100), limit_bytes=40 * MIB, choices={1: Choice(FIRST, mib(100, 50))})
    assert not outcome.completed
    assert outcome.failed_position == 1


@given(st.lists(st.integers(0, 60 * MIB), min_size=1, max_size=20), st.integers(1, 5))
def test_with_room_for_all_choices_change_nothing(sizes, num_askers):
    events = [*range(len(sizes)), *(~index for index in range(len(sizes)))]
    choices = {index: Choice(index % num_askers, (size, size // 2, 0)) for index, size in enumerate(sizes)}
    assert replay(events, sizes, choices=choices) == replay(events, sizes)
