"""Streams of a step beside each other: collectives, the kernels that wait for them, and the host."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.collectives import network_of
from autofit_workers.replay.time.constants import constants
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.replay.time.lines import BatchDependentWorkError, EventWait, WorkLines, work_of
from autofit_workers.replay.time.step import clocked
from autofit_workers.spec.trace import HostWait
from autofit_workers.spec.work import Group, Operand, Work
from tests.workers.replay.time.steps_by_hand import elementwise, trace_of_works
from tests.workers.replay.time.test_step import CARD, HOST

NETWORK = network_of("NVIDIA A100-SXM4-80GB", "sm_80")
LARGE = elementwise(100_000_000)


def costs(units=0):
    """Of a card whose collectives take so many multiprocessors from kernels."""
    within = dataclasses.replace(NETWORK.within, units=units)
    return Costs(
        CARD,
        dataclasses.replace(constants(), host=HOST),
        network=dataclasses.replace(NETWORK, within=within),
    )


def all_reduce(num_elements, num_ranks=2, stride=1):
    operand = Operand((num_elements,), "float32")
    return Work("c10d.allreduce_", (operand,), (operand,), group=Group(num_ranks, stride))


def trace_on_streams(*calls, waits=()):
    """A step of calls, each its work, its stream and what it waits for."""
    trace = trace_of_works([work for work, _, _ in calls])
    work = tuple(
        dataclasses.replace(call, stream=stream, after=after)
        for call, (_, stream, after) in zip(trace.work, calls, strict=True)
    )
    events = tuple(event for number in range(len(calls)) for event in (number, ~number))
    return dataclasses.replace(trace, work=work, host_waits=waits, events=events)


def clock(*calls, units=0, waits=(), **options):
    step = work_of(trace_on_streams(*calls, waits=waits))
    return clocked(
        step.calls,
        step.in_backward,
        costs(units),
        host_waits=step.host_waits,
        event_waits=step.event_waits,
        **options,
    )


KERNEL = clock((LARGE, 0, ())).device_seconds
SHORT, LONG = all_reduce(4_000_000), all_reduce(400_000_000)


def test_a_collective_on_its_callers_stream_hides_nothing():
    found = clock((LARGE, 0, ()), (LONG, 0, ()), (LARGE, 0, ()))
    exchanged = found.class_seconds[KernelClass.ALL_REDUCE]
    assert exchanged == pytest.approx(found.exchange_seconds)
    assert found.seconds == pytest.approx(2 * KERNEL + exchanged, rel=0.02)


def test_a_collective_that_nobody_waits_for_yet_is_hidden():
    calls = [(LARGE, 0, ()), (SHORT, 1, (1,)), *[(LARGE, 0, ())] * 4]
    found = clock(*calls)
    assert found.exchange_seconds > 0
    assert found.class_seconds[KernelClass.ALL_REDUCE] == pytest.approx(0.0, abs=1e-12)
    assert found.seconds == pytest.approx(5 * KERNEL, rel=0.02)
    begin = found.calls[1].start_seconds
    assert begin == pytest.approx(found.calls[0].end_seconds), "it waits for what its stream waited for"


def test_what_waits_for_a_collective_begins_after_it():
    found = clock((LARGE, 0, ()), (LONG, 1, (1,)), (LARGE, 0, ()), (LARGE, 0, (2,)))
    assert found.calls[3].start_seconds == pytest.approx(found.calls[1].end_seconds)
    exposed = found.calls[1].end_seconds - found.calls[2].end_seconds
    assert found.class_seconds[KernelClass.ALL_REDUCE] == pytest.approx(exposed)
    assert found.device_seconds <= found.seconds


def test_a_step_ends_with_its_last_collective():
    found = clock((LARGE, 0, ()), (LONG, 1, (1,)))
    assert found.seconds == pytest.approx(found.calls[1].end_seconds)


def test_kernels_of_several_streams_take_turns():
    beside, behind = clock((LARGE, 0, ()), (LARGE, 1, ())), clock((LARGE, 0, ()), (LARGE, 0, ()))
    assert beside.seconds == pytest.approx(behind.seconds)


def test_a_kernel_that_waits_does_not_keep_others_from_running():
    # The copy on stream 2 waits for the collective; what is launched after it on stream 0 does not.
    found = clock((LONG, 1, ()), (LARGE, 2, (1,)), (LARGE, 0, ()))
    assert found.calls[2].start_seconds < found.calls[0].end_seconds <= found.calls[1].start_seconds


def test_kernels_have_fewer_units_while_a_collective_runs():
    calls = [(LONG, 1, ()), (LARGE, 0, ())]
    alone, beside = clock(*calls), clock(*calls, units=20)
    of_kernel = [found.calls[1].end_seconds - found.calls[1].start_seconds for found in (alone, beside)]
    assert of_kernel[1] == pytest.approx(of_kernel[0] * 100 / 80, rel=1e-3)
    part = clock((SHORT, 1, ()), (LARGE, 0, ()), units=20)
    took = part.calls[1].end_seconds - part.calls[1].start_seconds
    assert of_kernel[0] < took < of_kernel[1]
    assert part.class_seconds[KernelClass.ALL_REDUCE] >= took - of_kernel[0]


def test_the_host_may_wait_for_one_stream_alone():
    calls = [(LONG, 1, ()), (LARGE, 0, ()), (LARGE, 0, ())]
    for_kernel = clock(*calls, waits=(HostWait(position=2, stream=0, up_to=2),))
    for_all = clock(*calls, waits=(HostWait(position=2, stream=None, up_to=2),))
    assert for_kernel.calls[2].launched_seconds == pytest.approx(for_kernel.calls[1].end_seconds + HOST.call)
    assert for_all.calls[2].launched_seconds == pytest.approx(for_all.calls[0].end_seconds + HOST.call)


def test_waits_for_one_stream_name_the_last_call_that_it_had_been_given():
    waits = (
        HostWait(position=3, stream=1, up_to=2),
        HostWait(position=3, stream=7, up_to=3),
    )
    step = work_of(
        trace_on_streams((LARGE, 1, ()), (LARGE, 0, ()), (LARGE, 1, ()), (LARGE, 0, ()), waits=waits)
    )
    assert step.host_waits == ()
    assert step.event_waits == (EventWait(number=3, call=0),)


def test_collectives_that_take_longer_show_once_they_are_no_longer_hidden():
    calls = [(LARGE, 0, ()), (LONG, 1, (1,)), *[(LARGE, 0, ())] * 2, (LARGE, 0, (3,))]
    times = [clock(*calls, exchange_cost=cost).seconds for cost in (0.01, 1.0, 2.0)]
    assert times == sorted(times)
    assert times[0] < times[2]


def test_collectives_are_of_the_class_that_was_timed_within_a_node_alone():
    known = costs()
    assert known.kernels(SHORT)[0].kind is KernelClass.ALL_REDUCE
    assert known.kernels(all_reduce(8, 2, 8))[0].kind is KernelClass.COLLECTIVE
    assert known.kernels(all_reduce(1000, 2))[0].kind is KernelClass.COLLECTIVE  # smaller than all timed ones
    gather = dataclasses.replace(SHORT, operator="c10d._allgather_base_")
    assert known.kernels(gather)[0].kind is KernelClass.GATHER
    unknown = Costs(CARD, constants(), network=dataclasses.replace(NETWORK, num_rows=0))
    assert unknown.kernels(SHORT)[0].kind is KernelClass.COLLECTIVE


def test_a_group_of_one_rank_exchanges_nothing():
    alone = Costs(CARD, constants())
    (kernel,) = alone.kernels(all_reduce(10**9, 1))
    assert alone.seconds(kernel) == CARD.launch_seconds


def test_the_bytes_of_collectives_are_lines_of_the_batch():
    traces = []
    for batch_size in (4, 6, 10):
        trace = trace_on_streams((LARGE, 0, ()), (all_reduce(batch_size * 8), 1, (1,)))
        traces.append(dataclasses.replace(trace, batch_size=batch_size))
    calls = WorkLines.through(traces).at(32).calls
    assert calls[1].work == all_reduce(256)
    assert (calls[1].stream, calls[1].after) == (1, (1,))


def test_steps_that_exchange_among_other_ranks_are_not_alike():
    traces = [dataclasses.replace(trace_on_streams((all_reduce(8, n), 0, ())), batch_size=n) for n in (2, 4)]
    with pytest.raises(BatchDependentWorkError):
        WorkLines.through(traces)
