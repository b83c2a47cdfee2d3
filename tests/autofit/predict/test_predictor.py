"""Predictions: which traces are asked for, what curves make of them, and what failures mean."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autofit.errors import (
    AutofitError,
    DispatchError,
    UnpredictableCardError,
    UsageError,
    WorkloadFailedError,
)
from autofit.events import Event, Progress
from autofit.hardware.card import Card, card_named
from autofit.predict.confidence import Calibration, ModelClass, Residuals, cards_of
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Interval
from autofit.predict.plan_sources import CardPlans
from autofit.predict.predictor import Predictor, raise_if_failed
from autofit.report.words import assumed_sizes
from autofit.search.boundary import largest_fitting_batch
from autofit.settings.goals import Risk
from autofit.tuning.curves import CurveSet
from tests.workers.predict.plan_tables import of_sizes
from workers.knobs import Knobs
from workers.predict.curve.peak_curve import TRACED_BATCH_SIZES, PeakCurve
from workers.predict.plans.formula_plans import FormulaPlans
from workers.protocol import Device, Evidence, Probe, TrialError, TrialOutcome, Verdict
from workers.setup import Setup
from workers.trace import COMPILED_STEP, MANAGED_MEMORY, Allocation, Assumption, Category, Scratch, Trace

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


@pytest.fixture
def predictor(workload: Any, worker: Any, exact: Residuals) -> Predictor:
    return Predictor(workload, worker, residuals=exact, plans=FormulaPlans)


def loops(make_trace: Any) -> Callable[[int], Trace]:
    """A step that makes a tensor of 32 MiB for every sample of the batch."""
    return lambda batch_size: make_trace(batch_size, num_extra=batch_size)


def test_settings_that_differ_in_the_convolution_policy_alone_share_three_traces(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    for conv_algo in ("cudnn", "cudnn-benchmark", "native"):
        predictor.curve(Knobs(conv_algo=conv_algo), card)
    assert worker.traced == list(TRACED_BATCH_SIZES)
    predictor.curve(Knobs(precision="amp-bf16"), card)
    assert worker.traced == list(TRACED_BATCH_SIZES) * 2


def test_a_card_whose_convolutions_nobody_knows_has_no_curve_of_them(
    predictor: Predictor, worker: Any, make_trace: Any, card: Card
) -> None:
    worker.trace_at = lambda batch_size: make_trace(batch_size, num_channels=16)
    amds, trace = card_named("mi300x"), predictor.trace(CUDNN, 8)
    for ask in (
        lambda: predictor.curve(CUDNN, amds),
        lambda: predictor.curve_at(CUDNN, amds, 8),
        lambda: predictor.curve_of(trace, CUDNN, amds),
    ):
        with pytest.raises(UnpredictableCardError, match="MIOpen"):
            ask()
    curve = predictor.curve(NATIVE, amds)
    assert curve.why_unpredictable_on(amds, 8) is None
    assert curve.conv_cost(8, 10**12) is None
    assert "MIOpen" in str(predictor.curve(CUDNN, card).why_unpredictable_on(amds, 8))


@pytest.mark.parametrize(
    ("operator", "source"),
    [
        (MANAGED_MEMORY, "pages of managed memory"),
        (COMPILED_STEP, "temporaries of the compiled optimizer step"),
    ],
)
def test_what_may_be_on_the_card_or_not_is_an_unknown_of_its_own_from_nothing_to_all(
    predictor: Predictor, worker: Any, make_trace: Any, operator: str, source: str
) -> None:
    def takes_pages(batch_size: int) -> Trace:
        trace = make_trace(batch_size)
        pages = Allocation(
            num_bytes=0,
            category=Category.OPTIMIZER_STATE,
            operator=operator,
            span_bytes=(0, 40 * MIB),
        )
        number = len(trace.allocations)
        return dataclasses.replace(
            trace, allocations=(*trace.allocations, pages), events=(number, *trace.events)
        )

    without = predictor.curve(CUDNN, card_named("h100-80g"))(8)
    worker.trace_at = takes_pages
    curve = predictor.curve(dataclasses.replace(CUDNN, optimizer="adam"), card_named("h100-80g"))
    (unknown,) = curve(8).unknowns
    assert unknown.source == source
    assert unknown.low_bytes == unknown.likely_bytes == without.peak_reserved_bytes
    assert unknown.high_bytes == unknown.likely_bytes + 40 * MIB
    assert curve(8).interval.high_bytes >= unknown.high_bytes


def test_on_amd_s_cards_the_workspaces_of_products_are_an_unknown_of_their_own(
    predictor: Predictor, worker: Any, make_trace: Any
) -> None:
    def multiplies(batch_size: int) -> Trace:
        trace = make_trace(batch_size)
        workspace = Allocation(
            num_bytes=0,
            category=Category.WORKSPACE,
            correction="cublas",
            scratch=Scratch(formula="cublas", dimensions=(), element_bytes=1),
        )
        number = len(trace.allocations)
        return dataclasses.replace(
            trace, allocations=(*trace.allocations, workspace), events=(number, *trace.events)
        )

    worker.trace_at = multiplies
    assert predictor.curve(CUDNN, card_named("h100-80g"))(8).unknowns == ()
    (unknown,) = predictor.curve(CUDNN, card_named("mi210"))(8).unknowns
    assert unknown.source == "workspaces of hipBLASLt, hipBLAS and AOTriton"
    assert unknown.high_bytes - unknown.likely_bytes == 32 * MIB
    assert unknown.likely_bytes - unknown.low_bytes == 44 * MIB


def test_what_decides_no_event_costs_no_trace(predictor: Predictor, worker: Any, card: Card) -> None:
    for knobs in (
        Knobs(grad_accumulation=2),
        Knobs(grad_accumulation=16, allocator="expandable_segments"),
        Knobs(global_batch=64, allocator="max_split:64"),
    ):
        predictor.estimate(knobs, card, 8)
    assert worker.traced == [8]


def test_a_global_batch_in_one_piece_is_a_step_like_any(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    predictor.curve(Knobs(global_batch=64), card)
    assert worker.traced == list(TRACED_BATCH_SIZES) * 2
    assert [spec.knobs for spec in worker.specs[::3]] == [Knobs(grad_accumulation=2), Knobs()]
    predictor.curve(Knobs(), card)
    predictor.curve(Knobs(grad_accumulation=5), card)
    assert worker.traced == list(TRACED_BATCH_SIZES) * 2


def test_a_trace_is_asked_for_once_with_the_mode_and_said_before(worker: Any, workload: Any) -> None:
    events: list[Event] = []
    predictor = Predictor(workload, worker, setup=Setup(mode="infer"), emit=events.append)
    assert predictor.trace(CUDNN, 8) is predictor.trace(NATIVE, 8)
    (spec,) = worker.specs
    assert (spec.probe, spec.setup.mode, spec.batch_size, spec.workload) == (
        Probe.PREDICT,
        "infer",
        8,
        workload,
    )
    assert events == [Progress(stage="tracing batch 8")]


def test_traces_that_are_expected_are_made_ahead_and_once_each(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    predictor.expect(CUDNN, [12])  # nobody traces ahead
    assert worker.traced == []
    with predictor.tracing_ahead():
        predictor.expect(CUDNN, [*TRACED_BATCH_SIZES, 8])
        ahead = predictor.curve(NATIVE, card)(8)
        predictor.trace(CUDNN, 8)
    assert sorted(worker.traced) == sorted([*TRACED_BATCH_SIZES, 8])
    assert predictor.curve(NATIVE, card)(8) == ahead
    predictor.trace(CUDNN, 12)
    assert worker.traced[-1] == 12


def test_what_cannot_be_traced_ahead_is_told_to_whoever_asks_for_it(
    predictor: Predictor, worker: Any
) -> None:
    worker.failure = Verdict.FAILED, TrialError(kind="user", message="it broke")
    with predictor.tracing_ahead():
        predictor.expect(Knobs(global_batch=12), [5])  # which does not divide it
        predictor.expect(CUDNN, [4])
        with pytest.raises(WorkloadFailedError, match="it broke"):
            predictor.trace(CUDNN, 4)


def test_every_trace_is_kept_in_the_state_directory_by_its_digest(
    predictor: Predictor, card: Card, state_dir: Path
) -> None:
    digest = predictor.curve(CUDNN, card)(64).trace_digest
    kept = {path.name.removesuffix(".json.gz"): path for path in (state_dir / "traces").iterdir()}
    assert len(kept) == len(TRACED_BATCH_SIZES)
    assert Trace.from_json(gzip.decompress(kept[digest].read_bytes()).decode()).digest == digest


def test_a_curve_needs_no_trace_for_a_further_size_and_equals_the_estimate_there(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    curve = predictor.curve(CUDNN, card)
    for batch_size in (1, 17, 300):
        traced = predictor.estimate(CUDNN, card, batch_size)
        assert dataclasses.replace(curve(batch_size), trace_digest=traced.trace_digest) == traced
    assert not curve.needs_traces
    assert worker.traced == [*TRACED_BATCH_SIZES, 1, 17, 300]


def test_an_estimate_says_what_the_step_needs_and_where_it_goes(predictor: Predictor, card: Card) -> None:
    estimate = predictor.estimate(CUDNN, card, 8)
    assert estimate.peak_allocated_bytes == estimate.peak_reserved_bytes == 260 * MIB
    assert estimate.device_peak_bytes == 260 * MIB + card.context_bytes
    assert (estimate.breakdown.parameters, estimate.breakdown.activations) == (100 * MIB, 160 * MIB)
    assert estimate.evidence is Evidence.PREDICTED
    assert (estimate.device.kind, estimate.device.name) == ("cuda", "a-card")
    assert [(part.module, part.num_bytes) for part in estimate.largest] == [
        ("layer", 160 * MIB),
        ("", 100 * MIB),
    ]


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


def test_an_assumed_size_is_told_with_the_batch_size_that_it_was_traced_at(
    predictor: Predictor, worker: Any, make_trace: Any, card: Card
) -> None:
    def masks(batch_size: int) -> Trace:
        most = 4096 * batch_size
        assumed = Assumption(site="mask.py:5:loss", what="elements", size=most // 2, largest=most)
        return dataclasses.replace(make_trace(batch_size), assumptions=(assumed,))

    worker.trace_at = masks
    curve, traced = predictor.curve(CUDNN, card), TRACED_BATCH_SIZES[0]
    said = f"elements at mask.py:5:loss: 8,192 assumed of at most 16,384 at batch {traced}"
    assert assumed_sizes(curve(28474)) == (said,)
    assert assumed_sizes(curve(traced)) == (said.removesuffix(f" at batch {traced}"),)
    assert assumed_sizes(predictor.estimate(CUDNN, card, 8)) == (
        "elements at mask.py:5:loss: 16,384 assumed of at most 32,768",
    )


def test_the_same_step_on_another_card_costs_no_trace(predictor: Predictor, worker: Any, card: Card) -> None:
    curve = predictor.curve(CUDNN, card)
    other = curve.on(Card(name="other", architecture="sm_90", context_bytes=640 * MIB))(8)
    assert (other.device.name, other.context_bytes) == ("other", 640 * MIB)
    assert other.peak_reserved_bytes == curve(8).peak_reserved_bytes
    assert worker.traced == list(TRACED_BATCH_SIZES)


def test_a_step_whose_events_depend_on_the_batch_is_traced_at_every_size_once(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any
) -> None:
    worker.trace_at = loops(make_trace)
    curve = predictor.curve(CUDNN, card)
    assert curve.needs_traces
    assert curve(11).peak_allocated_bytes == (100 + 52 * 11) * MIB
    curve.on(card).outcome(11, 512 * MIB)
    assert worker.traced == [*TRACED_BATCH_SIZES, 11]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_curve_stands_where_a_trace_has_other_events_and_the_same_peak(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any, is_kept: bool
) -> None:
    def from_40_on(batch_size: int) -> Trace:
        trace = make_trace(batch_size, scratch_mib_per_sample=20)
        if batch_size < 40:
            return trace
        number = len(trace.allocations)
        more = dataclasses.replace(trace.allocations[0], num_bytes=64 * MIB, category=Category.OTHER)
        events = (*trace.events[:3], number, *(() if is_kept else (~number,)), *trace.events[3:])
        return dataclasses.replace(trace, allocations=(*trace.allocations, more), events=events)

    worker.trace_at = from_40_on
    predictor.curve(CUDNN, card)
    assert predictor.confirm(CUDNN, card, 39)
    assert predictor.confirm(CUDNN, card, 40) == (not is_kept)
    assert predictor.curve(CUDNN, card).needs_traces == is_kept


@pytest.mark.parametrize("last_that_differs", [1, 2])
def test_a_step_that_differs_at_one_sample_alone_keeps_its_curve_for_all_others(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any, last_that_differs: int
) -> None:
    worker.trace_at = lambda size: make_trace(size, num_extra=2 if size <= last_that_differs else 0)
    before = predictor.curve(CUDNN, card)(16)
    assert not predictor.confirm(CUDNN, card, 1)
    curve = predictor.curve(CUDNN, card)
    assert curve.needs_traces == (last_that_differs > 1)
    assert dataclasses.replace(curve(16), trace_digest=before.trace_digest) == before
    assert curve(1).peak_allocated_bytes == (100 + 64 + 20) * MIB
    assert predictor.confirm(CUDNN, card, 1)
    assert predictor.confirm(CUDNN, card, 33)
    for size in (1, 5, 33):
        traced = predictor.estimate(CUDNN, card, size)
        assert dataclasses.replace(curve(size), trace_digest=traced.trace_digest) == traced


def test_a_size_beyond_the_whole_data_set_is_refused_with_what_to_ask(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any
) -> None:
    worker.trace_at = lambda batch_size: loops(make_trace)(min(batch_size, 30))
    with pytest.raises(WorkloadFailedError, match=r"batch 31 is more than the 30 samples .*--max-batch 30"):
        predictor.curve(CUDNN, card)(31)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_size_below_one_is_refused(predictor: Predictor, card: Card, batch_size: int) -> None:
    with pytest.raises(UsageError, match=str(batch_size)):
        predictor.curve(CUDNN, card)(batch_size)
    with pytest.raises(UsageError, match=str(batch_size)):
        predictor.estimate(CUDNN, card, batch_size)


def test_a_step_that_cannot_be_traced_ends_the_prediction(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    worker.failure = (Verdict.FAILED, TrialError(kind="data-dependent", message="nonzero at step.py:3"))
    with pytest.raises(WorkloadFailedError, match=r"nonzero at step\.py:3") as raised:
        predictor.curve(CUDNN, card)
    assert raised.value.kind == "data-dependent"


@pytest.mark.parametrize(
    ("verdict", "told", "kind", "exit_code"),
    [
        (Verdict.FAILED, "user", "workload", 4),
        (Verdict.INVALID, "user", "workload", 4),
        (Verdict.FAILED, "unsupported", "unsupported", 4),
        (Verdict.FAILED, "missing-library", "infrastructure", 5),
        (Verdict.LOST, "environment", "dispatch", 5),
        (Verdict.TIMEOUT, "environment", "dispatch", 5),
    ],
)
def test_an_outcome_without_an_answer_is_the_error_that_ends_the_command(
    verdict: Verdict, told: str, kind: str, exit_code: int
) -> None:
    error = TrialError(kind=told, message="it broke", traceback="line 1")
    with pytest.raises(AutofitError, match="it broke") as raised:
        raise_if_failed(outcome_of(verdict, error))
    assert (raised.value.kind, raised.value.exit_code) == (kind, exit_code)
    if isinstance(raised.value, WorkloadFailedError):
        assert raised.value.traceback == "line 1"


@pytest.mark.parametrize("verdict", [Verdict.FITS, Verdict.OOM, Verdict.THRASH])
def test_an_outcome_about_memory_is_no_error(verdict: Verdict) -> None:
    raise_if_failed(outcome_of(verdict))


def test_an_outcome_that_gives_no_reason_is_named_by_its_verdict() -> None:
    with pytest.raises(DispatchError, match="batch 8: the trial ended LOST"):
        raise_if_failed(outcome_of(Verdict.LOST))


def outcome_of(verdict: Verdict, error: TrialError | None = None) -> TrialOutcome:
    return TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="real card"),
        batch_size=8,
        knobs=CUDNN,
        error=error,
    )


def test_curves_guide_a_search_each_evaluated_once_a_size(make_curve: Any) -> None:
    curves = CurveSet()
    curves.add(CUDNN, make_curve())
    prior = curves.prior(CUDNN)
    assert prior is not None
    assert prior.peak_reserved_bytes(8) == 260 * MIB
    assert curves.prior(CUDNN) is prior
    assert curves.prior(NATIVE) is None
    assert set(curves.by_knobs) == {CUDNN}


def test_a_curve_that_costs_a_trace_a_size_guides_no_search(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any
) -> None:
    worker.trace_at = loops(make_trace)
    curves = CurveSet()
    curves.add(CUDNN, predictor.curve(CUDNN, card))
    assert curves.needs_traces
    assert curves.prior(CUDNN) is None
    assert set(curves.by_knobs) == {CUDNN}
    assert curves.guess(CUDNN).peak_reserved_bytes(100) == (100 + 52 * 100) * MIB
    assert worker.traced == list(TRACED_BATCH_SIZES)


def test_of_a_data_set_of_few_samples_nothing_is_guessed(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any
) -> None:
    worker.trace_at = lambda batch_size: loops(make_trace)(min(batch_size, 5))
    curves = CurveSet()
    curves.add(CUDNN, predictor.curve(CUDNN, card))
    assert curves.guess(CUDNN) is None


def test_a_set_of_curves_is_named_by_what_was_traced(make_curve: Any) -> None:
    digests = []
    for mib_per_sample in (20, 20, 21):
        curves = CurveSet()
        curves.add(CUDNN, make_curve(mib_per_sample=mib_per_sample))
        digests.append(curves.trace_digest)
    assert digests[0] == digests[1] != digests[2]
    assert CurveSet().trace_digest is None


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


def test_a_curve_and_an_estimate_span_the_same(predictor: Predictor, card: Card) -> None:
    curve = predictor.curve(CUDNN, unnamed(card))
    for batch_size in (1, 17, 50):
        assert curve(batch_size).interval == predictor.estimate(CUDNN, unnamed(card), batch_size).interval


def test_an_estimate_says_what_it_was_made_with(predictor: Predictor, card: Card) -> None:
    estimate = predictor.estimate(CUDNN, card, 8)
    assert {"autofit", "torch", "python"} <= estimate.versions.keys()
    assert estimate.to_dict()["versions"] == estimate.versions


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

    monkeypatch.setattr("workers.predict.curve.planned_step.replay", refused)
    for risk in (Risk.SAFE, Risk.WORST):
        assert curve.at_risk(risk).peak_reserved_bytes(8, stop_above_bytes=likely - 1) == likely


def test_where_real_runs_took_less_than_is_likely_that_bounds_nothing(make_curve: Any) -> None:
    measured = {key: dataclasses.replace(one, high_share=-0.1) for key, one in OFF.measured.items()}
    curve = make_curve(residuals=dataclasses.replace(OFF, measured=measured))
    likely = curve.at_risk(Risk.LIKELY).peak_reserved_bytes(8)
    safe = curve.peak_reserved_bytes(8, stop_above_bytes=likely - 1)
    assert safe == -(-likely * 9 // 10) < likely


def test_plans_are_asked_of_a_traced_size_ahead_and_only_of_one(
    workload: Any, worker: Any, make_trace: Any, card: Card
) -> None:
    worker.trace_at = lambda batch_size: make_trace(batch_size, num_channels=256)
    sizes = of_sizes(64 * MIB)
    predictor = Predictor(workload, worker, residuals=OFF, plans=lambda _: sizes)
    predictor.prepare(CUDNN, card, 1)
    assert (worker.traced, sizes.asked) == ([], [])
    predictor.trace(CUDNN, 1)
    predictor.prepare(CUDNN, card_named("mi300x"), 1)
    assert sizes.asked == []
    predictor.prepare(CUDNN, card, 1)
    assert sizes.asked
    assert worker.traced == [1]


def test_near_the_limit_the_smallest_plans_may_let_a_size_run(make_curve: Any) -> None:
    """Without its workspace a step of eight holds 260 MiB, a fifth more at the high end."""
    curve = make_curve(num_channels=256, residuals=OFF)
    assert curve.peak_reserved_bytes(8) > 312 * MIB
    assert curve.runs_with_smallest_plans(8, 312 * MIB)
    assert not curve.runs_with_smallest_plans(8, 311 * MIB)
