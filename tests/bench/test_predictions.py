"""What a prediction is of, where the measurement that it is held against is not of everything."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.trace import Allocation, Category, Mark, Trace
from tests.bench.predictions import before_bytes, on_the_card, used_of_cudnn
from tests.bench.test_scoring import MIB, row
from tests.workers.replay.plan_tables import CONVOLUTION, of_sizes, step


def trace_of(*allocations: Allocation, **changes: Any) -> Trace:
    return dataclasses.replace(step(8), allocations=allocations, **{"events": (), **changes})


@pytest.mark.parametrize(
    ("measured_from", "before_mib"),
    [
        ("", 0),
        ("model", 0),
        ("step 1 input", 30 + 20),  # small tensors share a segment of 20 MiB
        ("step 1 forward", 30 + 20 + 64),
    ],
)
def test_a_measurement_leaves_out_what_is_reserved_when_it_begins(
    measured_from: str, before_mib: int
) -> None:
    sizes = {
        Category.PARAMETER: 30,
        Category.OPTIMIZER_STATE: 3,
        Category.INPUT: 64,
        Category.ACTIVATION: 100,
    }
    trace = trace_of(
        *(Allocation(num_bytes=size * MIB, category=kind) for kind, size in sizes.items()),
        events=(0, 1, 2, 3, ~3, ~2),
        marks=tuple(
            Mark(position=position, name=name)
            for position, name in enumerate(("model", "optimizer", "step 1 input", "step 1 forward"))
        ),
    )
    measured = row(batch_size=8, measured_from=measured_from)
    assert before_bytes(PeakCurve.through([trace]).at(8), measured, Conditions()) == before_mib * MIB


def test_a_network_uses_of_cudnn_what_its_operators_say() -> None:
    plain = Allocation(num_bytes=MIB, category=Category.ACTIVATION, operator="aten.mm")
    norm = Allocation(num_bytes=MIB, category=Category.ACTIVATION, operator="aten.native_batch_norm")
    convolution = Allocation(num_bytes=MIB, category=Category.WORKSPACE, convolution=CONVOLUTION)
    assert used_of_cudnn(trace_of(plain)) == ()
    assert used_of_cudnn(trace_of(plain, convolution)) == ("convolution",)
    assert used_of_cudnn(trace_of(norm, convolution, plain)) == ("convolution", "batch norm")


@pytest.mark.parametrize(("card_mib", "likely_mib"), [(400, 100), (130, 60)])
def test_the_likely_peak_is_the_lower_median_of_what_each_source_makes_of_the_card(
    card_mib: int, likely_mib: int
) -> None:
    sized = PeakCurve.through([step(8)]).at(8)
    sources = tuple(of_sizes(size * MIB, 0) for size in (10, 300, 40, 60))
    measured = row(batch_size=8, total_bytes=card_mib * MIB, context_bytes=0)
    assert on_the_card(sized, measured, Conditions(plans=sources)) == likely_mib * MIB
