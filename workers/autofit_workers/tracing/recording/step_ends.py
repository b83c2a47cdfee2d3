"""Where the steps of a run end, and whether more of them would tell what grows."""

from __future__ import annotations

from collections.abc import Callable, Collection

from autofit_workers.replay.curve.growth import LiveAfterSteps
from autofit_workers.tracing.recording.recorder import Recorder


class StepEnds:
    """Notes how many events came before the end of each step.

    Args:
        grown: is told the lines of what grows, whenever that is looked at.

    Attributes:
        positions: these numbers.
    """

    def __init__(
        self, recorder: Recorder, grown: Callable[[Collection[str]], None] = lambda _sources: None
    ) -> None:
        self._recorder = recorder
        self._grown = grown
        self._num_that_tell = 0
        self.positions: list[int] = []

    def add(self) -> None:
        """A step has ended."""
        self.positions.append(self._recorder.position)

    def want_more(self) -> bool:
        """Whether what is alive after the steps so far may grow, of which more steps would tell."""
        if len(self.positions) >= self._num_that_tell:
            recorder = self._recorder
            live = LiveAfterSteps(recorder.allocations, recorder.events(), self.positions)
            self._num_that_tell = live.num_steps_that_tell
            if live.growths:
                self._grown({growth.source for growth in live.growths})
        return len(self.positions) < self._num_that_tell
