"""Times of steps, predicted from the work in their traces, on cards of the catalogue."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from autofit.hardware.card import Card, card_named
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit.predict.times.step_times import StepTime
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.time.interval import HOST, Confidence, Residual
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Mark, Repetition, Trace
from tests.autofit.conftest import step_trace
from tests.autofit.timed import MEASURED_TIMES, UNMEASURED_TIMES, timed_trace
from tests.workers.replay.time.steps_by_hand import elementwise, product, trace_of_works

RTX_3090 = card_named("rtx-3090")
KNOBS = Knobs()


@pytest.fixture
def timed(workload: Any, worker: Any, exact: Residuals) -> Predictor:
    """Predicts times that real runs are behind."""
    worker.trace_at = timed_trace
    return Predictor(workload, worker, residuals=exact, time_residuals=MEASURED_TIMES, plans=FormulaPlans)


@pytest.fixture
def unmeasured(workload: Any, worker: Any, exact: Residuals) -> Predictor:
    """Predicts times that nothing is behind but what this version comes with."""
    worker.trace_at = timed_trace
    return Predictor(workload, worker, residuals=exact, time_residuals=UNMEASURED_TIMES, plans=FormulaPlans)


def test_an_estimate_states_seconds_and_samples_a_second_where_real_runs_are_behind_them(
    timed: Predictor,
) -> None:
    estimate = timed.estimate(KNOBS, RTX_3090, 8)
    seconds = estimate.step_seconds
    assert seconds is not None
    assert seconds.low < seconds.low_80 < seconds.likely < seconds.high_80 < seconds.high
    assert estimate.samples_per_second == pytest.approx(8 / seconds.likely)
    assert json.loads(estimate.to_json())["step_seconds"]["likely"] == seconds.likely


def test_a_prediction_without_rows_behind_it_states_no_seconds_but_an_order(unmeasured: Predictor) -> None:
    curve = unmeasured.curve(KNOBS, RTX_3090)
    estimate, time = curve(8), curve.step_time(8)
    document = json.loads(estimate.to_json())
    assert (document["step_seconds"], document["samples_per_second"]) == (None, None)
    assert "no measured times of this card" in estimate.step_time_note
    assert time is not None
    assert time.stated is None
    larger = curve.step_time(64)
    assert larger is not None
    assert larger.likely_seconds > time.likely_seconds


def test_a_class_of_kernels_without_rows_is_named(workload: Any, worker: Any) -> None:
    worker.trace_at = timed_trace
    classes = {name: each for name, each in MEASURED_TIMES.classes.items() if name != "matmul"}
    residuals = dataclasses.replace(MEASURED_TIMES, classes=classes)
    timed = Predictor(workload, worker, time_residuals=residuals, plans=FormulaPlans)
    estimate = timed.estimate(KNOBS, RTX_3090, 8)
    assert estimate.step_seconds is None
    said = "no step time is given, as there are no measured times of matrix products to check it against"
    assert estimate.step_time_note == said


@pytest.mark.parametrize("name", [HOST, *KernelClass])
def test_every_class_of_kernels_is_named_in_words(name: str) -> None:
    words = unstated(name).note.partition(" measured times of ")[2].removesuffix(" to check it against")
    assert words
    assert "_" not in words


@pytest.mark.parametrize(
    ("unmeasured", "said"),
    [
        (("optimizer", HOST), "of optimizer steps and kernel launches to"),
        (("convolution native",), "of convolutions by native to"),
        (("pool", "copy", "index"), "of pooling, copies and indexing to"),
        (("pool", "copy", "softmax", HOST), "of pooling, copies and 2 more kinds of kernels to"),
    ],
)
def test_what_was_not_measured_is_said_in_a_sentence(unmeasured: tuple[str, ...], said: str) -> None:
    assert said in unstated(*unmeasured).note


def unstated(*unmeasured: str) -> StepTime:
    """A time that is not sure enough, as no real runs are behind some classes of kernels."""
    confidence = Confidence(
        sigma=0.3, known_share=0.1, unmeasured=unmeasured, is_card_measured=True, is_stated=False
    )
    return StepTime(likely_seconds=1.0, samples=8, confidence=confidence, unscaled_seconds=1.0)


def test_further_batches_cost_no_trace(timed: Predictor, worker: Any) -> None:
    curve = timed.curve(KNOBS, RTX_3090)
    times = [curve.step_time(batch_size) for batch_size in (16, 32, 100)]
    assert worker.traced == list(TRACED_BATCH_SIZES)
    at_100 = timed.estimate(KNOBS, RTX_3090, 100).step_seconds
    assert at_100 is not None
    assert times[-1] is not None
    assert at_100.likely == pytest.approx(times[-1].likely_seconds)


def test_a_step_that_does_other_work_at_other_sizes_is_timed_where_it_was_traced(
    timed: Predictor, worker: Any
) -> None:
    worker.trace_at = lambda batch_size: timed_trace(batch_size, num_calls=batch_size)
    curve = timed.curve(KNOBS, RTX_3090)
    assert curve.step_time(TRACED_BATCH_SIZES[1]) is not None
    assert curve.step_time(TRACED_BATCH_SIZES[1] + 1) is None


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (card_named(None), "no card is named"),
        (card_named("mi300x"), "NVIDIA"),
        (Card(name="a-card", architecture="sm_80", context_bytes=0), "catalogue does not have a-card"),
    ],
)
def test_a_card_of_which_no_speed_is_known_has_no_times_and_is_told_why(
    timed: Predictor, card: Card, why: str
) -> None:
    curve = timed.curve(KNOBS, card)
    assert curve.step_time(8) is None
    assert why in str(curve.why_untimed)
    assert curve(8).step_time_note == curve.why_untimed


def test_another_card_has_times_of_its_own(timed: Predictor) -> None:
    curve = timed.curve(KNOBS, RTX_3090)
    slower = curve.on(card_named("rtx-3060")).step_time(64)
    faster = curve.step_time(64)
    assert slower is not None
    assert faster is not None
    assert slower.likely_seconds > 1.5 * faster.likely_seconds


def test_seconds_are_not_stated_on_a_card_without_rows(timed: Predictor) -> None:
    time = timed.curve(KNOBS, card_named("h100-80g")).step_time(8)
    assert time is not None
    assert time.stated is None


def test_what_varies_too_much_is_not_stated(workload: Any, worker: Any) -> None:
    worker.trace_at = timed_trace
    wide = dataclasses.replace(MEASURED_TIMES, cards={"sm_86": Residual(sigma=0.5, num_rows=50)})
    predictor = Predictor(workload, worker, time_residuals=wide, plans=FormulaPlans)
    assert "vary too much" in predictor.estimate(KNOBS, RTX_3090, 8).step_time_note


def generation(batch_size: int, *, rows: int = 4096) -> Trace:
    """Trace of a prompt's pass of 20 products, and of two passes of one product each for later tokens."""
    works = [*[product(batch_size * rows, 4096, 4096)] * 20, *[product(batch_size * rows, 64, 4096)] * 2]
    traced = trace_of_works(works, batch_size, repetition=Repetition(start=21, num_allocations=0, times=98))
    decode = [Mark(position=at, name="step 1 decode") for at in (20, 21)]
    trace = dataclasses.replace(step_trace(batch_size), mode="generate", work=traced.work)
    return dataclasses.replace(trace, repetition=traced.repetition, marks=(*trace.marks[:3], *decode))


