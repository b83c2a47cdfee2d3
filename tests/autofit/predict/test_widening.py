"""Ranges are widened by what is known of the errors of such predictions."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from autofit.predict.confidence import Calibration, shipped_residuals
from autofit.predict.intervals.widening import Widening
from autofit_workers.spec.trace import Seen, Trace


def calibration(trace: Trace) -> Calibration:
    on_card: Any = SimpleNamespace(step=SimpleNamespace(trace=trace))
    return Widening(shipped_residuals(), ["sm_80"], observed=None).of_other_runs(on_card)


def test_a_compiled_step_that_is_followed_as_eager_code_has_a_wider_range(make_trace: Any) -> None:
    trace = make_trace(4)
    plain = calibration(trace)
    eager = calibration(dataclasses.replace(trace, seen=Seen(num_eager_graphs=1)))
    assert eager.low_share <= -0.29 < plain.low_share
    assert eager.high_share >= 0.49 > plain.high_share
