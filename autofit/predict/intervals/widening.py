"""Widens replayed peaks by what workspaces may add and by past errors of predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from autofit.predict.confidence import Calibration, Residuals, classify
from autofit.predict.intervals.observations import Residual, sharpened
from autofit_workers.replay.curve.conditions import Level
from autofit_workers.replay.curve.peak_estimate import PeakEstimate
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.spec.trace import COMPILED_STEP, CUSPARSE_BUFFER, MANAGED_MEMORY, SORT_BUFFER, Trace

_SPANNING = {
    MANAGED_MEMORY: "pages of managed memory",
    COMPILED_STEP: "temporaries of the compiled optimizer step",
    CUSPARSE_BUFFER: "buffers of cuSPARSE",
    SORT_BUFFER: "buffers that sparse indices are sorted in",
}
# Least and most that 28 measured compiled calls took in place of their predictions as eager code, as a share:
# chunks of Liger's losses, Megatron's SwiGLU and cross entropy (tests/bench, table liger, version 0.2).
_COMPILED_AS_EAGER = (-0.29, 0.49)
_OF_STREAMS = "freed memory that other streams still use"


class Widening:
    """Widens predicted peaks to 95 % intervals, by past errors of predictions.

    Args:
        residuals: past errors of predictions against real runs, by class of model.
        architectures: the architectures that the card may have.
        observed: returns by how much peaks that the user observed, for the same knob setting and card, differ
            from their predictions; called when an interval is first needed. None if these do not count.
    """

    def __init__(
        self,
        residuals: Residuals,
        architectures: Sequence[str],
        *,
        observed: Callable[[], tuple[Residual, ...]] | None,
    ) -> None:
        self._residuals = residuals
        self._architectures = architectures
        self._observed = observed
        self._residuals_seen: tuple[Residual, ...] | None = None
        self._calibrations: dict[int, Calibration] = {}  # by the trace's batch size: slow to compute

    def counted(self, on_card: StepOnCard) -> PeakEstimate:
        """Peaks of a step, simulated in PyTorch's allocator, with low and high ends by workspaces.

        The ends are not yet widened by past errors.
        """
        peak, added = on_card.estimate(), self.on_top_bytes(on_card)
        if not self.of_other_runs(on_card).spans:
            likely, allocated = peak.reserved_bytes, peak.allocated_bytes
            peak = dataclasses.replace(
                peak,
                low_bytes=likely,
                high_bytes=likely,
                allocated_low_bytes=allocated,
                allocated_high_bytes=allocated,
            )
        return dataclasses.replace(
            peak,
            high_bytes=peak.high_bytes + added,
            allocated_high_bytes=peak.allocated_high_bytes + added,
        )

    def end_level(self, on_card: StepOnCard) -> Level:
        """Whether the interval's high end is simulated with the largest or with the likely workspaces."""
        return Level.HIGH if self.of_other_runs(on_card).spans else Level.LIKELY

    def on_top_bytes(self, on_card: StepOnCard) -> int:
        """Bytes that are added to a simulated peak for the high end, as a share of the largest workspace."""
        return self.of_other_runs(on_card).on_top(on_card.largest_plan_bytes(self.end_level(on_card)))

    def of_other_runs(self, on_card: StepOnCard) -> Calibration:
        """Widening by errors for real runs of similar steps, without the user's observed peaks."""
        trace = on_card.step.trace
        if trace.batch_size not in self._calibrations:
            found = self._residuals.of(classify(trace), *self._architectures)
            spans = found.spans or bool(spanning(trace))  # no measured runs have such sizes
            if trace.seen is not None and trace.seen.num_eager_graphs:
                found = _as_eager(found)
            self._calibrations[trace.batch_size] = dataclasses.replace(found, spans=spans)
        return self._calibrations[trace.batch_size]

    def calibration(self, on_card: StepOnCard) -> Calibration:
        """Widening by errors for real runs of similar steps, and by the user's peaks of this workload."""
        calibration = self.of_other_runs(on_card)
        if self._observed is None:
            return calibration
        if self._residuals_seen is None:
            self._residuals_seen = ()  # `_observed` calls back for ranges by workspaces only
            self._residuals_seen = self._observed()
        return sharpened(calibration, self._residuals_seen, on_card.step.batch_size)


def _as_eager(found: Calibration) -> Calibration:
    """Widening of a compiled step that was followed as eager code."""
    low, high = _COMPILED_AS_EAGER
    return dataclasses.replace(
        found, low_share=min(found.low_share, low), high_share=max(found.high_share, high)
    )


def spanning(trace: Trace) -> tuple[str, ...]:
    """Phrases for the sizes of a step that are only known within bounds, whatever the card."""
    operators = {a.operator for a in trace.allocations if a.span_bytes is not None}
    spans = tuple(words for operator, words in _SPANNING.items() if operator in operators)
    is_shared = any(a.stream_uses for a in trace.allocations)  # its block is kept until the device is done
    return (*spans, _OF_STREAMS) if is_shared else spans
