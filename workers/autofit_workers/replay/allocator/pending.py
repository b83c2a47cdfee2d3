"""Pending blocks: freed blocks that wait for the other streams that use them.

`Tensor.record_stream` notes in a block that a stream other than its own uses it. When such a block is
freed, PyTorch records an event on each of those streams (`insert_events` of
c10/cuda/CUDACachingAllocator.cpp). Until all of these events are complete the block stays active: it is
neither reused nor merged with its neighbours. Every request first checks the events of each stream in
their order, up to the first that is not complete (`process_events`). Before all cached memory is
released, the host waits for all of them (`synchronize_and_free_events`).

When an event completes depends on how far the device lags behind the host, which a trace does not tell. The
two clocks here are the extremes: a device that keeps up, and one that does nothing before the host waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

_Block = TypeVar("_Block", bound=Hashable)


class StreamEvent(NamedTuple):
    """CUDA event that the allocator records on another stream that uses a block, when the block is freed.

    Attributes:
        stream: the stream that the event is recorded on.
        number: number of events recorded before it, on all streams together.
    """

    stream: int
    number: int


# Tells whether a CUDA event is complete; it is asked only of events that the host has not waited for.
EventClock = Callable[[StreamEvent], bool]


def keeps_up(event: StreamEvent) -> bool:  # noqa: ARG001 (the signature of a clock)
    """Returns True for every CUDA event: the device is assumed to be done with all work launched so far."""
    return True


def lags(event: StreamEvent) -> bool:  # noqa: ARG001 (the signature of a clock)
    """Returns False for every CUDA event: the device is assumed to do no work until the host waits for it."""
    return False


class PendingFrees(Generic[_Block]):
    """Freed blocks that wait for CUDA events of the other streams that use them.

    Attributes:
        clock: decides when an event is complete, if the host has not waited for it.
        num_events: number of events recorded so far, on all streams together.
    """

    def __init__(self, clock: EventClock) -> None:
        self.clock = clock
        self.num_events = 0
        self._uses: dict[_Block, dict[int, None]] = {}
        self._queues: dict[int, deque[tuple[StreamEvent, _Block]]] = {}
        self._num_outstanding: dict[_Block, int] = {}
        self._waited_for: dict[int, int] = {}  # by stream: events before this number are complete

    def use(self, block: _Block, stream: int) -> None:
        """Notes that a stream other than the block's own uses a block."""
        self._uses.setdefault(block, {})[stream] = None

    def holds(self, block: _Block) -> bool:
        """Whether a block that is being freed has to wait for other streams.

        If so, an event is recorded on each of these streams, and the block is kept until `over` returns it.
        """
        streams = self._uses.pop(block, None)
        if streams is None:
            return False
        for stream in streams:
            event = StreamEvent(stream, self.num_events)
            self._queues.setdefault(stream, deque()).append((event, block))
            self.num_events += 1
        self._num_outstanding[block] = len(streams)
        return True

    def wait(self, stream: int | None = None, *, up_to: int | None = None) -> None:
        """Records that the host waits for a stream, so that `over` returns the blocks that become free.

        Args:
            stream: the stream; None for all streams.
            up_to: number of recorded events that the host waits for, in the order of recording; None for all.
        """
        number = self.num_events if up_to is None else up_to
        for each in self._queues if stream is None else (stream,):
            self._waited_for[each] = max(number, self._waited_for.get(each, 0))

    def over(self) -> list[_Block]:
        """Removes and returns the blocks for which all events are complete, so that they can be reused."""
        blocks: list[_Block] = []
        for stream, queue in self._queues.items():
            waited_for = self._waited_for.get(stream, 0)
            while queue and (queue[0][0].number < waited_for or self.clock(queue[0][0])):
                _, block = queue.popleft()
                self._num_outstanding[block] -= 1
                if not self._num_outstanding[block]:
                    del self._num_outstanding[block]
                    blocks.append(block)
        return blocks

    def all_over(self) -> list[_Block]:
        """Removes and returns all waiting blocks, as after a wait of the host for all streams."""
        self.wait()
        return self.over()
