"""One configuration held against several cards."""

from __future__ import annotations

import dataclasses
import functools
import json
from decimal import Decimal
from typing import Any

import pytest

from autofit.errors import UnpredictableCardError, UsageError, WorkloadFailedError
from autofit.hardware.gpus import catalogue
from autofit.predict.predictor import Predictor
from autofit.questions.cards import CardsAnswer, CardsQuestion, which_cards
from autofit.questions.check import Answer, run_check
from autofit.search.boundary import largest_fitting_batch, nearly_largest_batch
from autofit.settings.goals import Risk
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.time.interval import TimeResiduals
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialError, TrialOutcome, TrialSpec, Verdict
from tests.autofit.conftest import step_trace
from tests.autofit.timed import MEASURED_TIMES, UNMEASURED_TIMES, timed_trace

MIB = 1024**2


@pytest.fixture
def predictor(workload: Any, worker: Any, exact: Any) -> Predictor:
    return Predictor(workload, worker, residuals=exact, plans=FormulaPlans)


def ask(
    predictor: Predictor, *gpus: str, batch_size: int, with_traces: bool = False, **settings: Any
) -> CardsAnswer:
    question = CardsQuestion(
        gpus=tuple(catalogue()[key] for key in gpus), batch_size=batch_size, with_traces=with_traces
    )
    return which_cards(predictor, TuneSettings(model="step", **settings), question)


def test_the_smallest_card_comes_first_and_each_is_told_what_check_says(predictor: Predictor) -> None:
    keys = ("h100-80g", "gtx-1650", "t4", "rtx-3090")
    answer = ask(predictor, *keys, batch_size=300)
    assert [card.gpu for card in answer.cards] == ["gtx-1650", "t4", "rtx-3090", "h100-80g"]
    for card in answer.cards:
        gpu = catalogue()[card.gpu]
        checked = run_check(TuneSettings(model="step", gpu=gpu, probe="predict"), predictor, 300)
        assert (card.verdict, card.interval, card.usable_bytes) == (
            checked.verdict,
            checked.interval,
            checked.budget.usable_bytes,
        )
        assert (card.likely_verdict, card.device_peak_bytes) == (
            checked.likely_verdict,
            checked.device_peak_bytes,
        )
    assert [card.verdict for card in answer.cards][:2] == [Answer.DOES_NOT_FIT, Answer.FITS]
    assert [card.gpu for card in answer.fitting] == ["t4", "rtx-3090", "h100-80g"]
    assert answer.exit_code == 0
    assert ask(predictor, "gtx-1650", batch_size=300).exit_code == 3


def test_the_whole_catalogue_costs_as_many_traces_as_one_card(predictor: Predictor, worker: Any) -> None:
    answer = ask(predictor, *catalogue(), batch_size=300)
    assert len(answer.cards) == len(catalogue())
    assert sorted(worker.traced) == [4, 6, 10, 300]


def test_the_largest_batch_fits_and_the_next_does_not(predictor: Predictor) -> None:
    """100 MiB, and 20 MiB a sample."""
    for card in ask(predictor, "gtx-1650", "t4", "a100-40g", "h200", batch_size=8).cards:
        assert card.largest_batch == (card.usable_bytes - 100 * MIB) // (20 * MIB)


def test_where_the_peak_is_not_monotone_it_is_below_what_a_proof_finds(make_curve: Any) -> None:
    curve = make_curve(scratch_mib_per_sample=11)
    for budget_mib in range(150, 3000, 77):
        proved = largest_fitting_batch(curve, budget_mib * MIB, max_batch=500).largest_batch
        quick = nearly_largest_batch(curve, budget_mib * MIB, sizes=range(1, 501))
        assert (quick is None) == (proved is None)
        if quick is not None and proved is not None:
            assert quick <= proved
            assert curve.peak_reserved_bytes(quick) <= budget_mib * MIB
            assert curve.peak_reserved_bytes(quick + 1) > budget_mib * MIB


