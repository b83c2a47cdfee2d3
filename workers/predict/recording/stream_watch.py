"""What a program does with its streams, for the recorder."""

from __future__ import annotations

import torch

from workers.predict.recording.recorder import Recorder
from workers.predict.recording.stream_order import Progress


class StreamWatch:
    """Notes uses of memory and waits; see `workers.predict.fake.streams.Observer`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.record = recorder.order.record
        self.wait = recorder.order.wait

    def note_use(self, tensor: torch.Tensor, stream: int) -> None:
        self._recorder.note_use(tensor, stream)

    def host_wait(self, done: Progress) -> None:
        if not self._recorder.is_closed:
            self._recorder.order.host_wait(done)

    def host_wait_for_all(self) -> None:
        if not self._recorder.is_closed:
            self._recorder.order.host_wait_for_all()

    def release(self) -> None:
        if not self._recorder.is_closed:
            self._recorder.order.release()
