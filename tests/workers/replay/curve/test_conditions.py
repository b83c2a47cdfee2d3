"""What each call demands under the conditions of a replay."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.conditions import Conditions, Level, demands
from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.workspace import native_workspace
from autofit_workers.replay.spans import NO_WORKSPACE, between, certain
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.trace import Scratch
from tests.workers.replay.plan_tables import CONVOLUTION, DEPTHWISE, GROUPED, MadeUpPlans, of_sizes, variant

RELEASE = (2, 13)
SPAN = between(10, 20, 30)
CUBLAS = Scratch(formula="cublas", dimensions=(), element_bytes=1)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Level.LOW, ("low",)),
        (Level.LIKELY, ("likely",)),
        (Level.HIGH, ("high", "likely", "low")),
        (Level.WORST, ("worst", "high", "likely", "low")),
    ],
)
def test_up_to_a_level_are_all_below_it_but_the_likely_one_stands_alone(level, expected):
    assert level.up_to == expected


def test_without_plans_there_are_formulas_for_the_architecture():
    assert Conditions(architecture="sm_75").sources == (FormulaPlans("sm_75"),)


def test_all_sources_that_are_given_are_replayed():
    sources = of_sizes(1), of_sizes(2)
    assert Conditions(plans=sources).sources == sources


def test_native_convolutions_ask_nobody():
    source = of_sizes(500, 0)
    conditions = Conditions(conv_algo="native", plans=(source,))
    (chosen,) = conditions.sources
    calls = (CONVOLUTION, DEPTHWISE)
    assert demands(calls, conditions, chosen, RELEASE) == tuple(map(native_workspace, calls))
    assert demands(calls, conditions, source, RELEASE) == tuple(map(native_workspace, calls))
    assert source.asked == []


def test_each_convolution_has_the_workspace_of_its_own_plans():
    source = MadeUpPlans(lambda call: (Plan(1, 100 * call.groups), Plan(0, 0)))
    dense, grouped = demands((CONVOLUTION, GROUPED), Conditions(), source, RELEASE)
    assert (dense.likely_bytes, grouped.likely_bytes) == (100, 3200)


def test_a_batch_that_cudnn_goes_through_in_pieces_has_the_workspace_of_one():
    source = MadeUpPlans(lambda call: (Plan(0, call.input_shape[0]),))
    last = 2**31 // (64 * 56 * 56)
    calls = [CONVOLUTION.of_samples(size) for size in (last - 1, last, last + 1, 10 * last)]
    found = demands(calls, Conditions(), source, RELEASE)
    assert [each.likely_bytes for each in found] == [last - 1, last, last, last]


def test_a_source_is_asked_for_all_convolutions_of_cudnn_at_once_and_for_no_others():
    asked: list[int] = []

    class Counting(MadeUpPlans):
        def plans(self, calls):
            asked.append(len(calls))
            return super().plans(calls)

    source = Counting(lambda _call: (Plan(1, 100),))
    calls = (CONVOLUTION, DEPTHWISE, GROUPED, SPAN, ("cublas", CUBLAS))
    assert demands(calls, Conditions(), source, RELEASE)[1] == NO_WORKSPACE
    assert asked == [2]


def test_a_depthwise_convolution_in_channels_last_is_cudnns():
    (needed,) = demands((variant(groups=64, channels_last=True),), Conditions(), of_sizes(7), RELEASE)
    assert needed.likely_bytes == 7


def test_bfloat16_on_turing_is_left_to_pytorchs_kernels_for_which_nobody_is_asked():
    half = variant(dtype="bfloat16", element_bytes=2)
    source = of_sizes(500, 0)
    needed = demands((half,), Conditions(architecture="sm_75"), source, RELEASE)
    assert needed == (native_workspace(half),)
    assert source.asked == []
    assert demands((half,), Conditions(architecture="sm_80"), source, RELEASE)[0].likely_bytes == 500


def test_the_policy_and_tf32_decide_among_the_plans():
    source = MadeUpPlans(
        lambda _call: (
            Plan(1, 500, uses_tensor_cores=True),
            Plan(2, 300, is_deterministic=False),
            Plan(3, 400),
        )
    )

    def likely_bytes(**settings) -> int:
        (needed,) = demands((CONVOLUTION,), Conditions(**settings), source, RELEASE)
        return needed.likely_bytes

    assert likely_bytes() == 500
    assert likely_bytes(allow_tf32=False) == 300
    assert likely_bytes(allow_tf32=False, conv_algo="cudnn-deterministic") == 400
    assert likely_bytes(conv_algo="cudnn-benchmark") == 500


@pytest.mark.parametrize("knows_the_order", [True, False])
def test_a_source_that_does_not_know_the_order_leaves_doubt(knows_the_order):
    source = of_sizes(100, 900, knows_the_order=knows_the_order)
    (needed,) = demands((CONVOLUTION,), Conditions(), source, RELEASE)
    assert needed.high_bytes == (100 if knows_the_order else 900)


def test_an_estimated_span_is_what_it_is_whatever_the_conditions():
    for conv_algo in ("cudnn", "cudnn-benchmark", "native"):
        assert demands((SPAN,), Conditions(conv_algo=conv_algo), of_sizes(1), RELEASE) == (SPAN,)


def test_scratch_memory_counts_where_its_correction_is_on():
    call = ("cublas", CUBLAS)
    expected = scratch_bytes(CUBLAS, Platform(Architecture.of("sm_80"), RELEASE))
    assert expected > 0
    assert demands((call,), Conditions(), of_sizes(1), RELEASE) == (certain(expected),)
    off = Conditions(corrections=frozenset({"layer_norm"}))
    assert demands((call,), off, of_sizes(1), RELEASE) == (NO_WORKSPACE,)


def test_the_release_that_runs_counts_before_that_of_the_trace():
    seen = {
        release: demands(
            (("cublas", CUBLAS),),
            Conditions(architecture="sm_90", torch_release=release),
            of_sizes(1),
            RELEASE,
        )
        for release in (None, RELEASE)
    }
    hopper = Platform(Architecture.of("sm_90"), RELEASE)
    assert seen[None] == seen[RELEASE] == (certain(scratch_bytes(CUBLAS, hopper)),)
