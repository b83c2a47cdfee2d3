"""The frontier: for every knob setting its largest batch, why not one more, and the best of all."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping

from autofit.confidence import Risk
from autofit.predicted_curve import PredictedCurve
from autofit.report.result import Best, FrontierEntry
from autofit.search.boundary import MAX_BATCH, Boundary
from autofit.units import format_bytes
from workers.protocol import CONV_ALGOS, Evidence, Knobs, Peaks, TrialOutcome, Verdict

_PREDICTED = {
    Risk.SAFE: "predicted to reserve up to",
    Risk.LIKELY: "likely to reserve",
    Risk.WORST: "predicted to reserve, at worst,",
}


class Frontier:
    """What boundaries and outcomes of a study say, with the predictions beside them.

    Args:
        boundaries: by knob setting, in the order of the search space.
        outcomes: of the study, in their order; of one configuration the latest counts, and one that
            did not fit more than one that did.
        curves: predictions of these settings on the card; empty where there are none.
        budget_bytes: what peaks are held against.
    """

    def __init__(
        self,
        *,
        boundaries: Mapping[Knobs, Boundary],
        outcomes: Iterable[TrialOutcome],
        curves: Mapping[Knobs, PredictedCurve],
        budget_bytes: int,
    ) -> None:
        self._boundaries = boundaries
        telling = [outcome for outcome in outcomes if outcome.verdict.is_about_memory]
        self._outcomes = {
            (outcome.knobs, outcome.batch_size): outcome
            for outcome in sorted(telling, key=lambda o: o.verdict is not Verdict.FITS)
        }
        self._curves = curves
        self._budget_bytes = budget_bytes

    @property
    def settled(self) -> tuple[Knobs, ...]:
        """The settings whose largest batch is known, in the order of the search space."""
        return tuple(knobs for knobs, boundary in self._boundaries.items() if boundary.is_settled)

    def entries(self) -> tuple[FrontierEntry, ...]:
        """One entry per settled knob setting, in the order of the search space."""
        return tuple(
            dataclasses.replace(self.entry(knobs), largest_thrashing_batch=self._largest_thrashing(knobs))
            for knobs in self.settled
        )

    def entry(self, knobs: Knobs) -> FrontierEntry:
        """The entry of a setting whose boundary is settled, thrashing left aside."""
        boundary = self._boundaries[knobs]
        largest, failing = boundary.largest_fitting, boundary.first_failing
        fits = None if largest is None else self._outcomes[knobs, largest]
        fails = None if failing is None else self._outcomes[knobs, failing]
        known = fits or fails
        assert known is not None, "a settled boundary has an outcome"
        peaks = Peaks() if fits is None else self._peaks(fits)
        return FrontierEntry(
            knobs=knobs,
            largest_batch=largest,
            peak_reserved_bytes=peaks.reserved_bytes,
            device_peak_bytes=peaks.device_bytes,
            first_failing_batch=failing,
            reason="the cap of --max-batch was reached" if fails is None else self._reason(fails),
            evidence=known.evidence,
        )

    def best(self) -> Best | None:
        """The largest batch; of equals the one with the shorter measured step, else the first policy."""
        fitting = [
            self._outcomes[knobs, boundary.largest_fitting]
            for knobs, boundary in self._boundaries.items()
            if boundary.largest_fitting is not None
        ]
        if not fitting:
            return None
        outcome = min(
            fitting,
            key=lambda o: (-o.batch_size, o.step_seconds or 0.0, CONV_ALGOS.index(o.knobs.conv_algo)),
        )
        peaks = self._peaks(outcome)
        curve = self._curves.get(outcome.knobs)
        estimate = None if curve is None else curve(outcome.batch_size)
        return Best(
            batch_size=outcome.batch_size,
            knobs=outcome.knobs,
            peak_allocated_bytes=peaks.allocated_bytes,
            peak_reserved_bytes=peaks.reserved_bytes,
            device_peak_bytes=peaks.device_bytes,
            evidence=outcome.evidence,
            interval=None if estimate is None else estimate.interval,
            workspace_bytes=None if estimate is None else estimate.workspace_bytes,
            step_seconds=outcome.step_seconds,
            samples_per_second=outcome.samples_per_second,
        )

    def _peaks(self, outcome: TrialOutcome) -> Peaks:
        """Of a prediction the likely peaks; its outcome has those at its risk, which the budget bounds."""
        if outcome.evidence is not Evidence.PREDICTED:
            return outcome.peaks
        likely = self._curves[outcome.knobs](outcome.batch_size)
        return Peaks(likely.peak_allocated_bytes, likely.peak_reserved_bytes, likely.device_peak_bytes)

    def _reason(self, fails: TrialOutcome) -> str:
        peak_bytes = fails.budgeted_bytes
        what = "resident memory" if fails.device.kind == "cpu" else "reserved memory"
        if fails.evidence is Evidence.PREDICTED:
            assert peak_bytes is not None
            return (
                f"batch {fails.batch_size} is {_PREDICTED[self._curves[fails.knobs].risk]} "
                f"{format_bytes(peak_bytes)}, "
                f"{format_bytes(peak_bytes - self._budget_bytes)} over the budget"
            )
        if fails.verdict is Verdict.THRASH:
            return (
                f"batch {fails.batch_size} ran only with {fails.num_alloc_retries} retries of the allocator"
            )
        if peak_bytes is not None and peak_bytes > self._budget_bytes:
            return (
                f"batch {fails.batch_size} ran with {format_bytes(peak_bytes)} of {what}, "
                f"{format_bytes(peak_bytes - self._budget_bytes)} over the budget"
            )
        return f"batch {fails.batch_size} was run and ran out of memory"

    def _largest_thrashing(self, knobs: Knobs) -> int | None:
        """How far beyond the boundary a prediction says that steps still run, with retries."""
        failing = self._boundaries[knobs].first_failing
        curve = self._curves.get(knobs)
        if failing is None or curve is None or curve.needs_traces:
            return None
        if curve.verdict(failing, self._budget_bytes) is not Verdict.THRASH:
            return None
        beyond = range(failing + 1, MAX_BATCH + 1)
        num_running = bisect.bisect_left(
            beyond, True, key=lambda size: curve.verdict(size, self._budget_bytes) is Verdict.OOM
        )
        return failing + num_running
