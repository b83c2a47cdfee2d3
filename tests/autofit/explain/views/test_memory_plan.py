"""Plans of memory: no two buffers share a byte, and the arena lies between its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.explain.views.memory_plan import Buffer, MemoryPlan, find_overlap, max_live_bytes, plan_memory

TIMES = st.integers(0, 30)
BUFFERS = st.lists(
    st.builds(
        lambda start, length, num_bytes: Buffer(start, start + length, num_bytes),
        TIMES,
        st.integers(0, 12),
        st.one_of(st.integers(0, 8), st.integers(0, 1000)),
    ),
    max_size=40,
)


def share_a_byte(plan: MemoryPlan, one: int, other: int) -> bool:
    a, b = plan.buffers[one], plan.buffers[other]
    at_once = max(a.start, b.start) < min(a.stop, b.stop)
    ends = (plan.offsets[one] + a.num_bytes, plan.offsets[other] + b.num_bytes)
    return at_once and max(plan.offsets[one], plan.offsets[other]) < min(ends)


@given(BUFFERS)
def test_no_two_buffers_share_a_byte_and_all_lie_in_the_arena(buffers: list[Buffer]) -> None:
    plan = plan_memory(buffers)

    pairs = [(i, j) for i in range(len(buffers)) for j in range(i)]
    assert not any(share_a_byte(plan, i, j) for i, j in pairs)
    assert all(
        offset + each.num_bytes <= plan.num_bytes
        for offset, each in zip(plan.offsets, buffers, strict=True)
        if each.start < each.stop
    )


@given(BUFFERS)
def test_the_arena_is_no_smaller_than_what_lives_at_once_and_no_larger_than_all(
    buffers: list[Buffer],
) -> None:
    plan = plan_memory(buffers)

    live = [sum(each.num_bytes for each in buffers if each.start <= time < each.stop) for time in range(43)]
    assert plan.lower_bound_bytes == max_live_bytes(buffers) == max(live)
    assert plan.lower_bound_bytes <= plan.num_bytes <= sum(each.num_bytes for each in buffers)


@given(BUFFERS, st.integers(0, 10))
def test_a_plan_holds_where_only_the_largest_are_placed_by_size(buffers: list[Buffer], most: int) -> None:
    plan = plan_memory(buffers, max_by_size=most)

    assert find_overlap(plan) is None
    assert plan.lower_bound_bytes <= plan.num_bytes <= sum(each.num_bytes for each in buffers)


@given(BUFFERS, st.data())
def test_the_check_finds_an_overlap_exactly_where_there_is_one(
    buffers: list[Buffer], data: st.DataObject
) -> None:
    offsets = tuple(data.draw(st.integers(0, 1500)) for _ in buffers)
    plan = MemoryPlan(buffers=tuple(buffers), offsets=offsets, num_bytes=0, lower_bound_bytes=0)

    found = find_overlap(plan)

    if found is None:
        assert not any(share_a_byte(plan, i, j) for i in range(len(buffers)) for j in range(i))
    else:
        assert share_a_byte(plan, *found)


@given(st.lists(st.tuples(TIMES, st.integers(1, 12)), max_size=40))
def test_buffers_of_one_size_are_planned_without_a_byte_too_many(spans: list[tuple[int, int]]) -> None:
    plan = plan_memory([Buffer(start, start + length, 100) for start, length in spans])

    assert plan.num_bytes == plan.lower_bound_bytes


def test_a_later_buffer_takes_the_place_of_an_earlier_one() -> None:
    plan = plan_memory([Buffer(0, 3, 80), Buffer(0, 9, 50), Buffer(3, 6, 70)])

    assert plan.offsets == (0, 80, 0)
    assert (plan.num_bytes, plan.lower_bound_bytes) == (130, 130)


@pytest.mark.parametrize("buffers", [[], [Buffer(0, 5, 0)], [Buffer(4, 4, 100)]])
def test_what_needs_no_memory_gets_none(buffers: list[Buffer]) -> None:
    plan = plan_memory(buffers)

    assert (plan.num_bytes, plan.offsets) == (0, (0,) * len(buffers))
