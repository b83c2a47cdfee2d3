"""Records where steps end, and decides whether more are needed to see if memory grows between steps."""

from __future__ import annotations

from collections.abc import Callable, Collection

from autofit_workers.replay.curve.growth import LiveAfterSteps
from autofit_workers.tracing.recording.recorder import Recorder


class StepEnds:
    """Records where each step ends, as the number of allocations and frees before it.

    Args:
        grown: called with the source lines of allocations that grow from step to step, if there are any.

    Attributes:
        positions: number of events before the end of each step.
    """

    def __init__(
        self, recorder: Recorder, grown: Callable[[Collection[str]], None] = lambda _sources: None
    ) -> None:
        self._recorder = recorder
        self._grown = grown
        self._num_that_tell = 0
        self.positions: list[int] = []

    def add(self) -> None:
        """Records that a step ends at the present position of the trace."""
        self.positions.append(self._recorder.position)

    def want_more(self) -> bool:
        """Whether more steps are needed to tell if the memory alive after each step grows."""
        if len(self.positions) >= self._num_that_tell:
            recorder = self._recorder
            live = LiveAfterSteps(recorder.allocations, recorder.events(), self.positions)
            self._num_that_tell = live.num_steps_that_tell
            if live.growths:
                self._grown({growth.source for growth in live.growths})
        return len(self.positions) < self._num_that_tell
