"""Steps whose times are predicted, and residuals by which they are stated, for tests without torch."""

from __future__ import annotations

import dataclasses

from autofit_workers.replay.time.interval import HOST, Residual, TimeResiduals
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.spec.trace import Trace
from tests.autofit.conftest import step_trace
from tests.workers.replay.time.steps_by_hand import elementwise, product, trace_of_works

# Real runs of every class of kernels and on every sm_86 card were off by a tenth.
MEASURED_TIMES = TimeResiduals(
    classes=dict.fromkeys((HOST, *map(str, KernelClass)), Residual(sigma=0.1, num_rows=50)),
    cards={"sm_86": Residual(sigma=0.1, num_rows=50)},
    class_sigma=0.35,
    card_sigma=0.35,
    setting_sigma=0.05,
    other_sigma=0.2,
    least_share=0.9,
    most_sigma=0.25,
)
UNMEASURED_TIMES = dataclasses.replace(MEASURED_TIMES, classes={}, cards={})


def timed_trace(batch_size: int, *, num_calls: int = 20, rows_per_sample: int = 256) -> Trace:
    """Trace of `step_trace`, with products of matrices whose rows grow with the batch size."""
    works = [
        elementwise(batch_size, 4096),
        *[product(batch_size * rows_per_sample, 4096, 4096)] * num_calls,
    ]
    return dataclasses.replace(step_trace(batch_size), work=trace_of_works(works, batch_size).work)