def test_reserve_and_margin_are_kept_free_and_may_leave_nothing(predictor: Predictor) -> None:
    none, some = ask(
        predictor, "gtx-1650", "t4", batch_size=8, reserve_bytes=4 * 1024**3, margin=Decimal("0.1")
    ).cards
    assert (none.usable_bytes, none.verdict, none.largest_batch) == (0, Answer.DOES_NOT_FIT, None)
    assert some.verdict is Answer.FITS
    assert some.usable_bytes < some.total_bytes * 0.9 - 4 * 1024**3


def test_a_card_is_told_the_gentlest_change_with_which_the_batch_fits(
    workload: Any, worker: Any, make_trace: Any, exact: Any
) -> None:
    """A freed scratch of its own segment is what expandable segments use again."""
    worker.trace_at = lambda batch_size: make_trace(batch_size, scratch_mib_per_sample=15)
    predictor = Predictor(workload, worker, residuals=exact, plans=FormulaPlans)
    small, larger = ask(predictor, "gtx-1650", "rtx-2070", batch_size=150).cards
    assert (small.verdict, larger.verdict) == (Answer.UNSURE, Answer.FITS)
    assert small.lever is not None
    assert small.lever.how == "--allocator expandable_segments"
    assert larger.lever is None


def test_changes_that_cost_a_trace_are_counted_and_tried_only_when_asked(
    predictor: Predictor, worker: Any
) -> None:
    answer = ask(predictor, "gtx-1650", batch_size=300)
    assert answer.num_levers_untried > 0
    before = len(worker.specs)
    asked = ask(predictor, "gtx-1650", batch_size=300, with_traces=True)
    assert asked.num_levers_untried == 0
    assert len(worker.specs) - before == answer.num_levers_untried


