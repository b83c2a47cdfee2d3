"""What is said of a run whose batches differ in length, against replays of that run in orders of its own."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest

from autofit.predict.run_lengths import DrawnOrders, RunLengths
from autofit_workers.replay.allocator import AllocatorSettings, replay
from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Lengths, Seen, Trace

NUM_BATCHES, NUM_TRACED, NUM_ORDERS = 150, 10, 40
MIB = 2**20


def texts(rng: random.Random) -> int:
    return min(1024, 8 + round(rng.lognormvariate(5, 0.7)))


def uniform(rng: random.Random) -> int:
    return rng.randint(16, 1024)


def mixed(rng: random.Random) -> int:
    return rng.randint(700, 1000) if rng.random() < 0.05 else rng.randint(60, 120)


def run_of(lengths: Sequence[int], coming: Sequence[int] = ()) -> Trace:
    """Four layers, of which each keeps what grows with the length, and one what grows with its square."""
    allocations, events, starts, ends = [], [], [], []

    def take(num_bytes: int) -> int:
        allocations.append(Allocation(num_bytes=num_bytes, category=Category.ACTIVATION))
        events.append(len(allocations) - 1)
        return events[-1]

    take(40 * MIB)
    states_are_made = False
    for length in lengths:
        starts.append(len(events))
        kept = [
            take(each) for _ in range(4) for each in (length * 16_384, length * length * 64, length * 8192)
        ]
        gradients = take(40 * MIB)
        for each in reversed(kept):
            made = take(allocations[each].num_bytes)
            events.extend((~each, ~made))
        if not states_are_made:
            states_are_made = True
            take(80 * MIB)
        events.append(~gradients)
        ends.append(len(events))
    shapes = tuple((8, length) for length in (*lengths, *coming))
    return Trace(
        workload="train.py",
        batch_size=8,
        mode="train",
        optimizer="custom",
        knobs=Knobs(),
        allocations=tuple(allocations),
        events=tuple(events),
        seen=Seen(step_ends=tuple(ends), num_run_steps=NUM_BATCHES),
        lengths=Lengths(
            starts=tuple(starts),
            numbers=tuple((length,) for length in lengths),
            shapes=shapes,
            numbers_coming=tuple((length,) for length in coming),
        ),
    )


def orders_of(trace: Trace, **settings: object) -> DrawnOrders:
    conditions = Conditions(settings=AllocatorSettings(**settings))
    orders = DrawnOrders.of(PeakCurve.through([trace]).on_card(8, conditions))
    assert orders is not None
    return orders


def reserved_bytes(lengths: Sequence[int]) -> int:
    run = run_of(lengths)
    return replay(run.events, [each.num_bytes for each in run.allocations]).peak_reserved_bytes


@pytest.fixture
def epoch() -> list[int]:
    rng = random.Random(0)
    return [texts(rng) for _ in range(NUM_BATCHES)]


@pytest.fixture
def answer(epoch) -> RunLengths:
    return orders_of(run_of(epoch[:NUM_TRACED], epoch[NUM_TRACED:])).answer(None)


@pytest.mark.parametrize("drawn", [texts, uniform, mixed])
def test_the_range_of_drawn_orders_holds_runs_in_other_orders(drawn: Callable[[random.Random], int]):
    rng = random.Random(7)
    epoch = [drawn(rng) for _ in range(NUM_BATCHES)]
    answer = orders_of(run_of(epoch[:NUM_TRACED], epoch[NUM_TRACED:])).answer(None)
    runs = [reserved_bytes(rng.sample(epoch, len(epoch))) for _ in range(NUM_ORDERS)]
    within = sum(answer.low_bytes <= each <= answer.high_bytes for each in runs)
    assert within >= 0.95 * NUM_ORDERS
    assert answer.high_bytes < 1.5 * max(runs)


def test_the_longest_batch_is_named_with_how_often_it_comes(epoch, answer):
    longest = max(epoch)
    assert answer.longest == (8, longest)
    assert (answer.num_longest, answer.num_known) == (epoch.count(longest), NUM_BATCHES)
    assert answer.allocated_bytes >= 120 * MIB + 4 * longest * (16_384 + 64 * longest + 8192)


def test_expandable_segments_save_what_lengths_waste(epoch, answer):
    assert answer.expandable_bytes is not None
    assert answer.expandable_bytes < 0.9 * answer.likely_bytes
    own = orders_of(run_of(epoch[:NUM_TRACED], epoch[NUM_TRACED:]), expandable_segments=True).answer(None)
    assert own.expandable_bytes is None
    assert own.likely_bytes == pytest.approx(answer.expandable_bytes, rel=0.05)


def test_on_a_card_nothing_is_above_it_where_its_cache_can_be_given_back(epoch, answer):
    orders = orders_of(run_of(epoch[:NUM_TRACED], epoch[NUM_TRACED:]))
    limit_bytes = round(1.1 * answer.allocated_bytes)
    assert limit_bytes < answer.likely_bytes
    on_card = orders.answer(limit_bytes)
    assert orders.share_within(limit_bytes) == 1
    assert on_card.high_bytes <= limit_bytes
    assert on_card.num_alloc_retries > 0
    too_small = answer.allocated_bytes - 8 * MIB
    assert orders.share_within(too_small) == 0
    assert orders.answer(too_small).high_bytes > too_small  # which says what it needs


def test_an_order_that_is_known_is_the_only_one(epoch):
    trace = run_of(epoch[:NUM_TRACED], epoch[NUM_TRACED:])
    assert trace.lengths is not None
    trace = dataclasses.replace(trace, lengths=dataclasses.replace(trace.lengths, is_shuffled=False))
    answer = orders_of(trace).answer(None)
    assert answer.num_orders == 1
    assert answer.low_bytes == answer.high_bytes


def test_a_run_that_was_seen_to_its_end_needs_no_orders(epoch):
    trace = run_of(epoch[:NUM_TRACED])
    assert trace.seen is not None
    whole = dataclasses.replace(trace, seen=dataclasses.replace(trace.seen, num_run_steps=NUM_TRACED))
    assert DrawnOrders.of(PeakCurve.through([whole]).on_card(8, Conditions())) is None
