"""Peak curve: the peak memory of a step at any batch size, from traces of the step.

`curve.at(batch_size)` is the step at that size, `curve.on_card(batch_size, conditions)` its peaks
and verdicts on a card.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.lines.step_lines import StepLines
from autofit_workers.replay.curve.replay_memory import ReplayMemory
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Trace

# Small sizes trace fast; 1 and 2 are avoided because shapes of 1 take branches of their own.
TRACED_BATCH_SIZES = (4, 6, 10)
_MOST_SIZES = 512  # remembered; 20 kB each of a usual network, 150 kB of a large model


def traced_knobs(knobs: Knobs, *, num_passes: int, for_host: bool = False) -> Knobs:
    """Knob setting to trace for `knobs`, shared by all settings with equal traces.

    On cards all convolution algorithms share one trace: their workspaces are computed at a replay; on the
    CPU (`for_host`) they are in the trace. The allocator's settings decide nothing before a replay.

    Args:
        num_passes: of a step at the size that is traced, see `Knobs.num_passes`.
    """
    traced = dataclasses.replace(knobs.for_passes(num_passes), allocator="default")
    return traced if for_host else dataclasses.replace(traced, conv_algo="cudnn")


class StepCurve(ABC):
    """Base class of peak curves: a step at any batch size."""

    @property
    def needs_traces(self) -> bool:
        """Whether each batch size needs a trace of its own."""
        return False

    @abstractmethod
    def at(self, batch_size: int) -> SizedStep:
        """Step at a batch size, with the bytes of its allocations."""
        ...

    @property
    def any_trace(self) -> Trace:
        """One of the step's traces, at any batch size."""
        return self.at(TRACED_BATCH_SIZES[0]).trace

    @abstractmethod
    def piece(self, batch_size: int) -> PeakCurve:
        """Peak curve that covers a batch size, through traces with equal events."""
        ...

    def on_card(self, batch_size: int, conditions: Conditions) -> StepOnCard:
        """Step at a batch size under conditions such as the card and the convolution algorithm."""
        return StepOnCard(self.at(batch_size), conditions)


class PeakCurve(StepCurve):
    """Peak curve of a step with equal events at all batch sizes; from one trace, only at its batch size.

    Args:
        lines: what the step allocates at any batch size.
        traces: at different batch sizes, that the lines go through; empty where they are known otherwise.

    Attributes:
        trace: the first of the traces that the lines go through.
        traces: as given.
    """

    def __init__(self, lines: StepLines, traces: Sequence[Trace] = ()) -> None:
        self._lines = lines
        self.traces = tuple(traces)
        self._replays = ReplayMemory()
        self._sized: dict[int, SizedStep] = {}
        self.trace = self._lines.trace

    @classmethod
    def through(cls, traces: Sequence[Trace]) -> Self:
        """Fits a peak curve to traces of one workload and knob setting at different batch sizes.

        Raises:
            BatchDependentEventsError: the traces differ in more than sizes that are products of
                lines in the batch size.
        """
        return cls(StepLines.through(traces), traces)

    @property
    def any_trace(self) -> Trace:
        """First of the step's traces."""
        return self.trace

    def piece(self, batch_size: int) -> PeakCurve:
        """Returns the curve itself, which must cover the batch size."""
        assert self._lines.only_batch_size in (None, batch_size)
        return self

    def at(self, batch_size: int) -> SizedStep:
        """Step at a batch size; cached, because a search asks for equal sizes at every risk."""
        assert self._lines.only_batch_size in (None, batch_size)
        if batch_size not in self._sized:
            if len(self._sized) >= _MOST_SIZES:
                self._sized.clear()
            self._sized[batch_size] = SizedStep(self._lines, batch_size, self._replays)
        return self._sized[batch_size]

    def agrees_with(self, trace: Trace) -> bool:
        """Whether a trace has the events and sizes that the curve gives at the trace's batch size.

        A branch on the batch size, or a step that works in portions, shows only at some sizes.
        """
        batch_size, there = trace.batch_size, StepLines.through([trace])
        return (
            self.trace.events == trace.events
            and self._lines.streams == there.streams
            and self._lines.sizes_at(batch_size) == there.sizes_at(batch_size)
            and self._lines.calls_at(batch_size) == there.calls_at(batch_size)
        )


class TracedCurve(StepCurve):
    """Peak curve of a step whose events depend on the batch size; traces every batch size asked for.

    Args:
        trace_at: traces the step at a batch size.
    """

    def __init__(self, trace_at: Callable[[int], Trace]) -> None:
        self._trace_at = trace_at
        self._curves: dict[int, PeakCurve] = {}

    @property
    def needs_traces(self) -> bool:
        """Whether each batch size needs a trace of its own."""
        return True

    def at(self, batch_size: int) -> SizedStep:
        """Step at a batch size, traced at the first call."""
        return self.piece(batch_size).at(batch_size)

    def piece(self, batch_size: int) -> PeakCurve:
        """Peak curve of the single trace at a batch size, traced at the first call."""
        if batch_size not in self._curves:
            self._curves[batch_size] = PeakCurve.through([self._trace_at(batch_size)])
        return self._curves[batch_size]


class SingleSampleCurve(StepCurve):
    """Peak curve of a step whose events differ at batch size 1 alone.

    A slice of one sample is contiguous: what `labels[..., 1:].reshape(-1)` copies of several samples it only
    views of one, so that the events have an allocation less.

    Args:
        single: of the step with one sample.
        several: of all others.
    """

    def __init__(self, single: PeakCurve, several: PeakCurve) -> None:
        self.single = single
        self.several = several

    def at(self, batch_size: int) -> SizedStep:
        """Step at a batch size, with the bytes of its allocations."""
        return self.piece(batch_size).at(batch_size)

    def piece(self, batch_size: int) -> PeakCurve:
        """Peak curve of batch size 1, or of all larger batch sizes."""
        return self.single if batch_size == 1 else self.several


class AccumulatedCurve(StepCurve):
    """Peak curve of a step that accumulates gradients only at batch sizes below the global batch size.

    Args:
        pieces: curve of the step that accumulates several batches.
        whole: curve of the step of one batch.
    """

    def __init__(self, pieces: PeakCurve, whole: PeakCurve, *, global_batch: int) -> None:
        self._pieces = pieces
        self._whole = whole
        self._global_batch = global_batch

    def at(self, batch_size: int) -> SizedStep:
        """Step at a batch size; below the global batch size with accumulated gradients."""
        return self.piece(batch_size).at(batch_size)

    def piece(self, batch_size: int) -> PeakCurve:
        """Peak curve with gradient accumulation below the global batch size, else without."""
        return self._pieces if batch_size < self._global_batch else self._whole
