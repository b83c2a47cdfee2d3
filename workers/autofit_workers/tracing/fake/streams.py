"""Stand-ins for CUDA streams and events: each stream has a number, and one is current.

The caching allocator keeps free blocks by stream. So a trace needs the stream of each allocation, the streams
that `Tensor.record_stream` named, and the waits of the host. A fake GPU has no work in flight; the observer
is told which work a real GPU might still have to do.

PyTorch has 32 streams of each priority on a device and hands them out in turn (`kStreamsPerPool`,
c10/cuda/CUDAStream.cpp): the 33rd request gets the first stream again.
"""

from __future__ import annotations

import collections
from typing import Any, Protocol

import torch
from torch import Tensor

from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import GRAPHS_POOL
from autofit_workers.tracing.fake.ranks import shelves

_STREAMS_OF_A_PRIORITY = 32
_MOST_PRIORITIES = 4  # `max_compile_time_stream_priorities`, c10/cuda/CUDAStream.h
_DEFAULT = (0, -1)
_GRAPHS = (0, -2)

# Work that is done once an event is over, in the observer's own form; None for an event that was not
# observed.
Progress = Any


class Observer(Protocol):
    """Interface for an object that is notified of a program's calls on CUDA streams, given by number.

    `autofit_workers.tracing.recording.streams.watch` implements it.
    """

    def note_use(self, tensor: Tensor, stream: int) -> None:
        """Notes that a stream uses a tensor's memory (`Tensor.record_stream`)."""

    def record(self, stream: int) -> Progress:
        """Notes that a stream records an event; returns the work that is done once the event is over."""

    def wait(self, stream: int, done: Progress) -> None:
        """Notes that a stream waits for the event for which `record` returned `done`."""

    def wait_for_collective(self, stream: int, work: object) -> None:
        """Notes that a stream waits for a collective (`torch.distributed.Work.wait`)."""

    def host_wait(self, done: Progress) -> None:
        """Notes that the host waits for the event for which `record` returned `done`."""

    def host_wait_for_all(self) -> None:
        """Notes that the host waits for all work on the GPU."""

    def release(self) -> None:
        """Notes that the host empties the allocator's cache (`torch.cuda.empty_cache`).

        It is called even while the default stream is the only one.
        """


class _Device:
    """Streams of the fake GPU: those that were made, and the current one.

    Attributes:
        numbers: number of each stream by priority and place in PyTorch's pool.
        taken: how many streams of each priority were handed out.
        current: the current stream; None for the default stream.
        watcher: observer of the program's calls on streams; None if there is none.
        num_events: number of events recorded so far.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        self.numbers: dict[tuple[int, int], int] = {_DEFAULT: 0}
        self.taken: collections.Counter[int] = collections.Counter()
        self.current: Stream | None = None
        self.watcher = observer
        self.num_events = 0

    @property
    def observer(self) -> Observer | None:
        """Observer of the program's streams; None as long as the default stream is the only one."""
        return self.watcher if len(self.numbers) > 1 else None


_devices = [_Device()]


def _device() -> _Device:
    return _devices[0]


class _OnDevice:
    device = torch.device("cuda:0")
    device_index = 0
    device_type = 1

    def query(self) -> bool:
        return True


class Event(_OnDevice):
    """Stand-in for `torch.cuda.Event`, whose waits are reported to the observer.

    The first call of `query` returns False, as if the GPU were behind. A program that then waits for the
    event, as DeepSpeed does, shows the wait in the trace. If it calls `query` again and has recorded no event
    since, that call returns True, and counts as a wait of the host.

    Attributes:
        done: progress of each stream once the event is over, as the observer returned it; None if there is no
            observer.
    """

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self.cuda_event = self.event_id = 0
        self.done: Progress = None
        self._is_over = True  # as in CUDA, until the event is recorded
        self._asked_at: int | None = None

    def record(self, stream: Stream | None = None) -> Self:
        device = _device()
        device.num_events += 1
        if device.observer is not None:
            self._is_over = False
            self.done = device.observer.record((stream or _current_stream()).number)
        return self

    def query(self) -> bool:
        num_events = _device().num_events
        if not self._is_over and self._asked_at != num_events:
            self._asked_at = num_events
            return False
        self.synchronize()
        return True

    def wait(self, stream: Stream | None = None) -> None:
        (stream or _current_stream()).wait_event(self)

    def synchronize(self) -> None:
        shelves.host_waited()
        observer = _device().observer
        if observer is not None and self.done is not None and not self._is_over:
            observer.host_wait(self.done)
        self._is_over = True

    def elapsed_time(self, _end: object) -> float:
        """Returns 1 millisecond, so that programs may divide by it."""
        return 1.0


