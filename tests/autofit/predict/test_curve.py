"""Predicted curves: their intervals, verdicts and estimates at every risk."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from autofit.hardware.card import Card
from autofit.predict.confidence import Calibration, ModelClass, Residuals, cards_of
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Interval
from autofit.predict.plan_sources import CardPlans
from autofit.predict.predictor import Predictor
from autofit.search.boundary import largest_fitting_batch
from autofit.settings.goals import Risk
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES, PeakCurve
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict
from tests.workers.replay.plan_tables import of_sizes

MIB = 1024**2
CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")


# Real runs of any class lay up to a tenth below and a fifth above what was predicted.
OFF = Residuals(
    measured={
        (model_class, cards_of(model_class, "sm_80")): Calibration(
            model_class=model_class,
            cards=cards_of(model_class, "sm_80"),
            low_share=-0.1,
            high_share=0.2,
            num_rows=40,
            num_families=4,
            sources=("a-table",),
        )
        for model_class in ModelClass
    },
    factor=2.0,
    extra_share=0.05,
)


def adding(workspace_share: float, *, spans: bool) -> Residuals:
    """The same, with so much of the largest workspace added, to the largest or to the likely ones."""
    measured = {
        key: dataclasses.replace(one, workspace_share=workspace_share, spans=spans)
        for key, one in OFF.measured.items()
    }
    return dataclasses.replace(OFF, measured=measured)


def test_a_profile_has_the_size_of_every_allocation_and_the_peaks_of_the_estimate(
    workload: Any, worker: Any, exact: Residuals, card: Card
) -> None:
    predictor = Predictor(workload, worker, residuals=exact, plans=FormulaPlans, with_calls=True)
    profile, estimate = predictor.profile(NATIVE, card, 8), predictor.estimate(NATIVE, card, 8)
    assert [spec.with_calls for spec in worker.specs] == [True]
    assert profile.requested_bytes == (100 * MIB, 0, 160 * MIB)
    assert profile.block_bytes == profile.requested_bytes
    assert (profile.knobs, profile.card, profile.context_bytes) == (NATIVE, "a-card", card.context_bytes)
    assert profile.peak_allocated_bytes == estimate.peak_allocated_bytes
    assert profile.peak_reserved_bytes == estimate.peak_reserved_bytes


def test_the_largest_holders_are_taken_together_by_where_they_were_allocated(make_curve: Any) -> None:
    largest = make_curve(num_extra=5)(4).largest
    assert [(part.module, part.num_bytes) for part in largest] == [
        ("extra", 160 * MIB),
        ("", 100 * MIB),
        ("layer", 80 * MIB),
    ]


def test_the_outcome_of_a_prediction_holds_the_high_end_against_the_budget(make_curve: Any) -> None:
    curve: PredictedCurve = make_curve(scratch_mib_per_sample=11)
    verdicts = {size: curve.outcome(size, 512 * MIB).verdict for size in (13, 14, 20, 21)}
    assert verdicts == {13: Verdict.FITS, 14: Verdict.THRASH, 20: Verdict.THRASH, 21: Verdict.OOM}
    assert curve.outcome(13, 512 * MIB).environment["trace_sha256"] == curve(13).trace_digest
    in_doubt: PredictedCurve = make_curve(num_channels=64)
    interval = in_doubt(8).interval
    assert interval.likely_bytes < interval.high_bytes
    outcome = in_doubt.outcome(8, interval.high_bytes - 1)
    assert outcome.budgeted_bytes == interval.high_bytes == in_doubt.peak_reserved_bytes(8)
    assert outcome.verdict is not Verdict.FITS


@pytest.mark.parametrize("most", [{"mib_per_sample": 10}, {"scratch_mib_per_sample": 15}])
@pytest.mark.parametrize("risk", [Risk.SAFE, Risk.WORST])
def test_no_size_fits_whose_high_end_is_above_the_budget(
    workload: Any, card: Card, make_trace: Any, most: dict[str, int], risk: Risk
) -> None:
    """Where values decide sizes, the step with the largest of them may reserve less than the assumed one."""

    def step(**changed: int) -> PeakCurve:
        return PeakCurve.through([make_trace(size, **changed) for size in TRACED_BATCH_SIZES])

    plans, is_less = CardPlans(FormulaPlans, FormulaPlans), "mib_per_sample" in most
    curve = PredictedCurve(
        "step", CUDNN, card, step(), residuals=OFF, plans=plans, on_grid=True, risk=risk, at_most=step(**most)
    )
    high_bytes = curve(8).interval.high_bytes
    assert high_bytes > curve(8).interval.likely_bytes
    assert curve.peak_reserved_bytes(8) == high_bytes
    assert curve.peak_reserved_bytes(9, stop_above_bytes=high_bytes) > high_bytes
    assert curve.verdict(8, high_bytes) is curve.outcome(8, high_bytes).verdict is Verdict.FITS
    assert curve.verdict(8, high_bytes - 1) is not Verdict.FITS
    assert curve.runs_with_smallest_plans(8, high_bytes)
    assert curve.lower_bound_bytes(8) <= high_bytes
    likely = curve.at_risk(Risk.LIKELY)
    assert likely.peak_reserved_bytes(8) == curve(8).interval.likely_bytes
    typical = PredictedCurve("step", CUDNN, card, step(), residuals=OFF, plans=plans, on_grid=True)
    assert (high_bytes == typical(8).interval.high_bytes) == is_less


def test_the_interval_is_the_span_of_the_workspaces_widened_by_what_real_runs_left_over(
    make_curve: Any,
) -> None:
    plain = make_curve(num_channels=256)(8).interval
    widened = make_curve(num_channels=256, residuals=OFF)(8)
    assert plain.low_bytes < plain.likely_bytes <= plain.high_bytes
    assert widened.interval.likely_bytes == plain.likely_bytes == widened.peak_reserved_bytes
    assert widened.interval.low_bytes == plain.low_bytes * 9 // 10
    assert widened.interval.high_bytes == -(-plain.high_bytes * 12 // 10)
    assert widened.calibration.num_rows == 40


def test_a_share_of_the_largest_workspace_is_added_before_the_interval_is_widened(make_curve: Any) -> None:
    sizes = of_sizes(64 * MIB, 0, 128 * MIB, knows_the_order=False)

    def interval(workspace_share: float, *, spans: bool) -> Interval:
        residuals = adding(workspace_share, spans=spans)
        return make_curve(num_channels=256, residuals=residuals, plans=lambda _: sizes)(8).interval

    alone, half, spanned = interval(0.0, spans=False), interval(0.5, spans=False), interval(0.5, spans=True)
    likely = alone.likely_bytes
    assert half.likely_bytes == spanned.likely_bytes == likely
    assert alone.low_bytes == half.low_bytes == likely * 9 // 10
    assert spanned.low_bytes == (likely - 64 * MIB) * 9 // 10
    assert alone.high_bytes == -(-likely * 12 // 10)
    assert half.high_bytes == -(-(likely + 32 * MIB) * 12 // 10)
    assert spanned.high_bytes == -(-(likely + 64 * MIB + 64 * MIB) * 12 // 10)


def test_an_estimate_says_what_the_workspaces_may_come_to_where_they_span_a_range(make_curve: Any) -> None:
    span = make_curve(num_channels=256)(8).workspace_bytes
    assert span is not None
    assert 0 == span.low < span.likely <= span.high
    assert make_curve()(8).workspace_bytes is None


def test_an_interval_is_made_of_named_unknowns_each_moved_alone(make_curve: Any) -> None:
    estimate = make_curve(num_channels=256, residuals=OFF)(8)
    unknowns = {unknown.source: unknown for unknown in estimate.unknowns}
    assert list(unknowns) == ["what real runs were off by", "workspaces of convolutions"]
    plans, runs = unknowns["workspaces of convolutions"], unknowns["what real runs were off by"]
    bare = make_curve(num_channels=256)(8).interval
    assert (plans.low_bytes, plans.high_bytes) == (bare.low_bytes, bare.high_bytes)
    likely = estimate.interval.likely_bytes
    assert (runs.low_bytes, runs.high_bytes) == (likely * 9 // 10, -(-likely * 12 // 10))
    assert {unknown.likely_bytes for unknown in estimate.unknowns} == {likely}
    assert estimate.interval.high_bytes >= max(unknown.high_bytes for unknown in estimate.unknowns)


def test_where_nothing_is_unknown_nothing_is_named(make_curve: Any) -> None:
    assert make_curve()(8).unknowns == ()


@pytest.mark.parametrize("risk", Risk)
def test_what_is_alive_alone_settles_a_verdict_before_any_plan_is_asked_for(
    make_curve: Any, risk: Risk
) -> None:
    sizes = of_sizes(64 * MIB, 0)
    curve = make_curve(num_channels=256, residuals=OFF, plans=lambda _: sizes).at_risk(risk)
    assert curve.verdict(1000, 512 * MIB) is Verdict.OOM
    assert sizes.asked == []
    assert curve.verdict(8, 4096 * MIB) is Verdict.FITS
    assert sizes.asked


def test_on_a_card_without_real_runs_the_ends_are_those_of_the_workspaces(
    make_curve: Any, card: Card
) -> None:
    sizes = of_sizes(200 * MIB, 0)
    curve = make_curve(num_channels=256, residuals=adding(0.5, spans=False), plans=lambda _: sizes)
    hopper = curve.on(Card(name="other", architecture="sm_90", context_bytes=0))
    assert hopper(8).calibration.num_rows == 0
    assert (hopper(8).calibration.low_share, hopper(8).calibration.high_share) == (-0.1, 0.2)
    assert (hopper(8).calibration.spans, curve(8).calibration.spans) == (True, False)
    assert hopper(8).interval.low_bytes < curve(8).interval.low_bytes
    assert hopper.risk is curve.risk


def test_a_step_without_convolutions_has_the_same_interval_on_every_card(make_curve: Any) -> None:
    curve = make_curve(residuals=OFF)
    others = [
        curve.on(Card(name=name, architecture=name, context_bytes=0)) for name in ("sm_80", "sm_90", "sm_100")
    ]
    assert {other(8).interval for other in others} == {curve(8).interval}
    assert others[-1](8).calibration.num_rows == 40


def unnamed(card: Card) -> Card:
    return dataclasses.replace(card, may_be=("sm_75", "sm_80", "sm_90"))


def test_where_no_card_is_named_the_interval_spans_those_it_may_be_and_naming_one_narrows_it(
    workload: Any, worker: Any, card: Card, make_trace: Any
) -> None:
    worker.trace_at = lambda batch_size: make_trace(batch_size, num_channels=256)
    sizes = {"sm_75": of_sizes(0), "sm_80": of_sizes(200 * MIB), "sm_90": of_sizes(900 * MIB)}
    predictor = Predictor(
        workload, worker, residuals=OFF, plans=sizes.__getitem__, plans_elsewhere=sizes.__getitem__
    )
    curve = predictor.curve(CUDNN, unnamed(card))
    named = {name: curve.on(dataclasses.replace(card, architecture=name)) for name in sizes}
    spanned, each = curve(8), {name: on(8) for name, on in named.items()}
    assert spanned.interval.likely_bytes == each["sm_80"].interval.likely_bytes
    assert spanned.interval.low_bytes == min(one.interval.low_bytes for one in each.values())
    assert spanned.interval.high_bytes == max(one.interval.high_bytes for one in each.values())
    assert spanned.architectures == ("sm_80", "sm_75", "sm_90")
    assert each["sm_90"].architectures == ("sm_90",)
    for name, on in named.items():
        assert on.peak_reserved_bytes(8) <= curve.peak_reserved_bytes(8), name
    between = each["sm_80"].interval.high_bytes
    assert named["sm_80"].verdict(8, between) is Verdict.FITS
    assert curve.verdict(8, between) is not Verdict.FITS
    assert curve.at_risk(Risk.LIKELY).verdict(8, between) is Verdict.FITS


@pytest.mark.parametrize("spans", [True, False])
@pytest.mark.parametrize("workspace_share", [0.0, 0.3])
@pytest.mark.parametrize("risk", Risk)
def test_peaks_and_verdicts_are_those_of_the_risk_and_agree(
    make_curve: Any, risk: Risk, workspace_share: float, spans: bool
) -> None:
    plans, residuals = of_sizes(64 * MIB, 512 * MIB, 0), adding(workspace_share, spans=spans)
    curve = make_curve(num_channels=256, residuals=residuals, plans=lambda _architecture: plans).at_risk(risk)
    estimate = curve(8)
    peak = curve.peak_reserved_bytes(8)
    if risk is Risk.SAFE:
        assert peak == estimate.interval.high_bytes
    elif risk is Risk.LIKELY:
        assert peak == estimate.interval.likely_bytes
    else:
        assert peak > estimate.interval.high_bytes
    assert curve.lower_bound_bytes(8) <= peak
    assert curve.verdict(8, peak) is Verdict.FITS
    assert curve.verdict(8, peak - 1) is not Verdict.FITS
    outcome = curve.outcome(8, peak - 1)
    assert outcome.peaks.reserved_bytes == peak
    assert outcome.peaks.allocated_bytes == estimate.peak_allocated_bytes


def test_a_workspace_beyond_the_whole_budget_is_out_of_memory(make_curve: Any) -> None:
    sizes, residuals = of_sizes(512 * MIB), adding(1.0, spans=False)
    curve = make_curve(num_channels=256, residuals=residuals, plans=lambda _: sizes)
    assert curve.verdict(8, 300 * MIB) is Verdict.OOM
    assert curve.peak_reserved_bytes(8, stop_above_bytes=300 * MIB) > 300 * MIB


@pytest.mark.parametrize("spans", [True, False])
@pytest.mark.parametrize("workspace_share", [0.0, 0.3])
@pytest.mark.parametrize("risk", Risk)
def test_an_evaluation_that_stops_early_says_above_exactly_where_the_peak_is(
    make_curve: Any, risk: Risk, workspace_share: float, spans: bool
) -> None:
    """The bound is divided by what the peak is multiplied with; neither rounds across the budget."""
    sizes = of_sizes(64 * MIB, 0, 128 * MIB, knows_the_order=False)
    residuals = adding(workspace_share, spans=spans)
    step = {"num_channels": 256, "residuals": residuals, "plans": lambda _: sizes, "risk": risk}
    exact = make_curve(**step).peak_reserved_bytes(8)
    for budget_bytes in (exact - 1, exact, exact + 1):
        curve = make_curve(**step)
        stopped = curve.peak_reserved_bytes(8, stop_above_bytes=budget_bytes)
        assert (stopped > budget_bytes) == (exact > budget_bytes)
        assert stopped <= exact


def test_what_cannot_run_fails_at_the_low_end_with_all_that_can_be_released(make_curve: Any) -> None:
    """200 MiB beside a freed scratch of 110: 300 suffice with retries, and a tenth less at the low end."""
    curve = make_curve(mib_per_sample=20, scratch_mib_per_sample=11, residuals=OFF)
    low_end = 300 * MIB * 9 // 10
    assert not curve.cannot_run(10, low_end)
    assert curve.cannot_run(10, low_end - MIB)
    assert curve.at_risk(Risk.LIKELY).verdict(10, 300 * MIB) is Verdict.THRASH


def test_curves_at_other_risks_are_the_same_curve(make_curve: Any) -> None:
    curve = make_curve(num_channels=256, residuals=OFF)
    assert curve.at_risk(Risk.LIKELY)(8) == curve(8)
    assert curve.risk is Risk.SAFE


@pytest.mark.parametrize("order", list(itertools.permutations(Risk)))
def test_what_is_known_at_one_risk_changes_no_answer_at_another(
    make_curve: Any, order: tuple[Risk, ...]
) -> None:
    sizes, residuals = of_sizes(64 * MIB, 96 * MIB, 0), adding(0.3, spans=True)
    step = {"num_channels": 256, "residuals": residuals, "plans": lambda _: sizes}

    def largest(curve: PredictedCurve) -> int | None:
        return largest_fitting_batch(curve, 1024 * MIB, max_batch=60).largest_batch

    alone = {risk: largest(make_curve(**step, risk=risk)) for risk in Risk}
    curve = make_curve(**step)
    assert {risk: largest(curve.at_risk(risk)) for risk in order} == alone
    assert alone[Risk.LIKELY] > alone[Risk.SAFE] > alone[Risk.WORST]


def test_a_size_that_is_likely_too_large_is_so_at_every_risk_without_another_replay(
    make_curve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = make_curve(num_channels=256, residuals=OFF)
    likely = curve.at_risk(Risk.LIKELY).peak_reserved_bytes(8)

    def refused(*_arguments: object, **_named: object) -> None:
        raise AssertionError("a replay")

    monkeypatch.setattr("autofit_workers.replay.curve.planned_step.replay", refused)
    for risk in (Risk.SAFE, Risk.WORST):
        assert curve.at_risk(risk).peak_reserved_bytes(8, stop_above_bytes=likely - 1) == likely


def test_where_real_runs_took_less_than_is_likely_that_bounds_nothing(make_curve: Any) -> None:
    measured = {key: dataclasses.replace(one, high_share=-0.1) for key, one in OFF.measured.items()}
    curve = make_curve(residuals=dataclasses.replace(OFF, measured=measured))
    likely = curve.at_risk(Risk.LIKELY).peak_reserved_bytes(8)
    safe = curve.peak_reserved_bytes(8, stop_above_bytes=likely - 1)
    assert safe == -(-likely * 9 // 10) < likely


def test_near_the_limit_the_smallest_plans_may_let_a_size_run(make_curve: Any) -> None:
    """Without its workspace a step of eight holds 260 MiB, a fifth more at the high end."""
    curve = make_curve(num_channels=256, residuals=OFF)
    assert curve.peak_reserved_bytes(8) > 312 * MIB
    assert curve.runs_with_smallest_plans(8, 312 * MIB)
    assert not curve.runs_with_smallest_plans(8, 311 * MIB)


def test_a_curve_and_an_estimate_span_the_same(predictor: Predictor, card: Card) -> None:
    curve = predictor.curve(CUDNN, unnamed(card))
    for batch_size in (1, 17, 50):
        assert curve(batch_size).interval == predictor.estimate(CUDNN, unnamed(card), batch_size).interval
