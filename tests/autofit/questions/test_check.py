"""Checks: one configuration held against one budget."""

from __future__ import annotations

import json
from typing import Any

import pytest

import autofit
from autofit.errors import UsageError
from autofit.hardware.budget import Budget
from autofit.hardware.context import ContextInterval
from autofit.hardware.gpus import find_gpu
from autofit.predict.confidence import Calibration, ModelClass, Residuals
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.questions.check import Answer, CheckResult, check_curve, run_check
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Verdict
from tests.autofit.timed import MEASURED_TIMES, timed_trace

MIB = 1024**2
OFF = Residuals(
    measured={
        (ModelClass.OTHER, "ampere-ada"): Calibration(
            model_class=ModelClass.OTHER,
            cards="ampere-ada",
            low_share=-0.1,
            high_share=0.1,
            num_rows=40,
            num_families=4,
            sources=("a-table",),
        )
    },
    factor=1.0,
    extra_share=0.0,
)


def check(curve: PredictedCurve, batch_size: int, usable_mib: int) -> CheckResult:
    budget = Budget(device_total_bytes=usable_mib * MIB, context_bytes=0, other_bytes=0, margin_bytes=0)
    return check_curve(curve, batch_size, budget, Device(kind="cuda", name="a-card"))


@pytest.mark.parametrize(
    ("usable_mib", "answer", "likely"),
    [
        (330, Answer.FITS, Verdict.FITS),
        (329, Answer.UNSURE, Verdict.FITS),
        (300, Answer.UNSURE, Verdict.FITS),
        (299, Answer.UNSURE, Verdict.OOM),
        (270, Answer.UNSURE, Verdict.OOM),
        (269, Answer.DOES_NOT_FIT, Verdict.OOM),
    ],
)
def test_it_fits_at_the_high_end_and_does_not_at_the_low_one(
    make_curve: Any, usable_mib: int, answer: Answer, likely: Verdict
) -> None:
    """Ten samples take 300 MiB, a tenth more or less."""
    result = check(make_curve(residuals=OFF), 10, usable_mib)
    assert (result.verdict, result.likely_verdict) == (answer, likely)
    assert result.evidence is Evidence.PREDICTED


def test_what_runs_only_with_retries_is_unsure_and_would_thrash(make_curve: Any) -> None:
    """Beside a freed scratch of 110 MiB ten samples hold 300 and reserve 410."""
    curve = make_curve(scratch_mib_per_sample=11)
    result = check(curve, 10, 400)
    assert (result.verdict, result.would_thrash) == (Answer.UNSURE, True)
    assert check(curve, 10, 410).verdict is Answer.FITS
    assert check(curve, 10, 299).verdict is Answer.DOES_NOT_FIT


def test_what_fits_beside_the_least_that_is_held_outside_the_allocator_is_not_said_not_to(
    make_curve: Any,
) -> None:
    """Ten samples take 270 MiB at least; context and NCCL leave 200 to 280 MiB of the card."""

    def verdict(usable_mib: int, most_usable_mib: int) -> Answer:
        outside = ContextInterval(
            low_bytes=(500 - most_usable_mib) * MIB,
            likely_bytes=(500 - usable_mib) * MIB,
            high_bytes=(500 - usable_mib) * MIB,
            basis="made up",
        )
        budget = Budget(
            device_total_bytes=500 * MIB,
            context_bytes=outside.high_bytes,
            other_bytes=0,
            margin_bytes=0,
            context=outside,
        )
        device = Device(kind="cuda", name="a-card")
        return check_curve(make_curve(residuals=OFF), 10, budget, device).verdict

    assert verdict(200, 280) is Answer.UNSURE
    assert verdict(200, 260) is Answer.DOES_NOT_FIT
    assert verdict(330, 400) is Answer.FITS


@pytest.mark.parametrize(("answer", "code"), [(Answer.FITS, 0), (Answer.DOES_NOT_FIT, 3), (Answer.UNSURE, 6)])
def test_each_answer_has_its_exit_code(answer: Answer, code: int) -> None:
    assert answer.exit_code == code


def test_what_does_not_fit_is_told_what_may_help(
    workload: Any, worker: Any, make_trace: Any, exact: Residuals
) -> None:
    """Of a freed scratch expandable segments use the pages again."""
    worker.trace_at = lambda batch_size: make_trace(batch_size, scratch_mib_per_sample=15)
    predictor = Predictor(workload, worker, residuals=exact, plans=FormulaPlans)
    given: dict[str, Any] = {"model": "step", "gpu": find_gpu("gtx-1650"), "probe": "predict"}

    def asked(batch_size: int, **changes: Any) -> CheckResult:
        return run_check(TuneSettings(**given, **changes), predictor, batch_size)

    assert asked(8).advice is None
    result = asked(150)
    assert result.verdict is Answer.UNSURE
    assert result.advice is not None
    assert result.advice.combination is not None
    assert result.advice.combination.options == ("--allocator expandable_segments",)
    assert result.advice.combination.peak_reserved_bytes <= result.budget.usable_bytes
    segments = Knobs(allocator="expandable_segments")
    assert asked(150, knobs=segments).verdict is Answer.FITS
    given = asked(150, given_knobs=("allocator",)).advice
    assert given is not None
    assert given.combination is not None
    assert given.combination.options == ("--batch-size 75 --grad-accumulation 2",)


def test_a_check_knows_the_samples_of_an_epoch_and_how_long_it_takes(
    workload: Any, worker: Any, exact: Residuals
) -> None:
    worker.trace_at = timed_trace
    predictor = Predictor(
        workload, worker, residuals=exact, time_residuals=MEASURED_TIMES, plans=FormulaPlans
    )
    given: dict[str, Any] = {"model": "step", "gpu": find_gpu("rtx-3090"), "probe": "predict"}
    for batch_size in (8, 5_000):  # of which the second does not fit
        result = run_check(TuneSettings(**given, epoch_samples=6400), predictor, batch_size)
        assert result.samples_per_second is not None
        document = json.loads(result.to_json())
        assert document["epoch_samples"] == 6400
        assert document["epoch_seconds"] == pytest.approx(6400 / result.samples_per_second)
    assert run_check(TuneSettings(**given), predictor, 8).epoch_seconds is None


def test_the_public_check_takes_the_options_of_the_command() -> None:
    result = autofit.check("davenet-audio", batch_size=4, gpu="a100-40g", optimizer="sgd", margin="5%")
    assert result.verdict == "fits"
    assert (result.device.name, result.knobs.conv_algo, result.knobs.optimizer) == (
        "a100-40g",
        "cudnn",
        "sgd",
    )
    assert result.calibration.model_class == "convolutional-dense"
    assert result.interval.low_bytes <= result.interval.likely_bytes <= result.interval.high_bytes
    with pytest.raises(UsageError, match="does not take risk"):
        autofit.check("davenet-audio", batch_size=4, gpu="a100-40g", risk="likely")
