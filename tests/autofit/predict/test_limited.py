"""Estimates on a card of so much memory: what is reserved there, and what would be needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from autofit.answers.words.phrases import on_its_card
from autofit.hardware.card import card_named
from autofit.predict.curve import PredictedCurve
from autofit.predict.plan_sources import CardPlans
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict
from tests.autofit.predict.test_curve import OFF

MIB = 1024**2
LIMIT = 512 * MIB
# Of 11 MiB a sample that are freed before 20 MiB a sample are asked for: 14 to 20 run with a retry.
FREED_FIRST = 11


@pytest.fixture
def curve(make_curve: Callable[..., PredictedCurve]) -> PredictedCurve:
    return make_curve(scratch_mib_per_sample=FREED_FIRST)


@pytest.fixture
def growing(workload, card, make_trace) -> PredictedCurve:
    """Each result is larger than the last one, which is freed then: no block is used again."""
    (first, *_), num_steps = make_trace(1).allocations, 60
    allocations = tuple(
        dataclasses.replace(first, num_bytes=12 * number * MIB, shape=(12 * number, MIB))
        for number in range(1, num_steps + 1)
    )
    events = (0, *(event for number in range(1, num_steps) for event in (number, ~(number - 1))))
    trace = dataclasses.replace(make_trace(1), allocations=allocations, events=events)
    plans = CardPlans(FormulaPlans, FormulaPlans)
    return PredictedCurve(
        "step", Knobs(), card, PeakCurve.through([trace]), residuals=OFF, plans=plans, on_grid=False
    )


def test_what_the_card_holds_is_as_on_any(curve):
    there = curve.within(13, LIMIT)
    assert there == dataclasses.replace(
        curve(13), limit_bytes=LIMIT, likely_verdict=Verdict.FITS, phases=there.phases
    )
    assert there.need is None
    assert on_its_card(there) == ""


def test_what_runs_with_retries_reserves_no_more_than_the_card_has(curve):
    there, unlimited = curve.within(16, LIMIT), curve(16)
    assert there.likely_verdict is Verdict.THRASH
    assert there.num_alloc_retries == 1
    assert there.peak_reserved_bytes == there.interval.likely_bytes == 420 * MIB
    assert there.interval.high_bytes == LIMIT
    assert there.need == unlimited.interval
    assert there.needed.likely_bytes == 596 * MIB > LIMIT
    assert there.peak_allocated_bytes == unlimited.peak_allocated_bytes
    assert there.whole_peak_bytes == there.peak_reserved_bytes
    said = on_its_card(there)
    assert said.startswith("thrashes: it fills the 512.00 MiB that the card has for PyTorch, and once in")
    assert "without a limit it would reserve 596.00 MiB" in said


def test_what_runs_out_of_memory_says_what_it_needs(curve):
    there, unlimited = curve.within(30, LIMIT), curve(30)
    assert there.runs_out
    assert there.peak_reserved_bytes <= there.interval.high_bytes == LIMIT
    assert there.device_peak_bytes == there.peak_reserved_bytes + there.context_bytes
    assert there.need == unlimited.interval
    assert there.whole_peak_bytes == unlimited.peak_reserved_bytes == 1030 * MIB
    assert (there.breakdown, there.peak_allocated_bytes) == (
        unlimited.breakdown,
        unlimited.peak_allocated_bytes,
    )
    assert on_its_card(there).startswith("does not fit: it needs 1.01 GiB of the 512.00 MiB")


def test_blocks_that_nothing_fits_into_are_not_needed(growing):
    alive_bytes = (720 + 708) * MIB
    assert growing(1).peak_reserved_bytes > 10 * alive_bytes
    assert growing.within(1, 2 * alive_bytes).likely_verdict is Verdict.THRASH
    short = growing.within(1, alive_bytes - MIB)
    assert short.runs_out
    assert alive_bytes <= short.needed.likely_bytes < 1.4 * alive_bytes
    assert short.needed.low_bytes < short.needed.likely_bytes < short.needed.high_bytes


def test_where_no_card_is_named_what_only_it_bounds_is_said(growing, curve):
    (note,) = growing(1).notes
    assert note.startswith("20.05 GiB of the reserved peak are free blocks that nothing fits into")
    assert not curve(30).notes
    assert not growing.within(1, 4096 * MIB).notes


def test_no_answer_is_above_the_card(curve, growing, make_curve):
    spanning = make_curve(num_channels=64, residuals=OFF)
    for mib in range(64, 2048, 160):
        for estimate in (
            curve.within(16, mib * MIB),
            growing.within(1, mib * MIB),
            spanning.within(8, mib * MIB),
        ):
            interval = estimate.interval
            assert interval.low_bytes <= interval.likely_bytes <= interval.high_bytes <= mib * MIB
            assert estimate.peak_reserved_bytes == interval.likely_bytes
            assert sum(dataclasses.asdict(estimate.breakdown).values()) == estimate.peak_allocated_bytes
            assert min(dataclasses.asdict(estimate.breakdown).values()) >= 0
            assert estimate.runs_out or estimate.peak_allocated_bytes <= estimate.peak_reserved_bytes
            is_more = estimate.needed.high_bytes > mib * MIB
            assert (estimate.need is None) or is_more or estimate.likely_verdict is not Verdict.FITS


def test_an_unnamed_card_has_no_limit_and_a_named_one_its_own(curve):
    assert curve(300).limit_bytes is None
    assert curve(300).peak_reserved_bytes == curve.unlimited(300).peak_reserved_bytes
    t4 = card_named("t4")
    assert t4.limit_bytes is not None
    there = curve.on(t4)(10_000)
    assert there.limit_bytes == t4.limit_bytes == t4.memory_bytes - t4.context_bytes
    assert there.device_peak_bytes <= t4.memory_bytes
    assert there.runs_out
