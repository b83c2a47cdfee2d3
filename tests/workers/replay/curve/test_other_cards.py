"""Demands whose ends span several cards."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.curve.conditions import Conditions, demands
from autofit_workers.replay.curve.other_cards import OtherCards
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.table_plans import TablePlans
from autofit_workers.replay.plans.workspace import native_workspace
from autofit_workers.replay.spans import Workspace, between
from autofit_workers.spec.trace import Scratch
from tests.workers.replay.plan_tables import (
    CONVOLUTION,
    MIB,
    MadeUpPlans,
    of_samples,
    of_sizes,
    step,
    variant,
)

RELEASE = (2, 13)
SPAN = between(10, 20, 30)
BATCH_SIZE = 64
CUBLAS = ("cublas", Scratch(formula="cublas", dimensions=(), element_bytes=1))


def widened(*calls, likely=None, **conditions) -> tuple[Workspace, ...]:
    """What calls demand on an sm_80 card of these plans, and elsewhere."""
    source = likely or of_sizes(300, 50)
    return demands(calls, Conditions(plans=(source,), **conditions), source, RELEASE)


def test_the_ends_are_the_least_and_the_most_of_all_cards_and_likely_is_one_card_alone():
    elsewhere = OtherCards({"sm_75": of_sizes(200, 20), "sm_90": of_sizes(700, 900, 100)})
    (needed,) = widened(CONVOLUTION, elsewhere=elsewhere)
    assert needed == Workspace(20, 300, 700, 900, choices_bytes=(300, 50))


def test_the_likely_card_is_spanned_too():
    (needed,) = widened(CONVOLUTION, elsewhere=OtherCards({"sm_75": of_sizes(100)}))
    assert (needed.low_bytes, needed.likely_bytes, needed.high_bytes) == (50, 300, 300)


def test_other_cards_follow_the_same_policy():
    plans = MadeUpPlans(
        lambda _call: (
            Plan(1, 900, uses_tensor_cores=True),
            Plan(2, 600, is_deterministic=False),
            Plan(3, 400),
        )
    )
    elsewhere = OtherCards({"sm_90": plans})

    def high_bytes(**policy) -> int:
        (needed,) = widened(CONVOLUTION, elsewhere=elsewhere, **policy)
        return needed.high_bytes

    assert high_bytes() == 900
    assert high_bytes(allow_tf32=False) == 600
    assert high_bytes(allow_tf32=False, conv_algo="cudnn-deterministic") == 400


def test_pytorchs_own_kernels_are_the_same_on_every_card_and_nobody_is_asked():
    plans = of_sizes(900)
    (needed,) = widened(CONVOLUTION, elsewhere=OtherCards({"sm_90": plans}), conv_algo="native")
    assert needed == native_workspace(CONVOLUTION)
    assert plans.asked == []


def test_a_card_without_the_type_takes_pytorchs_own_kernels():
    half = variant(dtype="bfloat16", element_bytes=2)
    columns = native_workspace(half).likely_bytes
    (needed,) = widened(half, elsewhere=OtherCards({"sm_75": of_sizes(columns + 900)}))
    assert (needed.likely_bytes, needed.high_bytes) == (300, columns)


def test_scratch_memory_spans_the_cards_and_what_is_the_same_everywhere_stays():
    elsewhere = OtherCards({"sm_75": of_sizes(1), "sm_90": of_sizes(1)})
    cublas, span = widened(CUBLAS, SPAN, elsewhere=elsewhere)
    assert (cublas.likely_bytes, cublas.high_bytes) == (8320 * 1024, 32 * MIB)
    assert cublas.low_bytes == cublas.likely_bytes
    assert span == SPAN
    off, _ = widened(CUBLAS, SPAN, elsewhere=elsewhere, corrections=frozenset())
    assert off.high_bytes == 0


@pytest.mark.parametrize("num_samples", [9000, 10_000, 11_000, 15_000, 10**6])
def test_what_cudnn_runs_at_once_is_all_that_grows(num_samples):
    last = 2**31 // (64 * 56 * 56)  # of CONVOLUTION, 64 maps of 56×56
    source = MadeUpPlans(lambda call: (Plan(1, 1000 * min(call.input_shape[0], last)),))
    (needed,) = widened(
        of_samples(num_samples), likely=of_sizes(10**9, 10**8), elsewhere=OtherCards({"sm_90": source})
    )
    (most,) = widened(of_samples(num_samples), likely=of_sizes(0), elsewhere=OtherCards({"sm_90": source}))
    assert needed.low_bytes == most.high_bytes == most.worst_bytes == 1000 * min(num_samples, last)


@pytest.mark.parametrize("num_samples", [64, 65, 77, 95])
def test_between_the_sizes_asked_for_the_ends_hold_for_either_kernel(num_samples):
    """From some size on another kernel is taken, which wants half or twice as much a sample."""
    for rates in ((1000, 500), (1000, 2000)):
        for turn in (65, 80, 96):

            def plans(call, rates=rates, turn=turn):
                samples = call.input_shape[0]
                return (Plan(1, samples * rates[samples >= turn]),)

            call, source = of_samples(num_samples), MadeUpPlans(plans)
            (needed,) = widened(call, likely=of_sizes(10**9, 70_000), elsewhere=OtherCards({"sm_90": source}))
            (own,) = source.plans([call])
            assert needed.low_bytes <= own[0].workspace_bytes
            (most,) = widened(call, likely=of_sizes(0), elsewhere=OtherCards({"sm_90": source}))
            assert own[0].workspace_bytes <= most.high_bytes <= 2000 * num_samples


def test_a_search_over_many_sizes_asks_at_few_of_them():
    source = of_sizes(900)
    elsewhere = OtherCards({"sm_90": source})
    for num_samples in range(65, 129):
        widened(of_samples(num_samples), CONVOLUTION, elsewhere=elsewhere)
    assert sorted(source.asked) == [64, 96, 128]


@pytest.mark.parametrize("conv_algo", ["cudnn", "cudnn-benchmark", "cudnn-deterministic"])
def test_the_ends_span_what_each_cards_own_table_says(conv_algo):
    names = ("sm_70", "sm_75", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
    tables = {name: TablePlans(name) for name in ("sm_80", *names)}
    elsewhere = OtherCards({name: tables[name] for name in names})
    calls = [
        of_samples(n, variant(conv_pass=each)) for n in (1, 8, 96) for each in ("fprop", "dgrad", "wgrad")
    ]
    needed = widened(*calls, likely=tables["sm_80"], elsewhere=elsewhere, conv_algo=conv_algo)
    for name, table in tables.items():
        own = demands(calls, Conditions(architecture=name, conv_algo=conv_algo), table, RELEASE)
        for spanned, one in zip(needed, own, strict=True):
            assert spanned.low_bytes <= one.low_bytes
            assert spanned.high_bytes >= one.high_bytes
            assert spanned.worst_bytes >= one.worst_bytes


def test_the_peaks_of_a_step_span_those_on_each_card_and_cost_a_replay_an_end():
    curve = PeakCurve.through([step(BATCH_SIZE)])
    plans = {"sm_75": of_sizes(0), "sm_80": of_sizes(300 * MIB), "sm_90": of_sizes(800 * MIB)}
    elsewhere = OtherCards({name: plans[name] for name in ("sm_75", "sm_90")})
    alike = Conditions(plans=(plans["sm_80"],), elsewhere=elsewhere)
    spanned = curve.on_card(BATCH_SIZE, alike).estimate()
    assert len(curve.lines.memory) == 3
    alone = {
        name: curve.on_card(BATCH_SIZE, Conditions(architecture=name, plans=(plans[name],))).estimate()
        for name in plans
    }
    assert spanned.reserved_bytes == alone["sm_80"].reserved_bytes
    assert spanned.low_bytes == alone["sm_75"].low_bytes
    assert spanned.high_bytes == alone["sm_90"].high_bytes
    assert curve.on_card(BATCH_SIZE, alike).reserved_bytes() == spanned.high_bytes


def test_where_workspaces_are_from_is_told_of_the_other_cards_where_it_differs():
    source = FormulaPlans("sm_80")
    conditions = Conditions(plans=(source,), elsewhere=OtherCards({"sm_90": FormulaPlans("sm_90")}))
    assert conditions.workspace_source == "formulas"
    table = dataclasses.replace(
        conditions, elsewhere=OtherCards({"sm_90": of_sizes(1), "sm_75": of_sizes(2)})
    )
    assert table.workspace_source == "formulas; other architectures: made up"
    native = dataclasses.replace(table, conv_algo="native")
    assert native.workspace_source == "PyTorch's own kernels"
