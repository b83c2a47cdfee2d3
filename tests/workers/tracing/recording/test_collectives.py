"""What ranks exchange in a traced step: among whom, on which stream, and who waits for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.work import Group
from autofit_workers.tracing.recording.streams.call_order import CallOrder
from autofit_workers.trials import door
from tests.workers.conftest import predict_spec

SHARDED = Path(__file__).parents[1] / "sharded_workloads.py"


def trace_of(parallel: str, workload: WorkloadRef | None = None) -> Trace:
    setup = Setup(parallel=Parallel.parse(parallel))
    spec = predict_spec("small:attention", 4)
    outcome = door.run(dataclasses.replace(spec, setup=setup, workload=workload or spec.workload))
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


@pytest.fixture(scope="module")
def of_ddp() -> Trace:
    return trace_of("ddp:4")


@pytest.fixture(scope="module")
def of_fsdp() -> Trace:
    return trace_of("hsdp:2x4")


def exchanges(trace):
    return [(number, call) for number, call in enumerate(trace.work) if call.work.group is not None]


def test_ddp_reduces_every_gradient_once_beside_backward(of_ddp):
    found = [call for _, call in exchanges(of_ddp)]
    assert {call.work.operator for call in found} == {"c10d.allreduce_"}
    assert {call.work.group for call in found} == {Group(4)}
    assert 0 not in {call.stream for call in found}
    reduced = sum(call.work.inputs[0].num_bytes for call in found)
    parameters = sum(a.num_bytes for a in of_ddp.allocations if a.category == "parameter")
    assert reduced == parameters


def test_ddp_waits_for_what_it_reduced_before_it_copies_it_back(of_ddp):
    last, _ = exchanges(of_ddp)[-1]
    waiting = [number for number, call in enumerate(of_ddp.work) if number - last in call.after]
    assert [of_ddp.work[number].work.operator for number in waiting] == ["aten.copy_"]


def test_a_gathered_parameter_is_waited_for_by_the_stream_that_computes(of_fsdp):
    gathers = [number for number, call in exchanges(of_fsdp) if call.work.operator == "c10d._allgather_base_"]
    assert gathers
    assert {of_fsdp.work[number].work.group for number in gathers} == {Group(4)}
    waited = {
        number - back for number, call in enumerate(of_fsdp.work) if call.stream == 0 for back in call.after
    }
    assert waited.issuperset(gathers)


def test_replicas_of_shards_reduce_among_ranks_that_lie_apart(of_fsdp):
    reduced = [call.work for _, call in exchanges(of_fsdp) if call.work.operator == "c10d.allreduce_"]
    scattered = [
        call.work for _, call in exchanges(of_fsdp) if call.work.operator == "c10d._reduce_scatter_base_"
    ]
    assert {work.group for work in reduced} == {Group(2, 4)}
    assert {work.group for work in scattered} == {Group(4)}
    assert len(reduced) == len(scattered)
    assert all(4 * work.outputs[0].num_elements == work.inputs[0].num_elements for work in scattered)


def test_what_is_exchanged_comes_back_from_a_file(of_ddp, of_fsdp):
    for trace in (of_ddp, of_fsdp):
        assert Trace.from_json(trace.to_json()).work == trace.work
        assert any(call.after for call in trace.work)


def test_a_wait_for_an_event_is_one_for_what_its_stream_had_waited_for():
    order = CallOrder()
    assert order.add(0, 0) == ()
    order.wait(1, order.record(0))
    order.wait(2, order.record(1))  # stream 1 was given nothing since
    assert order.add(2, 1) == (1,)
    assert order.add(2, 2) == ()
    assert order.add(1, 3) == (3,)


def test_of_several_waits_for_a_stream_the_last_counts():
    order = CallOrder()
    order.add(1, 0)
    first = order.record(1)
    order.add(1, 1)
    order.wait(0, order.record(1))
    order.wait(0, first)
    assert order.add(0, 2) == (1,)


def test_what_tensor_parallelism_reduces_is_waited_for_where_it_is_used():
    trace = trace_of("tp:2", WorkloadRef(kind="file", target=f"{SHARDED}:perceptrons"))
    found = exchanges(trace)
    assert {call.work.operator for _, call in found} >= {"_c10d_functional.all_reduce"}
    assert 0 not in {call.stream for _, call in found}, "they run on the group's own stream"
    waited = {number - back for number, call in enumerate(trace.work) for back in call.after}
    assert waited.issuperset(number for number, _ in found)
