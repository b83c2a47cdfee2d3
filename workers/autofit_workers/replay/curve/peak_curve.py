"""Peak curve: the peak memory of a step at any batch size, from traces of the step.

`curve.at(batch_size)` is the step at that size, `curve.on_card(batch_size, conditions)` its peaks
and verdicts on a card.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.lines.step_lines import StepLines
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import Trace

# Small sizes trace fast; 1 and 2 are avoided because shapes of 1 take branches of their own.
TRACED_BATCH_SIZES = (4, 6, 10)
_MOST_SIZES = 512  # in the cache; each takes 20 kB for a usual network, 150 kB for a large model


def traced_knobs(knobs: Knobs, *, num_passes: int, for_host: bool = False) -> Knobs:
    """Knob setting (values of the training options) that has to be traced to predict steps under `knobs`.

    Settings that would give equal traces share it. On cards all convolution algorithms share one trace,
    because workspaces are computed at a replay; on the CPU the trace has the workspaces. The allocator's
    settings only matter at a replay.

    Args:
        knobs: the knob setting to predict.
        num_passes: number of accumulated batches in the traced step, see `Knobs.num_passes`.
        for_host: whether the step is predicted for the CPU rather than for a card.
    """
    traced = dataclasses.replace(knobs.for_passes(num_passes), allocator="default")
    return traced if for_host else dataclasses.replace(traced, conv_algo="cudnn")


class PeakCurve:
    """Training or inference step at any batch size, under one setting of its options; computes its peaks.

    Most steps have equal events at all batch sizes, so one `StepLines` (sizes as lines in the batch
    size) covers all sizes. Some steps need two of them, or one for each size.

    Args:
        lines_at: returns the lines that cover a batch size.
        lines: the lines that cover all batch sizes; None if different batch sizes need different lines.
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
        """Peak curve of a step with equal events at all batch sizes, from the lines that cover them."""
        return cls(lambda _: lines, lines=lines)

    @classmethod
    def through(cls, traces: Sequence[Trace]) -> Self:
        """Fits a peak curve to traces of one workload and knob setting at different batch sizes.

        From a single trace, the curve covers that trace's batch size alone.

        Raises:
            BatchDependentEventsError: the traces' events differ, or a dimension is no line in the batch size.
        """
        return cls.of(StepLines.through(traces))

    @classmethod
    def in_two(cls, below: StepLines, rest: StepLines, *, start: int) -> Self:
        """Peak curve of a step whose events below a batch size differ from those at and above it.

        There are two kinds of such steps. One accumulates gradients, which it only does at batch sizes below
        the global batch. The other slices its batch: a slice of one sample is contiguous, so
        `labels[..., 1:].reshape(-1)` is a view at batch size 1, and a copy from batch size 2 on.

        Args:
            below: the step below the batch size `start`.
            rest: the step from `start` on.
            start: the batch size at which the events change.
        """
        return cls(lambda batch_size: below if batch_size < start else rest)

    @classmethod
    def traced_anew(cls, trace_at: Callable[[int], Trace]) -> Self:
        """Peak curve of a step whose events depend on the batch size, so each size is traced by itself.

        Args:
            trace_at: traces the step at a batch size.
        """
        return cls(functools.cache(lambda size: StepLines.through([trace_at(size)])), needs_traces=True)

    @property
    def trace(self) -> Trace:
        """First of the traces that the step is known from."""
        return self.lines_at(TRACED_BATCH_SIZES[0]).trace

    def at(self, batch_size: int) -> SizedStep:
        """Step at a batch size, independent of the card; cached."""
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
