"""Peak curve: the peak memory of a step at any batch size, from traces of the step.

`curve.at(batch_size)` is the step at that size, `curve.on_card(batch_size, conditions)` its peaks
and verdicts on a card.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Self

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.lines.step_lines import StepLines
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


class PeakCurve:
    """Step of one knob setting at any batch size, from which its peaks on cards follow.

    Most steps have equal events at all batch sizes, and one `StepLines` covers them. Others have two, or one
    for each size.

    Args:
        lines_at: finds the lines that cover a batch size.
        lines: the lines that cover all batch sizes; None where some have others.
        needs_traces: whether each batch size needs a trace of its own.

    Attributes:
        lines_at, lines, needs_traces: as given.
    """

    def __init__(
        self,
        lines_at: Callable[[int], StepLines],
        *,
        lines: StepLines | None = None,
        needs_traces: bool = False,
    ) -> None:
        self.lines_at = lines_at
        self.lines = lines
        self.needs_traces = needs_traces
        self._sized: dict[int, SizedStep] = {}

    @classmethod
    def of(cls, lines: StepLines) -> Self:
        """Peak curve of a step whose events are equal at all batch sizes that its lines know."""
        return cls(lambda _: lines, lines=lines)

    @classmethod
    def through(cls, traces: Sequence[Trace]) -> Self:
        """Fits a peak curve to traces of one workload and knob setting at different batch sizes.

        Through one trace, it covers that trace's batch size alone.

        Raises:
            BatchDependentEventsError: the traces differ in more than sizes that are products of
                lines in the batch size.
        """
        return cls.of(StepLines.through(traces))

    @classmethod
    def in_two(cls, below: StepLines, rest: StepLines, *, start: int) -> Self:
        """Peak curve of a step that differs below the batch size `start`.

        One that accumulates gradients does so below the global batch size alone. And a slice of one sample is
        contiguous: what `labels[..., 1:].reshape(-1)` copies of several samples it only views of one, so that
        the events have an allocation less below batch size 2.
        """
        return cls(lambda batch_size: below if batch_size < start else rest)

    @classmethod
    def traced_anew(cls, trace_at: Callable[[int], Trace]) -> Self:
        """Peak curve of a step whose events depend on the batch size; traces every batch size asked for."""
        return cls(functools.cache(lambda size: StepLines.through([trace_at(size)])), needs_traces=True)

    @property
    def trace(self) -> Trace:
        """First of the step's traces."""
        return self.lines_at(TRACED_BATCH_SIZES[0]).trace

    def at(self, batch_size: int) -> SizedStep:
        """Step at a batch size; cached, because a search asks for equal sizes at every risk."""
        if batch_size not in self._sized:
            lines = self.lines_at(batch_size)
            assert lines.only_batch_size in (None, batch_size)
            if len(self._sized) >= _MOST_SIZES:
                self._sized.clear()
            self._sized[batch_size] = SizedStep(lines, batch_size)
        return self._sized[batch_size]

    def on_card(self, batch_size: int, conditions: Conditions) -> StepOnCard:
        """Step at a batch size under conditions such as the card and the convolution algorithm."""
        return StepOnCard(self.at(batch_size), conditions)
