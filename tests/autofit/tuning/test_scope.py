"""The space of a search: which sizes are left in it, and why."""

from __future__ import annotations

from typing import Any

import pytest

from autofit.hardware.card import Card
from autofit.predict.predictor import Predictor
from autofit.search.space import SearchSpace
from autofit.tuning.curves import CurveSet
from autofit.tuning.scope import capped
from autofit_workers.spec.knobs import Knobs

KNOBS = Knobs()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_setting_of_one_batch_size_costs_one_trace_and_keeps_its_cap(
    workload: Any, worker: Any, card: Card, batch_size: int
) -> None:
    curves = CurveSet()
    curves.add(KNOBS, Predictor(workload, worker).curve(KNOBS, card, only_batch=batch_size))
    space = SearchSpace(choices={}, min_batch=batch_size, caps={KNOBS: batch_size})
    left, reasons = capped(space, curves)
    assert list(left.sizes(KNOBS)) == [batch_size]
    assert reasons[KNOBS].why == f"at batch {batch_size} the samples are the longest that fit"
    assert not reasons[KNOBS].is_refused
    assert curves.trace_identity is not None
    assert worker.traced == [batch_size]
