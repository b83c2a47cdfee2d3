"""The peak curve over made-up plans: several sources of them, and memory that is short."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.trace import Trace
from tests.workers.replay.plan_tables import MIB, MadeUpPlans, of_sizes, step

BATCH_SIZE = 20
BARE_BYTES = 60 * MIB  # of that batch, without a workspace


@pytest.fixture
def curve() -> PeakCurve:
    return PeakCurve.through([step(batch_size) for batch_size in (4, 6, 9)])


@pytest.fixture
def under(curve) -> Callable[[Conditions], StepOnCard]:
    """The step at `BATCH_SIZE` under conditions."""
    return lambda conditions: curve.on_card(BATCH_SIZE, conditions)


def with_sizes(*mib: int, **settings) -> Conditions:
    return Conditions(plans=(of_sizes(*(size * MIB for size in mib)),), **settings)


def test_one_source_that_knows_the_order_leaves_the_low_end_alone_in_doubt(under):
    on_card = under(with_sizes(100, 300, 0))
    estimate = on_card.estimate()
    assert estimate.reserved_bytes == estimate.high_bytes == BARE_BYTES + 100 * MIB
    assert estimate.low_bytes == BARE_BYTES
    worst = on_card.reserved_bytes(Level.WORST)
    assert worst == BARE_BYTES + 300 * MIB


def test_the_likely_peak_of_several_sources_is_their_median_and_the_ends_span_them(under):
    sources = of_sizes(100 * MIB), of_sizes(40 * MIB, 30 * MIB), of_sizes(60 * MIB)
    on_card = under(Conditions(plans=sources))
    estimate = on_card.estimate()
    assert estimate.reserved_bytes == BARE_BYTES + 60 * MIB
    assert estimate.low_bytes == BARE_BYTES + 30 * MIB
    assert estimate.high_bytes == BARE_BYTES + 100 * MIB
    assert on_card.reserved_bytes(Level.LIKELY) == estimate.reserved_bytes
    assert on_card.reserved_bytes(Level.HIGH) == estimate.high_bytes


def test_what_is_alive_at_the_peak_is_told_by_the_source_of_the_median(under):
    sources = of_sizes(100 * MIB), of_sizes(40 * MIB, 30 * MIB), of_sizes(60 * MIB)
    estimate = under(Conditions(plans=sources)).estimate()
    assert estimate.allocated_bytes == estimate.reserved_bytes == BARE_BYTES + 60 * MIB
    assert sum(estimate.breakdown.values()) == estimate.allocated_bytes
    assert [one.num_bytes for one in estimate.live] == [60 * MIB, 40 * MIB, 20 * MIB]
    assert estimate.workspace_likely_bytes == 60 * MIB


@pytest.mark.parametrize("mib", [(100, 40), (41, 42, 42), (42, 41)])  # 41 and 42 share a segment's size
def test_the_order_of_the_sources_does_not_matter(under, mib):
    sources = [of_sizes(size * MIB) for size in mib]
    there, back = (under(Conditions(plans=tuple(s))).estimate() for s in (sources, sources[::-1]))
    assert there == back


@pytest.mark.parametrize("mib", [(100, 40), (100, 40, 60), (10, 300, 40, 60), (10, 300, 40, 300, 60, 20)])
def test_the_likely_peak_is_within_a_limit_where_half_of_the_sources_run(under, mib):
    on_card = under(Conditions(plans=tuple(of_sizes(size * MIB) for size in mib)))
    for limit_mib in (50, 70, 90, 110, 130, 200, 400):
        limit_bytes = limit_mib * MIB
        is_within = on_card.reserved_bytes(Level.LIKELY) <= limit_bytes
        assert on_card.runs_within(limit_bytes, Level.LIKELY) == is_within


def test_a_source_is_asked_for_the_batch_size_that_is_replayed(curve):
    source = MadeUpPlans(lambda call: (Plan(1, 2 * MIB * call.input_shape[0]),))
    conditions = Conditions(plans=(source,))
    assert curve.on_card(30, conditions).reserved_bytes() == (40 + 30 + 60) * MIB
    assert curve.on_card(50, conditions).reserved_bytes() == (40 + 50 + 100) * MIB
    assert source.asked == [30, 50]


def test_under_a_limit_a_convolution_comes_down_to_the_next_plan_that_fits(under):
    planned = under(with_sizes(300, 100, 200, 0)).by_first_source
    for limit_mib, workspace_mib in ((360, 300), (359, 100), (160, 100), (159, 0)):
        replay = planned.replay_within(limit_mib * MIB)
        assert replay.completed
        assert replay.peak_reserved_bytes == BARE_BYTES + workspace_mib * MIB
    assert not planned.replay_within(BARE_BYTES - 1).completed


def test_where_the_first_plan_is_the_only_one_the_limit_decides(under):
    planned = under(with_sizes(300)).by_first_source
    assert planned.replay_within(BARE_BYTES + 300 * MIB).completed
    assert not planned.replay_within(BARE_BYTES + 300 * MIB - 1).completed


@pytest.mark.parametrize("sizes", [(300, 100, 0), (100, 300, 0), (0, 100, 300)])
def test_benchmarking_comes_down_from_the_largest_even_if_that_is_the_first_plan(sizes, under):
    planned = under(with_sizes(*sizes, conv_algo="cudnn-benchmark")).by_first_source
    for limit_mib, workspace_mib in ((360, 300), (359, 100), (100, 0)):
        replay = planned.replay_within(limit_mib * MIB)
        assert replay.completed
        assert replay.peak_reserved_bytes == BARE_BYTES + workspace_mib * MIB


def with_a_map_after_the_convolution(batch_size: int) -> Trace:
    """The step, of which the first map is freed before the convolution; another, twice as large, follows."""
    trace = step(batch_size)
    larger = dataclasses.replace(
        trace.allocations[1], num_bytes=2 * batch_size * MIB, shape=(batch_size, MIB // 2)
    )
    return dataclasses.replace(
        trace, allocations=(*trace.allocations, larger), events=(0, 1, ~1, 2, ~2, 3, ~3)
    )


def test_benchmarking_gives_back_what_is_cached_though_there_is_nothing_to_choose():
    curve = PeakCurve.through([with_a_map_after_the_convolution(batch_size) for batch_size in (4, 6, 9)])
    peaks = []
    for conv_algo in ("cudnn", "cudnn-benchmark"):
        conditions = with_sizes(0, conv_algo=conv_algo)
        planned = curve.on_card(BATCH_SIZE, conditions).by_first_source
        replay = planned.replay()
        assert replay == planned.replay_within(10**12)
        peaks.append(replay.peak_reserved_bytes // MIB)
    assert peaks == [40 + 20 + 40, 40 + 40]


def test_at_the_worst_the_largest_is_tried_first_and_smaller_ones_after_it(under):
    planned = under(with_sizes(100, 300, 0)).by_first_source
    for limit_mib, workspace_mib in ((360, 300), (359, 100), (100, 0)):
        replay = planned.replay_within(limit_mib * MIB, Level.WORST)
        assert replay.peak_reserved_bytes == BARE_BYTES + workspace_mib * MIB


def test_sources_with_the_same_first_plan_come_down_to_plans_of_their_own(under):
    roomy, tight = of_sizes(300 * MIB, 0), of_sizes(300 * MIB)
    on_card = under(Conditions(plans=(roomy, tight)))
    limit_bytes = BARE_BYTES + 10 * MIB
    runs = [planned.replay_within(limit_bytes).completed for planned in on_card.by_source]
    assert runs == [True, False]


def test_a_size_runs_if_it_does_by_all_sources_likely_if_by_half_of_them_and_perhaps_if_by_one(under):
    roomy, tight = of_sizes(300 * MIB, 0), of_sizes(300 * MIB)
    limit_bytes = BARE_BYTES + 10 * MIB

    def runs(*plans):
        on_card = under(Conditions(plans=plans))
        levels = (Level.LOW, Level.LIKELY, Level.HIGH)
        return [on_card.runs_within(limit_bytes, level) for level in levels]

    assert runs(tight, tight) == [False, False, False]
    assert runs(tight, roomy, tight) == [True, False, False]
    assert runs(tight, roomy) == [True, True, False]
    assert runs(roomy, roomy) == [True, True, True]


def test_what_runs_with_a_smaller_plan_alone_is_thrashing(under):
    on_card = under(with_sizes(300, 100))
    verdicts = [on_card.verdict(limit * MIB) for limit in (360, 359, 160, 159)]
    assert verdicts == [Verdict.FITS, Verdict.THRASH, Verdict.THRASH, Verdict.OOM]


def test_policies_with_other_workspaces_share_no_replay(under):
    plans = MadeUpPlans(lambda _call: (Plan(1, 50 * MIB, uses_tensor_cores=True), Plan(2, 20 * MIB)))
    tf32, ieee = (Conditions(plans=(plans,), allow_tf32=allowed) for allowed in (True, False))
    assert under(tf32).reserved_bytes() == BARE_BYTES + 50 * MIB
    assert under(ieee).reserved_bytes() == BARE_BYTES + 20 * MIB
