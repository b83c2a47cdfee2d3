"""The front of batch against time, checked against every pair."""

from __future__ import annotations

import random

import pytest

from autofit.search.pace import Pace
from autofit.search.pareto import Point, dominating
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.checkpointing import CHECKPOINTINGS
from autofit_workers.spec.knobs.optimizer_impl import OPTIMIZER_IMPLS
from autofit_workers.spec.knobs.precision import PRECISIONS

SETTINGS = [
    Knobs(precision=precision, checkpointing=checkpointing, optimizer_impl=optimizer_impl)
    for precision in PRECISIONS
    for checkpointing in CHECKPOINTINGS[:2]
    for optimizer_impl in OPTIMIZER_IMPLS
]


@pytest.mark.parametrize("seed", range(20))
def test_with_rates_the_front_is_what_no_other_beats(seed: int) -> None:
    rng = random.Random(seed)
    points = {
        knobs: Point(
            largest_batch=rng.randint(1, 9),
            samples_per_second=rng.randint(1, 9),
            pace=Pace.of(knobs, "sm_80"),
        )
        for knobs in rng.sample(SETTINGS, 12)
    }
    values = {knobs: (point.largest_batch, point.samples_per_second or 0) for knobs, point in points.items()}
    best = {
        value
        for value in values.values()
        if not any(o != value and o[0] >= value[0] and o[1] >= value[1] for o in values.values())
    }
    dominated = dominating(points)
    front = [values[knobs] for knobs in points if knobs not in dominated]
    assert sorted(front) == sorted(best), "each point of the front once"
    for knobs, by in dominated.items():
        assert by not in dominated
        assert all(theirs >= own for theirs, own in zip(values[by], values[knobs], strict=True))


def test_without_rates_the_pace_decides_and_leaves_some_uncompared() -> None:
    sizes = {
        Knobs(): 80,
        Knobs(precision="amp-bf16"): 150,
        Knobs(checkpointing="blocks"): 200,
        Knobs(memory_format="channels_last"): 70,
    }
    points = {
        knobs: Point(largest_batch=size, samples_per_second=None, pace=Pace.of(knobs, "sm_80"))
        for knobs, size in sizes.items()
    }
    assert dominating(points) == {Knobs(): Knobs(precision="amp-bf16")}