def test_a_generation_states_its_first_token_and_tokens_a_second(workload: Any, worker: Any) -> None:
    worker.trace_at = generation
    predictor = Predictor(workload, worker, time_residuals=MEASURED_TIMES, plans=FormulaPlans)
    estimate = predictor.estimate(Knobs(new_tokens=101), RTX_3090, 8)
    step, found = estimate.step_seconds, estimate.generation
    assert step is not None
    assert found is not None
    first, later = found.first_token_seconds, found.token_seconds
    assert first is not None
    assert later is not None
    assert first.low < first.likely < first.high
    assert first.likely + 100 * later.likely == pytest.approx(step.likely)
    assert first.likely > 10 * later.likely
    assert found.tokens_per_second == pytest.approx(8 / later.likely)


def test_a_generation_that_waits_for_the_host_states_its_first_token_alone(
    workload: Any, worker: Any
) -> None:
    worker.trace_at = lambda batch_size: dataclasses.replace(
        generation(batch_size),
        work=trace_of_works(
            [*[product(batch_size * 4096, 4096, 4096)] * 20, *[elementwise(8)] * 2], batch_size
        ).work,
    )
    classes = {name: each for name, each in MEASURED_TIMES.classes.items() if name != HOST}
    residuals = dataclasses.replace(MEASURED_TIMES, classes=classes)
    predictor = Predictor(workload, worker, time_residuals=residuals, plans=FormulaPlans)
    found = predictor.estimate(Knobs(new_tokens=101), RTX_3090, 8).generation
    assert found is not None
    assert found.first_token_seconds is not None
    assert (found.token_seconds, found.tokens_per_second) == (None, None)


def test_a_step_that_is_no_generation_has_no_tokens(timed: Predictor) -> None:
    assert timed.estimate(KNOBS, RTX_3090, 8).generation is None
