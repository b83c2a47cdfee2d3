"""The timing of a profile: operators with their shares of the predicted step."""

from __future__ import annotations

import dataclasses
import gzip
from typing import Any

import pytest

from autofit.explain.profile import Profile
from autofit.hardware.card import card_named
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.time.interval import TimeResiduals
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Repetition
from tests.autofit.timed import MEASURED_TIMES, UNMEASURED_TIMES, timed_trace

RTX_3090 = card_named("rtx-3090")
BATCH = 8


@pytest.fixture
def predictor_of(workload: Any, worker: Any, exact: Residuals) -> Any:
    def made(time_residuals: TimeResiduals, trace_at: Any = timed_trace) -> Predictor:
        worker.trace_at = trace_at
        return Predictor(workload, worker, residuals=exact, time_residuals=time_residuals, plans=FormulaPlans)

    return made


def profile_of(predictor: Predictor, card: Any = RTX_3090) -> Profile:
    return predictor.profile(Knobs(), card, BATCH)


def test_a_profile_has_the_seconds_of_the_estimate_and_every_operator_of_the_step(predictor_of: Any) -> None:
    predictor = predictor_of(MEASURED_TIMES)
    profile, estimate = profile_of(predictor), predictor.estimate(Knobs(), RTX_3090, BATCH)
    assert profile.timing is not None
    assert profile.timing.seconds == estimate.step_seconds is not None
    assert profile.time_note == estimate.step_time_note
    assert [call.operator for call in profile.timing.calls] == [
        call.work.operator for call in profile.trace.work
    ]


def test_shares_are_of_the_step_and_kernels_fill_their_operators(predictor_of: Any) -> None:
    timing = profile_of(predictor_of(MEASURED_TIMES)).timing
    assert timing is not None
    last = timing.calls[-1]
    assert max(last.end, last.launched) == pytest.approx(1.0)
    assert 0.5 < timing.device_share < 1.0
    for call in timing.calls:
        assert sum(kernel.share for kernel in call.kernels) == pytest.approx(call.end - call.start, abs=1e-8)
    products = [kernel for call in timing.calls for kernel in call.kernels if kernel.flops]
    assert {kernel.flops for kernel in products} == {2 * BATCH * 256 * 4096 * 4096}


def test_without_rows_behind_it_a_profile_has_shares_and_no_seconds(predictor_of: Any) -> None:
    stated, unstated = profile_of(predictor_of(MEASURED_TIMES)), profile_of(predictor_of(UNMEASURED_TIMES))
    assert unstated.timing is not None
    assert unstated.timing.seconds is None
    assert "no measured times of this card" in unstated.time_note
    assert stated.timing is not None
    assert unstated.timing.calls == stated.timing.calls
    assert stated.timing.seconds is not None
    assert str(stated.timing.seconds.likely) not in gzip.decompress(unstated.to_bytes()).decode()


def test_on_a_card_without_known_speeds_there_are_no_times(predictor_of: Any) -> None:
    profile = profile_of(predictor_of(MEASURED_TIMES), card_named("mi300x"))
    assert profile.timing is None
    assert "NVIDIA" in profile.time_note


def test_passes_of_a_generation_that_were_not_traced_count_in_those_of_its_last(predictor_of: Any) -> None:
    def trace_at(batch_size: int) -> Any:
        trace = timed_trace(batch_size)
        last = len(trace.work) - 5
        return dataclasses.replace(
            trace, repetition=Repetition(start=trace.work[last].position, num_allocations=0, times=7)
        )

    timing = profile_of(predictor_of(MEASURED_TIMES, trace_at)).timing
    assert timing is not None
    assert [call.times for call in timing.calls[:-5]] == [1.0] * (len(timing.calls) - 5)
    assert [call.times for call in timing.calls[-5:]] == pytest.approx([8.0] * 5)
    assert timing.calls[-1].end < 0.6
    assert 0.5 < timing.device_share <= 1.0
