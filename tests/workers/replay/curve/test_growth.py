"""What grows from step to step, told from steps that are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from autofit_workers.replay.curve.growth import LEAST_BYTES, LiveAfterSteps
from autofit_workers.spec.trace import Allocation, Category

MIB = 1024 * 1024
# By the number of a step: the bytes that it allocates and keeps, and the step whose bytes it frees, if any.
Keeps = Callable[[int], tuple[int, int | None]]


def after(num_steps: int, keeps: Keeps) -> LiveAfterSteps:
    """What is alive after steps that each also take and give back a block of their own."""
    allocations: list[Allocation] = []
    events: list[int] = []
    ends: list[int] = []
    kept: dict[int, int] = {}

    def take(num_bytes: int, line: int) -> int:
        source = f"train.py:{line}:main"
        allocations.append(Allocation(num_bytes=num_bytes, category=Category.OTHER, source=source))
        events.append(len(allocations) - 1)
        return events[-1]

    for step in range(1, num_steps + 1):
        passing = take(4 * MIB, line=1)
        num_bytes, freed = keeps(step)
        if num_bytes:
            kept[step] = take(num_bytes, line=2)
        if freed in kept:
            events.append(~kept.pop(freed))
        events.append(~passing)
        ends.append(len(events))
    return LiveAfterSteps(allocations, events, ends)


def looked_at(keeps: Keeps) -> Iterator[int]:
    """After how many steps it is looked again, until enough were seen."""
    seen = 3
    while (wanted := after(seen, keeps).num_steps_that_tell) > seen:
        yield wanted
        seen = wanted


def every(period: int) -> Keeps:
    return lambda step: (MIB if step % period == 0 else 0, None)


@pytest.mark.parametrize("period", [1, 2, 3, 4, 6])
def test_what_is_kept_again_and_again_grows_by_its_mean(period):
    (growth,) = after(27, every(period)).growths
    assert growth.source == "train.py:2:main"
    assert growth.bytes_per_step == pytest.approx(MIB / period, rel=0.01)
    assert after(27, every(period)).peak_rise == pytest.approx(MIB / period, rel=0.01)


def test_a_block_that_each_step_replaces_by_a_larger_one_grows():
    (growth,) = after(15, lambda step: (step * MIB, step - 1)).growths
    assert growth.bytes_per_step == MIB


CLEAN: dict[str, Keeps] = {
    "all of it in the first step": lambda step: (100 * MIB if step == 1 else 0, None),
    "the first four alone": lambda step: (MIB if step <= 4 else 0, None),
    "the last five": lambda step: (MIB, step - 5),
    "the last twenty": lambda step: (MIB, step - 20),
    "one, of another size each time": lambda step: ((step * 7 % 5 + 1) * MIB, step - 1),
    "less than is told": lambda step: (LEAST_BYTES // 2, None),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_ends_is_replaced_or_small_does_not_grow(name):
    num_steps = max(looked_at(CLEAN[name]), default=3)
    assert after(num_steps, CLEAN[name]).growths == ()


def test_more_steps_are_asked_for_only_where_something_may_grow():
    assert list(looked_at(CLEAN["all of it in the first step"])) == []
    assert list(looked_at(CLEAN["one, of another size each time"])) == []
    assert list(looked_at(CLEAN["the last five"])) == [8, 15]
    assert list(looked_at(every(1))) == [8, 15, 27, 39, 51, 63]


def test_of_few_steps_nothing_is_said():
    assert after(7, every(1)).growths == ()
