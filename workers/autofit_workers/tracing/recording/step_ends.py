"""Ends of a run's steps, and whether more steps are needed to see what memory grows."""

from __future__ import annotations

from collections.abc import Callable, Collection

from autofit_workers.replay.curve.growth import LiveAfterSteps
from autofit_workers.tracing.recording.recorder import Recorder


class StepEnds:
    """Records where each step ends, as a number of events.

    Args:
        grown: is told the source lines of the allocations that grow, whenever that is looked at.

    Attributes:
        positions: the number of events before the end of each step.
    """

    def __init__(
        self, recorder: Recorder, grown: Callable[[Collection[str]], None] = lambda _sources: None
    ) -> None:
        self._recorder = recorder
        self._grown = grown
        self._num_that_tell = 0
        self.positions: list[int] = []

    def add(self) -> None:
        """Notes that a step has ended."""
        self.positions.append(self._recorder.position)

    def want_more(self) -> bool:
        """Whether more steps are needed to tell if memory alive after steps grows."""
        if len(self.positions) >= self._num_that_tell:
            recorder = self._recorder
            live = LiveAfterSteps(recorder.allocations, recorder.events(), self.positions)
            self._num_that_tell = live.num_steps_that_tell
            if live.growths:
                self._grown({growth.source for growth in live.growths})
        return len(self.positions) < self._num_that_tell
