"""CUDA streams that are not there: objects with an identity, of which one is current.

The caching allocator keeps the blocks of each stream apart, so an allocation has to know on which stream it
was made, and whom `Tensor.record_stream` named. Nothing is computed, so nothing is ever waited for.

PyTorch has 32 streams of each priority on a device and hands them out in turn (`kStreamsPerPool`,
c10/cuda/CUDAStream.cpp); the 33rd is the first again.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from workers.predict.fake.devices import GPU

_STREAMS_OF_A_PRIORITY = 32
_MOST_PRIORITIES = 4  # `max_compile_time_stream_priorities`, c10/cuda/CUDAStream.h
_DEFAULT = (0, -1)

StreamObserver = Callable[[Tensor, int], None]


class _Device:
    """What is known of the streams of the one GPU.

    Attributes:
        current: the stream that allocates.
        observer: told of every `Tensor.record_stream`: the tensor, and the number of the stream.
    """

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, int], int] = {_DEFAULT: 0}
        self.taken: collections.Counter[int] = collections.Counter()
        self.current: Stream | None = None
        self.observer: StreamObserver | None = None


_device = _Device()


class _Done:
    """What streams and events have in common: all that was asked of them is done."""

    device = GPU
    device_index = 0
    device_type = 1

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing is waited for, as by every method here of which a GPU would wait."""

    def wait(self, *_args: object, **_kwargs: object) -> None:
        """See `synchronize`."""


class Event(_Done):
    """`torch.cuda.Event`."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self.cuda_event = self.event_id = 0

    def record(self, *_args: object, **_kwargs: object) -> Self:
        return self

    def elapsed_time(self, _end: object) -> float:
        """A millisecond, by which programs may divide."""
        return 1.0


class Stream(_Done):
    """`torch.cuda.Stream`.

    Attributes:
        number: by which the trace knows it; 0 is the default one.
    """

    def __init__(self, device: object = None, priority: int = 0, **kwargs: Any) -> None:  # noqa: ARG002
        number = kwargs.get("stream_id")
        self.priority = max(1 - _MOST_PRIORITIES, min(0, priority))
        self.number = self._next() if number is None else number
        self.cuda_stream = self.stream_id = self.number
        self._outer: list[Stream | None] = []

    def _next(self) -> int:
        key = (self.priority, _device.taken[self.priority] % _STREAMS_OF_A_PRIORITY)
        _device.taken[self.priority] += 1
        return _device.numbers.setdefault(key, len(_device.numbers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def wait_event(self, _event: object) -> None:
        """See `synchronize`."""

    def wait_stream(self, _stream: object) -> None:
        """See `synchronize`."""

    def __enter__(self) -> Self:
        self._outer.append(_device.current)
        _device.current = self
        return self

    def __exit__(self, *_exception: object) -> None:
        _device.current = self._outer.pop()


class ExternalStream(Stream):
    """A stream that a library made: one more."""

    def __init__(self, _stream_ptr: int = 0, device: object = None, **_kwargs: Any) -> None:
        super().__init__(device)


class _StreamContext:
    """`torch.cuda.stream(...)`, which is left alone by None."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exception)


def current_number() -> int:
    """The number of the stream that allocates now."""
    return 0 if _device.current is None else _device.current.number


def begin_program(observer: StreamObserver | None) -> None:
    """Another program begins: it has the default stream alone.

    Args:
        observer: see `_Device`.
    """
    _device.__init__()  # type: ignore[misc]
    _device.observer = observer


def _current_stream(_device_asked: object = None) -> Stream:
    return _device.current or _default_stream()


def _default_stream(_device_asked: object = None) -> Stream:
    return Stream(stream_id=0)


def _set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _device.current = stream


def _record_stream(tensor: Tensor, stream: Stream) -> None:
    if _device.observer is not None:
        _device.observer(tensor, getattr(stream, "number", 0))


def install() -> None:
    """Puts them in the place of PyTorch's, for good."""
    cuda: Any = torch.cuda
    for module in (cuda, cuda.streams):
        module.Stream, module.Event, module.ExternalStream = Stream, Event, ExternalStream
    cuda.StreamContext, cuda.stream = _StreamContext, _StreamContext
    cuda.current_stream, cuda.default_stream, cuda.set_stream = _current_stream, _default_stream, _set_stream
    tensor: Any = Tensor
    tensor.record_stream = _record_stream
