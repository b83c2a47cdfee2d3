"""A measured step of a workload scales what is predicted of it on that card."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autofit import paths
from autofit.hardware.card import card_named
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.predict.times import measured_steps
from autofit.predict.times.measured_steps import MeasuredSteps
from autofit.tuning.step_lessons import learn_from
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, TrialOutcome, Verdict
from tests.autofit.timed import UNMEASURED_TIMES, timed_trace

KNOBS, OTHER = Knobs(), Knobs(precision="amp-fp16")
RTX_3090 = card_named("rtx-3090")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path))


@pytest.fixture
def curve_of(workload: Any, worker: Any) -> Any:
    """The curve of a setting on a card, with what was kept of measured steps until then."""
    worker.trace_at = timed_trace

    def curve(knobs: Knobs = KNOBS, card: str = "rtx-3090") -> PredictedCurve:
        predictor = Predictor(
            workload,
            worker,
            time_residuals=UNMEASURED_TIMES,
            measured_steps=MeasuredSteps.load(workload),
            plans=FormulaPlans,
        )
        return predictor.curve(knobs, card_named(card))

    return curve


def trial(batch_size: int, seconds: float | None, **changes: Any) -> TrialOutcome:
    outcome = TrialOutcome(
        verdict=Verdict.FITS,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="NVIDIA GeForce RTX 3090"),
        batch_size=batch_size,
        knobs=KNOBS,
        step_seconds=seconds,
    )
    return dataclasses.replace(outcome, **changes)


def learn(workload: Any, curve: PredictedCurve, *trials: TrialOutcome) -> None:
    learn_from(workload, trials, {curve.knobs: curve})


def test_a_measured_step_scales_other_batches_of_its_setting_which_are_then_stated(
    workload: Any, curve_of: Any
) -> None:
    before = curve_of()
    assert before.step_time(64).stated is None
    learn(workload, before, trial(16, 1.5 * before.step_time(16).likely_seconds))
    time = curve_of().step_time(64)
    assert time.likely_seconds == pytest.approx(1.5 * before.step_time(64).likely_seconds)
    assert time.stated is not None
    assert "corrected by a factor of 1.50, from a measured step of this setting on this card" in time.note


def test_learning_again_is_from_the_unscaled_prediction(workload: Any, curve_of: Any) -> None:
    seconds = 1.5 * curve_of().step_time(16).likely_seconds
    for _ in range(2):
        learn(workload, curve_of(), trial(16, seconds))
    assert curve_of().step_time(16).likely_seconds == pytest.approx(seconds)


def test_another_setting_is_scaled_too_and_is_less_sure(workload: Any, curve_of: Any) -> None:
    before, other_before = curve_of(), curve_of(OTHER)
    learn(workload, before, trial(16, 2 * before.step_time(16).likely_seconds))
    own, other = curve_of().step_time(64), curve_of(OTHER).step_time(64)
    assert other.likely_seconds == pytest.approx(2 * other_before.step_time(64).likely_seconds)
    assert other.confidence.sigma > own.confidence.sigma
    assert "other settings of this workload" in other.note


def test_another_card_learns_nothing(workload: Any, curve_of: Any) -> None:
    before, elsewhere = curve_of(), curve_of(card="rtx-4090").step_time(64)
    learn(workload, before, trial(16, 2 * before.step_time(16).likely_seconds))
    assert curve_of(card="rtx-4090").step_time(64) == elsewhere


def test_another_models_prediction_teaches_nothing(workload: Any, curve_of: Any) -> None:
    before = curve_of()
    time = before.step_time(16)
    learn(workload, before, trial(16, 2 * time.likely_seconds))
    found = MeasuredSteps.load(workload)
    assert found.scale(KNOBS, RTX_3090, "train", time.model) is not None
    assert found.scale(KNOBS, RTX_3090, "train", "another") is None


def test_of_a_setting_the_largest_batch_that_fits_teaches(workload: Any, curve_of: Any) -> None:
    before = curve_of()
    likely = {size: before.step_time(size).likely_seconds for size in (8, 16, 32, 64)}
    learn(
        workload,
        before,
        trial(16, 3 * likely[16]),
        trial(8, 9 * likely[8]),
        trial(32, 9 * likely[32], verdict=Verdict.OOM),
        trial(64, 9 * likely[64], evidence=Evidence.EMULATED),
        trial(32, None),
    )
    assert curve_of().step_time(16).likely_seconds == pytest.approx(3 * likely[16])


def test_what_is_predicted_teaches_nothing(workload: Any, curve_of: Any) -> None:
    before = curve_of()
    learn(workload, before, trial(16, 1.0, evidence=Evidence.PREDICTED))
    assert MeasuredSteps.load(workload).digest == ""
    assert not paths.step_times_path().exists()


def test_a_file_that_cannot_be_read_is_left_aside(
    workload: Any, curve_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = curve_of()
    learn(workload, before, trial(16, 2 * before.step_time(16).likely_seconds))
    (path,) = paths.step_times_path().iterdir()
    path.write_text("{}")
    assert MeasuredSteps.load(workload).digest == ""
    assert "cannot be read" in caplog.text


def test_a_search_keeps_its_answer_where_nothing_can_be_kept(
    workload: Any, curve_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = curve_of()
    seconds = before.step_time(16).likely_seconds
    monkeypatch.setenv("AUTOFIT_STATE_DIR", "/proc/nowhere")
    learn(workload, before, trial(16, seconds))
    assert "could not be kept" in caplog.text


def test_a_prediction_of_no_seconds_is_none_to_learn_from(workload: Any) -> None:
    assert measured_steps.MeasuredSteps().scale(KNOBS, RTX_3090, "train", "any") is None
    assert MeasuredSteps.load(workload).scale(KNOBS, RTX_3090, "train", "any") is None
