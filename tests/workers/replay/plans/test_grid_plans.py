"""Plans between the batch sizes at which they were asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.replay.plans.grid_plans import GridPlans, neighbours
from autofit_workers.replay.plans.plan import Plan
from tests.workers.replay.plan_tables import CONVOLUTION, MadeUpPlans, of_samples, variant


def lines(slope: int, start: int) -> MadeUpPlans:
    """Two engines, of which the first grows in a line with the samples and the second needs nothing."""
    return MadeUpPlans(
        lambda call: (
            Plan(38, start + slope * call.input_shape[0], uses_tensor_cores=True),
            Plan(0, 0, is_deterministic=False),
        )
    )


def changing_at(num_samples: int) -> MadeUpPlans:
    """A first choice that needs much from a size on."""
    return MadeUpPlans(
        lambda call: (
            Plan(1, call.input_shape[0])
            if call.input_shape[0] < num_samples
            else Plan(2, 1000 * call.input_shape[0]),
        )
    )


@pytest.mark.parametrize(
    ("num_samples", "expected"),
    [
        (1, (1, 1)),
        (2, (2, 2)),
        (3, (3, 3)),
        (4, (4, 4)),
        (5, (4, 6)),
        (6, (6, 6)),
        (7, (6, 8)),
        (9, (8, 12)),
        (13, (12, 16)),
        (100, (96, 128)),
        (1000, (768, 1024)),
    ],
)
def test_the_grid_has_powers_of_two_and_the_sizes_halfway_between(num_samples, expected):
    assert neighbours(num_samples) == expected


@given(st.integers(1, 10**6))
def test_neighbours_surround_a_size_and_lie_on_the_grid(num_samples):
    low, high = neighbours(num_samples)
    assert low <= num_samples <= high <= 3 * low / 2 + 1
    assert neighbours(low) == (low, low)
    assert neighbours(high) == (high, high)


@given(st.lists(st.integers(1, 5000), min_size=1), st.integers(0, 10**7), st.integers(0, 10**9))
def test_what_grows_in_a_line_is_exact(batch_sizes, slope, start):
    source = lines(slope, start)
    calls = [of_samples(n) for n in batch_sizes]
    assert GridPlans(source).plans(calls) == source.plans(calls)


def test_sizes_between_are_not_asked_for():
    source = lines(7, 100)
    GridPlans(source).plans([of_samples(n) for n in range(65, 96)])
    assert set(source.asked) == {64, 96}


# CONVOLUTION has 64 maps of 56×56.
LAST_AT_ONCE = 2**31 // (64 * 56 * 56)


@pytest.mark.parametrize("num_samples", [9000, LAST_AT_ONCE - 1, LAST_AT_ONCE, LAST_AT_ONCE + 1, 20_000])
def test_where_a_batch_is_gone_through_in_pieces_nothing_is_understated(num_samples):
    source = MadeUpPlans(lambda call: (Plan(1, 1000 * min(call.input_shape[0], LAST_AT_ONCE)),))
    assert LAST_AT_ONCE not in neighbours(LAST_AT_ONCE)
    call = of_samples(num_samples)
    assert GridPlans(source).plans([call]) == source.plans([call])


def test_a_size_between_different_first_choices_is_asked_for():
    source = changing_at(5)
    calls = [of_samples(n) for n in (3, 5, 7)]
    assert GridPlans(source).plans(calls) == source.plans(calls)
    assert 5 in source.asked
    assert 7 not in source.asked[: -len(calls)]


def test_calls_of_different_layers_keep_their_places():
    source = MadeUpPlans(
        lambda call: (Plan(call.weight_shape[0] % 2 * call.input_shape[0], call.weight_shape[0]),)
    )
    calls = [
        variant(weight_shape=(k, 64, 3, 3), input_shape=(n, 64, 56, 56)) for k in (8, 9) for n in (5, 6, 7)
    ]
    assert GridPlans(source).plans(calls) == source.plans(calls)


def test_a_line_that_falls_between_bytes_is_rounded_up():
    source = MadeUpPlans(lambda call: (Plan(1, 10 if call.input_shape[0] <= 8 else 13),))
    sizes = [plans[0].workspace_bytes for plans in GridPlans(source).plans([of_samples(n) for n in (9, 10)])]
    assert sizes == [11, 12]  # 10.75 and 11.5


def test_a_kernel_that_the_larger_size_does_without_grows_with_the_samples():
    first = Plan(1, 50)
    source = MadeUpPlans(lambda call: (first, Plan(2, 600)) if call.input_shape[0] == 4 else (first,))
    assert GridPlans(source).plans([of_samples(5)]) == [(first, Plan(2, 750))]


def test_an_engine_with_several_plans_has_them_matched_in_order():
    source = MadeUpPlans(lambda call: (Plan(1, 10 * call.input_shape[0]), Plan(1, 1000), Plan(2, 0)))
    assert GridPlans(source).plans([of_samples(5)]) == [(Plan(1, 50), Plan(1, 1000), Plan(2, 0))]


def test_a_batch_that_is_folded_into_the_channels_is_asked_for_as_it_is():
    source = lines(7, 100)
    folded = variant(input_shape=(1, 5 * 64, 56, 56), output_shape=(1, 5 * 64, 56, 56), groups=5)
    assert GridPlans(source).plans([folded]) == source.plans([folded])
    assert set(source.asked) == {1}


def test_a_grid_is_named_as_its_source_and_knows_as_much():
    for knows_the_order in (True, False):
        source = MadeUpPlans(lambda _call: (Plan(0, 0),), knows_the_order=knows_the_order)
        assert GridPlans(source).knows_the_order == knows_the_order
        assert GridPlans(source).name == "made up"
    assert GridPlans(source).plans([]) == []


def test_the_first_plan_on_the_grid_is_the_sources_own():
    source = lines(3, 1)
    assert GridPlans(source).plans([CONVOLUTION]) == source.plans([CONVOLUTION])
