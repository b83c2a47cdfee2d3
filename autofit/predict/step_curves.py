"""Makes peak curves of a workload's step from its traces."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.errors import WorkloadFailedError
from autofit.predict.sizes.surfaces import Surfaces
from autofit.predict.tracing.traces import Traces
from autofit_workers.replay.curve.lines.step_lines import BatchDependentEventsError, StepLines
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES, PeakCurve
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import SampleSize, Trace


class StepCurves:
    """Makes the peak curve (memory over the batch size) of each knob setting, from as few traces as suffice.

    Args:
        traces: traces of the workload.
        setup: how the workload is run: mode, kind of batches and ranks.
    """

    def __init__(self, traces: Traces, setup: Setup) -> None:
        self._traces = traces
        self._setup = setup
        self._curves: dict[Knobs, PeakCurve] = {}
        self._accumulating: dict[tuple[PeakCurve, PeakCurve, int], PeakCurve] = {}
        self._surfaces = Surfaces(traces.trace, traces.expect)

    def expect(self, settings: Sequence[Knobs]) -> None:
        """Announces knob settings whose curves are needed soon, so that they share traces where possible."""
        traced = [self._traces.setting(knobs, 1) for knobs in settings]
        self._surfaces.want(traced)
        for knobs in traced:
            if not self._surfaces.is_wanted(knobs):
                self._traces.expect(knobs, TRACED_BATCH_SIZES)

    def sample(self, knobs: Knobs, batch_size: int) -> SampleSize | None:
        """Size of a knob setting's samples and its limits, from a trace; None if samples have one size."""
        return self._surfaces.sample_if_sized(self._traces.setting(knobs, batch_size), batch_size)

    def size_multiple(self, knobs: Knobs) -> int:
        """Step between sample sizes at which all operators round sizes alike, such as 64 tokens."""
        return self._surfaces.sample(self._traces.setting(knobs, 1), 1).multiple

    def curve(self, knobs: Knobs) -> PeakCurve:
        """Peak curve of a knob setting over the batch size, made at the first call."""
        pieces = self._known_curve(self._traces.setting(knobs, 1))
        if knobs.global_batch is None:
            return pieces
        whole = self._known_curve(self._traces.setting(knobs, knobs.global_batch))
        if pieces.lines is None or whole.lines is None:
            return self._traced_curve(knobs)
        key = pieces, whole, knobs.global_batch
        if key not in self._accumulating:
            self._accumulating[key] = PeakCurve.in_two(pieces.lines, whole.lines, start=knobs.global_batch)
        return self._accumulating[key]

    def expect_sizes(self, knobs: Knobs, batch_size: int) -> None:
        """Announces that `at_size` will be called for several sample sizes at one batch size."""
        self._surfaces.expect(self._traces.setting(knobs, batch_size), batch_size)

    def at_size(self, knobs: Knobs, only_batch: int | None, *, is_checked: bool = True) -> PeakCurve:
        """Peak curve over the batch size at the sample size in `knobs`.

        Args:
            only_batch: batch size that is needed alone, for which fewer traces suffice; None for all but 1,
                which may differ.
            is_checked: whether an additional trace has to confirm the curve.
        """
        traced = self._traces.setting(knobs, only_batch or 1)
        if only_batch is None and traced in self._curves:
            return self._curves[traced]
        batch_sizes = TRACED_BATCH_SIZES if only_batch is None else (only_batch,)
        if not self._setup.allows_long and self._surfaces.is_too_long(traced, batch_sizes[0]):
            self._traces.trace(traced, batch_sizes[0])  # raises: samples are too long
        surface = self._surfaces.around(traced, batch_sizes, is_checked=is_checked)
        if surface is not None:
            assert traced.seq_len is not None
            return surface(traced.seq_len)
        return self._known_curve(traced) if only_batch is None else self.at_batch(traced, only_batch)

    def at_batch(self, knobs: Knobs, batch_size: int) -> PeakCurve:
        """Peak curve for one batch size only, from a trace at this size."""
        return PeakCurve.through([self._traces.trace(knobs, batch_size)])

    def host_steps(self, knobs: Knobs) -> PeakCurve:
        """Traced step on the CPU at any batch size, with the convolution algorithm in `knobs`."""
        return self._trace_curve(self._traces.setting(knobs, 1))

    def is_proved(self, knobs: Knobs, batch_size: int) -> bool:
        """Whether a knob setting's curve agreed with a trace at a batch size, or a larger one, earlier."""
        if batch_size < TRACED_BATCH_SIZES[0]:
            return False  # shapes of 1 take branches of their own
        curve = self._curves[self._traces.setting(knobs, batch_size)]
        return not curve.needs_traces and self._traces.is_proved(knobs, batch_size)

    def agrees(self, knobs: Knobs, batch_size: int) -> bool:
        """Whether a knob setting's curve has the same memory events and sizes as a trace at a batch size."""
        curve = self._curves[self._traces.setting(knobs, batch_size)]
        trace = self._traces.trace(knobs, batch_size)
        if curve.needs_traces:
            return True
        agrees = curve.lines_at(batch_size).agrees_with(trace)
        if agrees:
            self._traces.prove(knobs, batch_size)
        return agrees

    def replace(self, knobs: Knobs, batch_size: int) -> None:
        """Replaces a knob setting's curve that a trace has shown to be wrong at a batch size.

        The new curve makes a trace for each batch size. But if the curve is wrong only at batch size 1, and
        agrees with a trace at 2, it is kept for 2 and more.
        """
        traced, trace = self._traces.setting(knobs, batch_size), self._traces.trace(knobs, batch_size)
        lines = self._curves[traced].lines_at(batch_size)
        if trace.batch_size == batch_size == 1 and lines.agrees_with(self._traces.trace(knobs, 2)):
            self._curves[traced] = PeakCurve.in_two(StepLines.through([trace]), lines, start=2)
        else:
            self._curves[traced] = self._traced_curve(traced)

    def _known_curve(self, traced: Knobs) -> PeakCurve:
        if traced not in self._curves:
            self._curves[traced] = self._trace_curve(traced)
        return self._curves[traced]

    def _trace_curve(self, knobs: Knobs) -> PeakCurve:
        if (curve := self._surfaces.curve(knobs)) is not None:
            return curve
        if self._traces.is_one_sample:
            return self.at_batch(knobs, 1)
        self._traces.expect(knobs, TRACED_BATCH_SIZES)
        traces = [self._traces.trace(knobs, batch_size) for batch_size in TRACED_BATCH_SIZES]
        try:
            return PeakCurve.through(traces)
        except BatchDependentEventsError:
            return self._traced_curve(knobs)

    def _traced_curve(self, knobs: Knobs) -> PeakCurve:
        def trace_at(batch_size: int) -> Trace:
            trace = self._traces.trace(knobs, batch_size)
            if trace.batch_size != batch_size:
                raise WorkloadFailedError(
                    f"batch {batch_size} is more than the {trace.batch_size} samples of the whole data set: "
                    f"ask for at most those (--max-batch {trace.batch_size})"
                )
            return trace

        return PeakCurve.traced_anew(trace_at)
