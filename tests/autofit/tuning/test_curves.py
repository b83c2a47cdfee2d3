"""The curves of a search: what guides it, and what is guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autofit.hardware.card import Card
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit.tuning.curves import CurveSet
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Trace

MIB = 1024**2
CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")


@pytest.fixture
def predictor(workload: Any, worker: Any, exact: Residuals) -> Predictor:
    return Predictor(workload, worker, residuals=exact, plans=FormulaPlans)


def loops(make_trace: Any) -> Callable[[int], Trace]:
    """A step that makes a tensor of 32 MiB for every sample of the batch."""
    return lambda batch_size: make_trace(batch_size, num_extra=batch_size)


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
        digests.append(curves.trace_identity)
    assert digests[0] == digests[1] != digests[2]
    assert CurveSet().trace_identity is None
