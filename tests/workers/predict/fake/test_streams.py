"""Streams of the fake GPU: who allocates on which, who uses what, and for whom the host waited."""

from __future__ import annotations

import pytest

from autofit_workers.run import run
from autofit_workers.trace import Trace
from tests.workers.predict.conftest import predict_spec


@pytest.fixture(scope="module")
def trace() -> Trace:
    outcome = run(predict_spec("small:on_streams", 4))
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


def test_an_allocation_is_on_the_stream_that_was_current(trace):
    streams = {allocation.stream for allocation in trace.allocations}
    assert streams == {0, 1, 2, 3}  # a new one in each step
    on_side = [a for a in trace.allocations if a.stream]
    assert {a.operator for a in on_side} == {"aten.mul.Tensor"}


def test_who_was_recorded_for_a_tensor_is_in_the_trace(trace):
    assert {a.stream_uses for a in trace.allocations if a.stream} == {(0,)}


def test_the_host_waits_for_what_the_current_stream_waited_for(trace):
    side = next(a.stream for a in trace.allocations if a.stream)
    assert {wait.stream for wait in trace.host_waits} >= {0, side}
    assert all(wait.up_to <= wait.position for wait in trace.host_waits)


def test_a_step_on_one_stream_says_nothing_of_streams(trace_of):
    plain = trace_of("small:perceptron")
    assert not plain.host_waits
    assert {a.stream for a in plain.allocations} == {0}
