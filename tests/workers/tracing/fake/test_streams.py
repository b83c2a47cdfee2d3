"""Streams of the fake GPU: who allocates on which, who uses what, and for whom the host waited."""

from __future__ import annotations

import pytest

from autofit_workers.spec.trace import Trace
from autofit_workers.tracing.fake import streams
from autofit_workers.trials.run import run
from tests.workers.conftest import predict_spec


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


class Told:
    """An observer that keeps what the host waited for."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.waited_for: list[int] = []

    def record(self, stream: int) -> int:
        self.num_recorded += 1
        return self.num_recorded

    def host_wait(self, done: int) -> None:
        self.waited_for.append(done)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Is told what a program with two streams does."""
    observer = Told()
    monkeypatch.setattr(streams, "_devices", [streams._Device(observer)])
    streams.Stream()
    return observer


def test_an_event_is_not_over_before_the_host_waited_for_it(told):
    event = streams.Event()
    assert event.query()  # never recorded
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert told.waited_for == [1]


def test_who_bounds_what_is_under_way_waits_for_the_oldest(told):
    """As DeepSpeed does, which asks whether its first gather is over, and waits where three are not."""
    under_way: list[streams.Event] = []
    for _ in range(6):
        while under_way and under_way[0].query():
            under_way.pop(0)
        if len(under_way) > 2:
            under_way.pop(0).synchronize()
        under_way.append(streams.Event().record())
    assert told.waited_for == [1, 2, 3]


def test_who_asks_until_an_event_is_over_waits_for_it(told):
    event = streams.Event().record()
    while not event.query():
        pass
    assert told.waited_for == [1]
