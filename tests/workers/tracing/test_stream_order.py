"""What the host knows to be done, by the events of a program."""

from __future__ import annotations

import pytest

from autofit_workers.replay.allocator import Streams, keeps_up, lags, replay
from autofit_workers.spec.trace import HostWait
from autofit_workers.tracing.recording.streams.order import StreamOrder

MIB = 1 << 20
COMPUTE, GATHER, COPY = 0, 1, 2


class Program:
    """Where a program is in its trace, and the order of its streams."""

    def __init__(self) -> None:
        self.position = 0
        self.order = StreamOrder(lambda: self.position)

    def at(self, position: int) -> StreamOrder:
        self.position = position
        return self.order

    def waits(self) -> list[tuple[int, int | None, int]]:
        return [(wait.position, wait.stream, wait.up_to) for wait in self.order.host_waits]


def test_the_host_waits_for_what_came_before_an_event():
    program = Program()
    event = program.at(3).record(COMPUTE)
    program.at(7).host_wait(event)
    assert program.waits() == [(7, COMPUTE, 3)]


def test_what_the_stream_had_waited_for_is_done_too():
    program = Program()
    copied = program.at(2).record(COPY)
    program.at(4).wait(GATHER, copied)
    gathered = program.at(5).record(GATHER)
    program.at(6).wait(COMPUTE, gathered)
    program.at(9).host_wait(program.order.record(COMPUTE))
    assert program.waits() == [(9, COMPUTE, 9), (9, GATHER, 5), (9, COPY, 2)]


def test_an_event_does_not_learn_of_what_its_stream_waits_for_later():
    program = Program()
    early = program.at(1).record(COMPUTE)
    program.at(2).wait(COMPUTE, program.at(2).record(GATHER))
    program.at(3).host_wait(early)
    assert program.waits() == [(3, COMPUTE, 1)]


def test_a_stream_that_waits_for_an_earlier_event_knows_no_less():
    program = Program()
    first, second = program.at(1).record(GATHER), program.at(4).record(GATHER)
    for event in (second, first):
        program.order.wait(COMPUTE, event)
    program.at(5).host_wait(program.order.record(COMPUTE))
    assert program.waits() == [(5, COMPUTE, 5), (5, GATHER, 4)]


def test_to_wait_for_the_device_is_to_wait_for_all():
    program = Program()
    program.at(6).host_wait_for_all()
    assert program.order.host_waits == [HostWait(position=6, stream=None, up_to=6)]


def test_to_empty_the_cache_is_to_wait_for_all_and_to_give_back_what_is_cached():
    program = Program()
    program.at(2).release()
    waits = program.order.host_waits
    assert waits == [HostWait(position=2, stream=None, up_to=2, releases=True)]
    events, sizes = [0, ~0, 1], [20 * MIB, 40 * MIB]
    kept, released = (
        replay(events, sizes, streams=Streams(host_waits=each)).peak_reserved_bytes for each in ((), waits)
    )
    assert (kept, released) == (60 * MIB, 40 * MIB)


@pytest.mark.parametrize(("most_ahead", "num_held"), [(2, 2), (4, 4), (None, 10)])
def test_a_program_that_lets_no_more_than_some_layers_run_ahead_bounds_what_a_device_that_lags_holds(
    most_ahead: int | None, num_held: int
) -> None:
    # As FSDP1 with its `_FreeEventQueue` of two: parameters are gathered on a stream of their own, the other
    # one is recorded for them, and before more are gathered the host waits for the free of earlier ones.
    program, freed, events = Program(), [], []
    for layer in range(10):
        if most_ahead is not None and layer >= most_ahead:
            program.at(len(events)).host_wait(freed[layer - most_ahead])
        events.append(layer)
        program.at(len(events)).wait(COMPUTE, program.order.record(GATHER))
        events.append(~layer)
        freed.append(program.at(len(events)).record(COMPUTE))
    layers = range(10)
    streams = Streams(
        of_requests=dict.fromkeys(layers, GATHER),
        uses=dict.fromkeys(layers, (COMPUTE,)),
        host_waits=program.order.host_waits,
    )
    high, low = (
        replay(events, [20 * MIB] * 10, streams=streams, clock=clock).peak_reserved_bytes // (20 * MIB)
        for clock in (lags, keeps_up)
    )
    assert (low, high) == (1, num_held)
