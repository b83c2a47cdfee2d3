"""The curves of what a warm process has traced, so that further batch sizes cost no trace.

A curve is known exactly between sizes that were traced and agree with it, as far as a step that
works in portions or branches on its batch shows at those sizes. So a size is answered from a
curve only where the powers of two around it were traced as well:

    1  2  3 | 4   6     10 |      16 |             32 |            …
    traced  |  the curve   | 16 agrees?  16 and 32 agree?           each else: a trace of its own

Up to batch 65,536 that is at most 16 traces for any number of sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from workers.predict.curve.peak_curve import (
    TRACED_BATCH_SIZES,
    BatchDependentEventsError,
    PeakCurve,
    traced_knobs,
)
from workers.protocol import TrialSpec
from workers.trace import Trace

_MAX_CURVES = 8


class WarmCurves:
    """Answers with the curve of a spec's step, from few traces of it.

    Args:
        trace: runs and records the step that a spec describes.
    """

    def __init__(self, trace: Callable[[TrialSpec], Trace]) -> None:
        self._trace = trace
        self._steps: dict[Any, _Step] = {}

    def at(self, spec: TrialSpec) -> PeakCurve:
        """A curve that says of the spec's batch size what a trace at that size would.

        Raises:
            Exception: whatever a trace at that size raises.
        """
        # Sizes that nobody asked for are traced as this one is, whether they divide a global batch or not.
        spec = dataclasses.replace(spec, knobs=spec.knobs.for_passes(spec.knobs.num_passes(spec.batch_size)))
        if (key := _identity(spec)) is None:
            return PeakCurve([self._trace(spec)])
        if key not in self._steps:
            while len(self._steps) >= _MAX_CURVES:
                del self._steps[next(iter(self._steps))]
            self._steps[key] = _Step(
                lambda batch_size: self._trace(dataclasses.replace(spec, batch_size=batch_size))
            )
        curve = self._steps[key].curve_at(spec.batch_size)
        return curve or PeakCurve([self._trace(spec)])


class _Step:
    """One step, and at which sizes its curve was held against a trace."""

    def __init__(self, trace_at: Callable[[int], Trace]) -> None:
        self._trace_at = trace_at
        self._agrees: dict[int, bool] = {}
        self._curve = self._traced_curve()

    def curve_at(self, batch_size: int) -> PeakCurve | None:
        """The curve, if it is known to hold at this size."""
        first, *_, last = TRACED_BATCH_SIZES
        if self._curve is None or batch_size < first:
            return None
        above = 1 << (batch_size - 1).bit_length()
        ends = [end for end in (above // 2, above) if end > last] if batch_size > last else []
        return self._curve if all(self._agrees_at(end) for end in ends) else None

    def _traced_curve(self) -> PeakCurve | None:
        traces = [self._trace_if_it_can(batch_size) for batch_size in TRACED_BATCH_SIZES]
        known = [trace for trace in traces if trace is not None]
        try:
            return PeakCurve(known) if len(known) == len(traces) else None
        except BatchDependentEventsError:
            return None

    def _agrees_at(self, batch_size: int) -> bool:
        assert self._curve is not None
        if batch_size not in self._agrees:
            trace = self._trace_if_it_can(batch_size)
            self._agrees[batch_size] = trace is not None and self._curve.agrees_with(trace)
        return self._agrees[batch_size]

    def _trace_if_it_can(self, batch_size: int) -> Trace | None:
        """A trace at a size that nobody asked for: its failure is no answer to what was asked."""
        try:
            return self._trace_at(batch_size)
        except (Exception, SystemExit):  # noqa: BLE001 - the user's code may raise anything
            return None


def _identity(spec: TrialSpec) -> tuple[object, ...] | None:
    """What decides the events of a step beside the batch; None where a file may change unnoticed."""
    workload = spec.workload
    if workload.kind in ("file", "import") and workload.source_sha256 is None:
        return None
    num_passes = spec.knobs.num_passes(spec.batch_size)
    knobs = traced_knobs(spec.knobs, num_passes=num_passes, for_host=spec.is_for_host)
    num_threads = spec.num_threads if spec.is_for_host else None
    return workload, knobs, spec.setup, spec.seed, num_threads
