"""Traces: which are asked for, when they are made, and where they are kept."""

from __future__ import annotations

from typing import Any

import pytest

from autofit.errors import UsageError, WorkloadFailedError
from autofit.events import Event, Progress
from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialError, Verdict
from autofit_workers.spec.setup import Setup

MIB = 1024**2
CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")


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
    predictor.traces.expect(CUDNN, [12])  # nobody traces ahead
    assert worker.traced == []
    with predictor.traces.tracing_ahead():
        predictor.traces.expect(CUDNN, [*TRACED_BATCH_SIZES, 8])
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
    with predictor.traces.tracing_ahead():
        predictor.traces.expect(Knobs(global_batch=12), [5])  # which does not divide it
        predictor.traces.expect(CUDNN, [4])
        with pytest.raises(WorkloadFailedError, match="it broke"):
            predictor.trace(CUDNN, 4)


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
