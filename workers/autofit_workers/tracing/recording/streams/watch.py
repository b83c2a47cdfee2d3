"""Passes a program's use of CUDA streams on to the recorder."""

from __future__ import annotations

from typing import NamedTuple

import torch

from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.tracing.recording.streams.call_order import Done
from autofit_workers.tracing.recording.streams.order import Progress


class _Event(NamedTuple):
    """Progress of the streams at a CUDA event, as recorded for memory and for time.

    Attributes:
        memory: progress in allocations and frees.
        work: progress in operator calls.
    """

    memory: Progress
    work: Done


class StreamWatch:
    """Observer that passes a program's calls on CUDA streams to the recorder.

    It implements `autofit_workers.tracing.fake.streams.Observer`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def note_use(self, tensor: torch.Tensor, stream: int) -> None:
        self._recorder.note_use(tensor, stream)

    def record(self, stream: int) -> _Event:
        return _Event(self._recorder.order.record(stream), self._recorder.work.order.record(stream))

    def wait(self, stream: int, done: _Event) -> None:
        self._recorder.order.wait(stream, done.memory)
        self._recorder.work.order.wait(stream, done.work)

    def wait_for_collective(self, stream: int, work: object) -> None:
        self._recorder.work.wait_for(stream, work)

    def host_wait(self, done: _Event) -> None:
        if not self._recorder.is_closed:
            self._recorder.order.host_wait(done.memory)

    def host_wait_for_all(self) -> None:
        if not self._recorder.is_closed:
            self._recorder.order.host_wait_for_all()

    def release(self) -> None:
        if not self._recorder.is_closed:
            self._recorder.order.release()