class Stream(_OnDevice):
    """Stand-in for `torch.cuda.Stream`.

    Attributes:
        number: the stream's number in the trace; 0 is the default stream.
    """

    def __init__(self, device: object = None, priority: int = 0, **kwargs: Any) -> None:  # noqa: ARG002
        number = kwargs.get("stream_id")
        self.priority = max(1 - _MOST_PRIORITIES, min(0, priority))
        self.number = self._next() if number is None else number
        self.cuda_stream = self.stream_id = self.number
        self._outer: list[Stream | None] = []

    def _next(self) -> int:
        device = _device()
        key = (self.priority, device.taken[self.priority] % _STREAMS_OF_A_PRIORITY)
        device.taken[self.priority] += 1
        return device.numbers.setdefault(key, len(device.numbers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        return (Event() if event is None else event).record(self)

    def wait_event(self, event: Event) -> None:
        observer = _device().observer
        if observer is not None and event.done is not None:
            observer.wait(self.number, event.done)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def __enter__(self) -> Self:
        self._outer.append(_device().current)
        _device().current = self
        return self

    def __exit__(self, *_exception: object) -> None:
        _device().current = self._outer.pop()


class GraphsStream(Stream):
    """Stream that CUDA graphs are recorded on, which stands for their memory pool."""

    def _next(self) -> int:
        return _device().numbers.setdefault(_GRAPHS, GRAPHS_POOL)


class ExternalStream(Stream):
    """Stand-in for `torch.cuda.ExternalStream`, a stream that a library made; a new stream here."""

    def __init__(self, _stream_ptr: int = 0, device: object = None, **_kwargs: Any) -> None:
        super().__init__(device)


class _StreamContext:
    """Stand-in for `torch.cuda.stream(...)`; given None, the current stream stays."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exception)


def current_number() -> int:
    """Number of the current stream, on which tensors are allocated."""
    current = _devices[0].current
    return 0 if current is None else current.number


def begin_program(observer: Observer) -> None:
    """Forgets the streams of an earlier script or workload; the next starts with the default stream alone.

    Args:
        observer: object whose methods are called for calls on streams; most of them only once a second stream
            exists.
    """
    _devices[:] = [_Device(observer)]


def wait_for_collective(work: object) -> None:
    """Makes the current stream wait for the collective whose `torch.distributed` handle is `work`."""
    watcher = _device().watcher
    if watcher is not None:
        watcher.wait_for_collective(current_number(), work)


def host_reads() -> None:
    """Makes the host wait for the current stream, as it does when it reads a value such as `loss.item()`."""
    _current_stream().synchronize()


def _current_stream(device: object = None) -> Stream:  # noqa: ARG001 - callers name it
    return _device().current or _default_stream()


def _default_stream(device: object = None) -> Stream:  # noqa: ARG001 - callers name it
    return Stream(stream_id=0)


def _set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _device().current = stream


def _record_stream(tensor: Tensor, stream: Stream) -> None:
    observer = _device().observer
    if observer is not None:
        observer.note_use(tensor, getattr(stream, "number", 0))


def _synchronize(device: object = None) -> None:  # noqa: ARG001 - callers name it
    shelves.host_waited()
    observer = _device().observer
    if observer is not None:
        observer.host_wait_for_all()


def _empty_cache() -> None:
    watcher = _device().watcher
    if watcher is not None:
        watcher.release()


def install() -> None:
    """Replaces `torch.cuda`'s streams and events by these stand-ins, in this process for good."""
    cuda: Any = torch.cuda
    for module in (cuda, cuda.streams):
        module.Stream, module.Event, module.ExternalStream = Stream, Event, ExternalStream
    cuda.StreamContext, cuda.stream = _StreamContext, _StreamContext
    cuda.current_stream, cuda.default_stream, cuda.set_stream = _current_stream, _default_stream, _set_stream
    cuda.synchronize, cuda.empty_cache = _synchronize, _empty_cache
    cuda.is_current_stream_capturing = lambda: False
    tensor: Any = Tensor
    tensor.record_stream = _record_stream