def test_a_card_for_which_no_change_is_enough_is_told_several(
    workload: Any, worker: Any, make_trace: Any, exact: Any
) -> None:
    """Of 3,100 MiB, however many samples, the optimizer's implementation saves 600, checkpointing as much."""

    def traced(spec: TrialSpec) -> TrialOutcome:
        saved = [spec.knobs.optimizer_impl == "fused", spec.knobs.checkpointing == "blocks"].count(True)
        mib = 3000 - 600 * saved
        worker.trace_at = lambda batch_size: make_trace(batch_size, mib_per_sample=mib // batch_size)
        answered: TrialOutcome = worker(spec)
        return answered

    predictor = Predictor(workload, traced, residuals=exact, plans=FormulaPlans)
    usable_bytes = TuneSettings(model="step").budget_on(catalogue()["t4"]).usable_bytes
    (card,) = ask(
        predictor, "t4", batch_size=150, with_traces=True, reserve_bytes=usable_bytes - 2200 * MIB
    ).cards
    assert (card.usable_bytes, card.lever) == (2200 * MIB, None)
    assert card.advice is not None
    assert card.advice.combination is not None
    assert card.advice.combination.options == ("--optimizer-impl fused", "--checkpointing blocks")


def test_knobs_that_were_given_are_left_as_they_are_where_anything_else_fits(predictor: Predictor) -> None:
    (card,) = ask(predictor, "gtx-1650", batch_size=300, given_knobs=("allocator",), with_traces=True).cards
    assert card.advice is not None
    assert "allocator" in {lever.name for lever in card.advice.levers}
    assert card.advice.combination is not None
    assert card.advice.combination.options == ("--batch-size 150 --grad-accumulation 2",)


def test_a_change_that_the_step_fails_with_is_no_answer(predictor: Predictor, worker: Any) -> None:
    ask(predictor, "gtx-1650", batch_size=300)
    worker.failure = (Verdict.FAILED, TrialError(kind="user", message="no such layer"))
    (card,) = ask(predictor, "gtx-1650", batch_size=300, with_traces=True).cards
    assert card.lever is None


def test_the_risk_decides_what_fits(workload: Any, worker: Any) -> None:
    from tests.autofit.predict.test_curve import OFF

    predictor = Predictor(workload, worker, residuals=OFF, plans=FormulaPlans)
    verdicts = {risk: ask(predictor, "gtx-1650", batch_size=160, risk=risk).cards[0].verdict for risk in Risk}
    assert verdicts == {Risk.SAFE: Answer.UNSURE, Risk.LIKELY: Answer.FITS, Risk.WORST: Answer.UNSURE}


def test_a_step_that_differs_at_every_size_is_answered_at_that_size_alone(
    workload: Any, worker: Any, make_trace: Any, exact: Any
) -> None:
    worker.trace_at = lambda batch_size: make_trace(batch_size, num_extra=batch_size)
    predictor = Predictor(workload, worker, residuals=exact, plans=FormulaPlans)
    answer = ask(predictor, *catalogue(), batch_size=20)
    assert {card.largest_batch for card in answer.cards} == {None}
    assert answer.fitting
    assert 20 in worker.traced
    assert len(worker.traced) <= 4


def test_a_curve_that_a_trace_at_the_batch_contradicts_is_not_used(
    workload: Any, worker: Any, make_trace: Any, exact: Any
) -> None:
    """From 100 samples on the step makes tensors that small sizes do not show."""
    worker.trace_at = lambda batch_size: make_trace(batch_size, num_extra=80 if batch_size >= 100 else 0)
    predictor = Predictor(workload, worker, residuals=exact, plans=FormulaPlans)
    (card,) = ask(predictor, "t4", batch_size=100).cards
    assert card.interval.likely_bytes > (100 + 20 * 100 + 32) * MIB
    assert card.largest_batch is None


def test_several_settings_are_refused_and_a_step_that_fails_says_so(
    predictor: Predictor, worker: Any
) -> None:
    with pytest.raises(UsageError, match="takes one algorithm"):
        ask(predictor, "t4", batch_size=8, conv_algos=("cudnn", "native"))
    worker.failure = (Verdict.FAILED, TrialError(kind="user", message="no such layer"))
    with pytest.raises(WorkloadFailedError, match="no such layer"):
        ask(predictor, "t4", batch_size=8)


def test_the_document_has_a_card_for_each_row(predictor: Predictor) -> None:
    document = json.loads(ask(predictor, "gtx-1650", "t4", batch_size=300).to_json())
    assert document["schema"] == "autofit.cards/1"
    assert (document["workload"], document["batch_size"], document["risk"]) == ("step", 300, "safe")
    assert document["evidence"] == "predicted"
    assert document["knobs"] == Knobs().to_dict()
    assert [card["gpu"] for card in document["cards"]] == ["gtx-1650", "t4"]
    assert document["cards"][0]["verdict"] == "does-not-fit"
    assert document["cards"][1]["lever"] is None


# ── AMD's cards ─────────────────────────────────────────────────────────────────────────────────


def test_a_step_without_convolutions_is_predicted_on_amd_s_cards_too(predictor: Predictor) -> None:
    answer = ask(predictor, "mi300x", "t4", "b200", batch_size=300)
    assert [card.gpu for card in answer.cards] == ["t4", "b200", "mi300x"]
    assert [card.verdict for card in answer.cards] == [Answer.FITS] * 3
    by_gpu = {card.gpu: card for card in answer.cards}
    assert by_gpu["mi300x"].architecture == "gfx942"
    assert by_gpu["mi300x"].interval == by_gpu["b200"].interval


def test_where_amd_s_cards_cannot_be_predicted_nvidia_s_are_and_it_is_said(
    predictor: Predictor, worker: Any
) -> None:
    worker.trace_at = functools.partial(step_trace, num_channels=16)
    alone = ask(predictor, "t4", "b200", batch_size=8)
    both = ask(predictor, "mi210", "t4", "mi300x", "b200", batch_size=8)
    assert [card for card in both.cards if card.gpu in ("t4", "b200")] == list(alone.cards)
    amds = [card for card in both.cards if card.gpu.startswith("mi")]
    for card in amds:
        assert (card.verdict, card.likely_verdict, card.interval) == (Answer.UNSURE, None, None)
        assert (card.device_peak_bytes, card.largest_batch) == (None, None)
        assert 0 < card.usable_bytes < card.total_bytes
        assert "MIOpen" in card.reason
        assert "--conv-algo native" in card.reason  # what runs without MIOpen is predicted
        assert (card.lever, card.advice) == (None, None)
    assert both.exit_code == 0
    assert json.loads(both.to_json())["cards"][1]["interval"] is None


def test_where_no_card_can_be_predicted_it_is_an_error(predictor: Predictor, worker: Any) -> None:
    worker.trace_at = functools.partial(step_trace, num_channels=16)
    with pytest.raises(UnpredictableCardError, match="--conv-algo native"):
        ask(predictor, "mi210", "mi300x", batch_size=8)
    native = ask(predictor, "mi210", "mi300x", batch_size=8, conv_algos=("native",))
    assert [card.verdict for card in native.cards] == [Answer.FITS] * 2


# ── how fast, and at which price ────────────────────────────────────────────────────────────────


def ask_speed(predictor: Predictor, *gpus: str, prices: dict[str, float] | None = None) -> CardsAnswer:
    question = CardsQuestion(gpus=tuple(catalogue()[key] for key in gpus), batch_size=64, prices=prices or {})
    return which_cards(predictor, TuneSettings(model="step", epoch_samples=6400), question)


def timing(workload: Any, worker: Any, residuals: TimeResiduals = MEASURED_TIMES) -> Predictor:
    worker.trace_at = timed_trace
    return Predictor(workload, worker, time_residuals=residuals, plans=FormulaPlans)


def test_cards_are_told_how_fast_a_step_is_without_further_traces(workload: Any, worker: Any) -> None:
    predictor = timing(workload, worker)
    small, large = ask_speed(predictor, "rtx-3060", "rtx-3090").cards
    assert sorted(worker.traced) == [4, 6, 10, 64]
    assert (small.gpu, large.gpu) == ("rtx-3060", "rtx-3090")
    assert small.step_seconds is not None
    assert large.step_seconds is not None
    assert large.relative_step_time == 1.0
    assert small.relative_step_time == pytest.approx(small.step_seconds.likely / large.step_seconds.likely)
    assert large.samples_per_second == pytest.approx(64 / large.step_seconds.likely)
    assert large.epoch_seconds == pytest.approx(100 * large.step_seconds.likely)


def test_a_price_tells_how_many_samples_it_pays_for(workload: Any, worker: Any) -> None:
    cards = ask_speed(timing(workload, worker), "rtx-3060", "rtx-3090", prices={"rtx-3060": 0.1}).cards
    priced, other = cards
    assert priced.samples_per_second is not None
    assert priced.samples_per_price == pytest.approx(priced.samples_per_second * 3600 / 0.1)
    assert (priced.relative_price, other.price, other.samples_per_price) == (1.0, None, None)


def test_without_rows_behind_times_cards_have_an_order_and_no_seconds(workload: Any, worker: Any) -> None:
    predictor = timing(workload, worker, UNMEASURED_TIMES)
    prices = {"rtx-3060": 0.1, "rtx-3090": 1.0}
    small, large = ask_speed(predictor, "rtx-3060", "rtx-3090", prices=prices).cards
    for card in (small, large):
        assert (card.step_seconds, card.samples_per_second, card.samples_per_price) == (None, None, None)
    assert small.relative_step_time is not None
    assert small.relative_step_time > large.relative_step_time == 1.0
    assert small.relative_price == 1.0


def test_a_card_that_is_too_small_has_no_place_in_the_order(workload: Any, worker: Any) -> None:
    worker.trace_at = lambda batch_size: dataclasses.replace(
        step_trace(batch_size, mib_per_sample=100), work=timed_trace(batch_size).work
    )
    predictor = Predictor(workload, worker, time_residuals=MEASURED_TIMES, plans=FormulaPlans)
    small, large = ask_speed(predictor, "gtx-1650", "rtx-3090").cards
    assert small.verdict is Answer.DOES_NOT_FIT
    assert (small.relative_step_time, large.relative_step_time) == (None, 1.0)
