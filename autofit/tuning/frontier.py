"""Frontier of a search: each knob setting's largest batch, why the next fails, and the best setting."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from autofit.hardware.budget import DEFAULT_ARCHITECTURE
from autofit.predict.curve import PredictedCurve, likely_bytes
from autofit.predict.times.step_times import StepTime
from autofit.search.boundary import MAX_BATCH, Boundary
from autofit.search.choice import Configuration, Knee, RecommendedBy, best_of, knee_of, recommended_of
from autofit.search.pace import Pace
from autofit.search.pareto import Point, dominating
from autofit.settings.goals import Objective, Risk
from autofit.settings.words import setting_names
from autofit.tuning.found import Best, FrontierEntry, Recommended
from autofit.tuning.predicted_speeds import PredictedSpeeds
from autofit.units import format_bytes
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import NOT_TRIED, Evidence, Peaks, TrialOutcome, Verdict
from autofit_workers.spec.setup import ALONE, Parallel

_PREDICTED = {
    Risk.SAFE: "predicted to reserve up to",
    Risk.LIKELY: "likely to reserve",
    Risk.WORST: "predicted to reserve, at worst,",
}


class Cap(NamedTuple):
    """Reason why a knob setting's search ends at a smaller batch than that of other settings.

    Attributes:
        why: reason in words.
        is_refused: whether PyTorch's kernels cannot run the next larger batch, however large the memory is.
    """

    why: str
    is_refused: bool


class Frontier:
    """Results of a search: the largest batch of every knob setting, from its trials and predictions.

    A knob setting is a value for each knob, such as precision and optimizer. A trial is one run or prediction
    of a knob setting at a batch size.

    Args:
        boundaries: largest batch that fits and first that fails, for each knob setting, in the order of the
            search space.
        known: result of the trial of each configuration; where there were several trials, the one that counts
            by `decisive`.
        curves: predicted peak curves of these settings on the card; empty if there are none.
        budget_bytes: bytes that PyTorch's allocator may reserve.
        architecture: architecture of the card that the trials run on, on which the usual speed of knobs
            depends.
        objective: quantity that the best configuration maximizes.
        verified: configurations that fitted also in a longer run (soak), with the number of steps of that
            run.
        caps: for knob settings whose search ends at a smaller batch than that of others, the reason.
        parallel: parallelism of the ranks; batches and peaks are those of one process.
        stopped_by: option whose limit ended the search early, such as `--max-trials`, so some largest
            batches may be unknown; None if the search is complete.
    """

    def __init__(
        self,
        *,
        boundaries: Mapping[Knobs, Boundary],
        known: Mapping[Configuration, TrialOutcome],
        curves: Mapping[Knobs, PredictedCurve],
        budget_bytes: int,
        architecture: str = DEFAULT_ARCHITECTURE,
        objective: Objective = Objective.BATCH,
        verified: Mapping[Configuration, int] | None = None,
        stopped_by: str | None = None,
        caps: Mapping[Knobs, Cap] | None = None,
        parallel: Parallel = ALONE.parallel,
    ) -> None:
        self._boundaries = boundaries
        self._outcomes = known
        self._curves = curves
        self._budget_bytes = budget_bytes
        self._architecture = architecture
        self._objective = objective
        self._verified = verified or {}
        self._caps = caps or {}
        self._parallel = parallel
        self.stopped_by = stopped_by
        self._speeds = PredictedSpeeds(curves, boundaries, budget_bytes=budget_bytes)
        self._is_timed = any(outcome.step_seconds is not None for outcome in known.values())

    @property
    def settled(self) -> tuple[Knobs, ...]:
        """Knob settings whose largest batch is known, in the order of the search space."""
        return tuple(knobs for knobs, boundary in self._boundaries.items() if boundary.is_settled)

    def entries(self) -> tuple[FrontierEntry, ...]:
        """One entry for each knob setting whose largest batch is known, in the order of the search space.

        If the search was stopped early, settings that were tried but whose largest batch is not final are
        included.
        """
        shown = self.settled if self.stopped_by is None else self._tried
        dominated = dominating(dict(self._points(shown)))
        return tuple(
            dataclasses.replace(
                self.entry(knobs),
                largest_thrashing_batch=self._largest_thrashing(knobs),
                dominated_by=dominated.get(knobs),
            )
            for knobs in shown
        )

    def _points(self, settings: Iterable[Knobs]) -> Iterator[tuple[Knobs, Point]]:
        """Yields each knob setting that fits, with its largest batch and speed, to find the Pareto front."""
        for knobs in settings:
            largest = self._boundaries[knobs].largest_fitting
            if largest is None:
                continue
            outcome = self._outcomes[knobs, largest]
            pace = Pace.of(knobs, self._architecture, conv_cost=outcome.conv_cost)
            rate = outcome.samples_per_second
            if rate is None and not self._is_timed:
                rate = _stated_rate(self._speeds.at((knobs, largest)))
            yield knobs, Point(largest_batch=largest, samples_per_second=rate, pace=pace)

    @property
    def _tried(self) -> tuple[Knobs, ...]:
        tried = {knobs for knobs, _ in self._outcomes}
        return tuple(knobs for knobs in self._boundaries if knobs in tried)

    def notes(self) -> tuple[str, ...]:
        """Sentences on limits of the search: it was stopped early, or no step times are known."""
        if self.stopped_by is None:
            return self._on_objective()
        names = setting_names(self._boundaries)
        untried = [name for knobs, name in names.items() if knobs not in self._tried]
        notes = [*self._on_objective()]
        notes += [
            f"{self.stopped_by} ended the search early: the same command with a larger one continues it"
        ]
        if untried:
            notes.append(f"not tried: {', '.join(untried)}")
        best = self.best()
        if best is not None and best.evidence is not Evidence.PREDICTED and best.soak_steps is None:
            notes.append(f"batch {best.batch_size} fits, but was not verified by a soak")
        return tuple(notes)

    def _on_objective(self) -> tuple[str, ...]:
        """Sentence that the best is the largest batch, not the fastest; empty unless throughput is the aim.

        It is empty also if a step time is known, measured or predicted.
        """
        is_known = self._objective is not Objective.THROUGHPUT or self._is_timed or self._speeds.any_known
        if is_known or not any(boundary.largest_fitting for boundary in self._boundaries.values()):
            return ()
        return (
            "--objective throughput: no step was timed, and no step time is predicted, so the best is the "
            "largest batch",
        )

    def knee(self) -> Knee | None:
        """Throughput knee: the smallest batch whose samples a second are near the best rate.

        Returns:
            The knee by measured rates or, if there are none, by predicted ones; None if neither are known.
        """
        return knee_of(self._outcomes) or self._speeds.knee()

    def entry(self, knobs: Knobs) -> FrontierEntry:
        """Result for a knob setting that was tried; its field `largest_thrashing_batch` is left empty."""
        boundary = self._boundaries[knobs]
        largest, failing = boundary.largest_fitting, boundary.first_failing
        fits = None if largest is None else self._outcomes[knobs, largest]
        fails = None if failing is None else self._outcomes[knobs, failing]
        known = fits or fails
        assert known is not None, "what was tried fits or fails"
        peaks = Peaks() if fits is None else self._peaks(fits)
        predicted_bytes = None
        if fits is not None and fits.evidence is not Evidence.PREDICTED:
            predicted_bytes = likely_bytes(self._curves, knobs, fits.batch_size)
        return FrontierEntry(
            knobs=knobs,
            largest_batch=largest,
            peak_reserved_bytes=peaks.reserved_bytes,
            device_peak_bytes=peaks.device_bytes,
            first_failing_batch=self._beyond_the_cap(knobs) if failing is None else failing,
            reason=self._why_not_larger(knobs, fails),
            evidence=known.evidence,
            is_settled=boundary.is_settled,
            step_seconds=None if fits is None else fits.step_seconds,
            samples_per_second=None if fits is None else fits.samples_per_second,
            predicted_bytes=predicted_bytes,
            prediction_error=_error(predicted_bytes, None if fits is None else fits.budgeted_bytes),
            parallel=self._parallel.name,
            samples_per_step=None if largest is None else self._samples_per_step(knobs, largest),
            relative_sample_time=self._speeds.relative(knobs),
            **({} if fits is None else self._predicted_time(fits)),
        )

    def _predicted_time(self, fits: TrialOutcome) -> dict[str, Any]:
        """Fields of a `FrontierEntry` for the predicted step time of a configuration that fits."""
        time = self._speeds.at((fits.knobs, fits.batch_size))
        seconds = None if time is None else time.stated
        likely = None if seconds is None else seconds.likely
        error = likely / fits.step_seconds - 1 if likely and fits.step_seconds else None
        return {
            "predicted_step_seconds": seconds,
            "predicted_samples_per_second": _stated_rate(time),
            "step_time_error": error,
        }

    def _samples_per_step(self, knobs: Knobs, batch_size: int) -> int:
        curve = self._curves.get(knobs)
        of_script = None if curve is None else curve.batch_count.samples_per_step(batch_size)
        return of_script or knobs.samples_per_step(batch_size, self._parallel.num_batches)

    def _beyond_the_cap(self, knobs: Knobs) -> int | None:
        """First batch size that PyTorch's kernels refuse; None if no kernel limits the knob setting."""
        boundary = self._boundaries[knobs]
        cap = self._caps.get(knobs)
        if cap is None or not cap.is_refused:
            return None
        if not boundary.is_settled or boundary.largest_fitting is None:
            return None
        return boundary.largest_fitting + 1

    def best(self) -> Best | None:
        """Best configuration that fits, by the objective; None if nothing fits.

        If throughput is the objective and no step was measured, predicted step times decide. See `best_of`.
        """
        outcome = best_of(self._outcomes, self._boundaries, self._objective, self._architecture)
        if self._is_by_predicted_rate:
            outcome = self._fastest(only_stated=False)
        return None if outcome is None else Best(**self._found(outcome))

    @property
    def _is_by_predicted_rate(self) -> bool:
        """Whether the objective is throughput and only predicted step times are known."""
        return self._objective is Objective.THROUGHPUT and not self._is_timed and self._speeds.any_known

    def _fastest(self, *, only_stated: bool) -> TrialOutcome | None:
        """Outcome of the configuration predicted to be fastest.

        Args:
            only_stated: whether to consider only configurations whose step time is certain enough to be
                shown.

        Returns:
            The outcome; None if no times are predicted, or if measured times are known.
        """
        found = None if self._is_timed else self._speeds.fastest(only_stated=only_stated)
        if found is None:
            return None
        known = self._outcomes.get((found.knobs, found.batch_size))
        return known or self._curves[found.knobs].outcome(found.batch_size, self._budget_bytes)

    def recommended(self, default_algo: str | None) -> Recommended | None:
        """Configuration that a practitioner would take, with the reason; None if nothing fits.

        Args:
            default_algo: PyTorch's default convolution algorithm, with which others are compared; None if the
                user named the algorithms.
        """
        found = recommended_of(
            self._outcomes,
            self._boundaries,
            self._objective,
            self._architecture,
            default_algo=default_algo,
        )
        fastest = self._fastest(only_stated=self._objective is not Objective.THROUGHPUT)
        if fastest is not None:
            is_objective = self._objective is Objective.THROUGHPUT
            found = fastest, RecommendedBy.OBJECTIVE if is_objective else RecommendedBy.PREDICTED_RATE
        if found is None:
            return None
        outcome, by = found
        entry, best = self.entry(outcome.knobs), self.best()
        is_best = best is not None and (best.knobs, best.batch_size) == (outcome.knobs, outcome.batch_size)
        curve = None if is_best else self._curves.get(outcome.knobs)
        return Recommended(
            **self._found(outcome),
            by=by,
            largest_batch=entry.largest_batch,
            first_failing_batch=entry.first_failing_batch,
            reason=entry.reason,
            estimate=None if curve is None else curve(outcome.batch_size),
        )

    def _found(self, outcome: TrialOutcome) -> dict[str, Any]:
        """Values for the fields of `Best`, from the outcome of a configuration that fits."""
        peaks = self._peaks(outcome)
        curve = self._curves.get(outcome.knobs)
        estimate = None if curve is None else curve(outcome.batch_size)
        return {
            "batch_size": outcome.batch_size,
            "knobs": outcome.knobs,
            "peak_allocated_bytes": peaks.allocated_bytes,
            "peak_reserved_bytes": peaks.reserved_bytes,
            "device_peak_bytes": peaks.device_bytes,
            "evidence": outcome.evidence,
            "interval": None if estimate is None else estimate.interval,
            "workspace_bytes": None if estimate is None else estimate.workspace_bytes,
            "step_seconds": outcome.step_seconds,
            "samples_per_second": outcome.samples_per_second,
            "soak_steps": self._steps_verified(outcome),
            "grad_accumulation": outcome.knobs.num_batches(outcome.batch_size),
            "parallel": self._parallel.name,
            "samples_per_step": self._samples_per_step(outcome.knobs, outcome.batch_size),
            **self._predicted_time(outcome),
        }

    def _steps_verified(self, outcome: TrialOutcome) -> int | None:
        """Number of steps of the longer run that verified a configuration; None if there was no such run.

        At most as many count as were requested.
        """
        asked = self._verified.get((outcome.knobs, outcome.batch_size))
        return None if asked is None else min(asked, outcome.num_steps_done)

    def _why_not_larger(self, knobs: Knobs, fails: TrialOutcome | None) -> str:
        """Reason, in words, why the batch after a setting's largest fails or is not known."""
        boundary = self._boundaries[knobs]
        if boundary.is_settled:
            cap = self._caps.get(knobs)
            at_the_cap = _cap(knobs, boundary) if cap is None else cap.why
            return at_the_cap if fails is None else self._reason(fails)
        low = boundary.largest_fitting
        what = f"stopped by {self.stopped_by} before the boundary was known: "
        if fails is None:
            return f"{what}batches above {low} were not tried"
        if low is None:
            return f"{what}{self._reason(fails)}, and smaller batches were not tried"
        if fails.batch_size == low + 1:
            return f"{self._reason(fails)}; stopped by {self.stopped_by} before a larger batch was tried"
        return f"{what}it lies between {low} and {fails.batch_size}; {self._reason(fails)}"

    def _peaks(self, outcome: TrialOutcome) -> Peaks:
        """Peaks of a trial's outcome; for a prediction the likely peaks, even if the high end has to fit."""
        if outcome.evidence is not Evidence.PREDICTED:
            return outcome.peaks
        likely = self._curves[outcome.knobs](outcome.batch_size)
        return Peaks(likely.peak_allocated_bytes, likely.peak_reserved_bytes, likely.device_peak_bytes)

    def _reason(self, fails: TrialOutcome) -> str:
        """Reason, in words, why a trial did not fit: its peak, the budget and how they are known."""
        size, peak_bytes = _named(fails), fails.budgeted_bytes
        if peak_bytes is not None and NOT_TRIED in fails.environment:
            what_takes_it = fails.environment[NOT_TRIED]
            return (
                f"{size} is predicted to need {format_bytes(peak_bytes)}, "
                f"over the budget of {format_bytes(self._budget_bytes)}: not tried"
                f"{what_takes_it and f'; {what_takes_it}'}"
            )
        what = "memory" if fails.device.kind == "cpu" else "reserved memory"
        if fails.evidence is Evidence.PREDICTED:
            assert peak_bytes is not None
            return (
                f"{size} is {_PREDICTED[self._curves[fails.knobs].risk]} "
                f"{format_bytes(peak_bytes)}, "
                f"{format_bytes(peak_bytes - self._budget_bytes)} over the budget"
            )
        if fails.verdict is Verdict.THRASH:
            return f"{size} ran only after {fails.num_alloc_retries} retries of the allocator"
        if peak_bytes is not None and peak_bytes > self._budget_bytes:
            return (
                f"{size} ran with {format_bytes(peak_bytes)} of {what}, "
                f"{format_bytes(peak_bytes - self._budget_bytes)} over the budget"
            )
        return f"{size} was run and ran out of memory"

    def _largest_thrashing(self, knobs: Knobs) -> int | None:
        """Largest batch that still runs by emptying the allocator's cache and retrying, above those that fit.

        Returns:
            The batch size; None if there is no such batch, or each size would cost a trace.
        """
        failing = self._boundaries[knobs].first_failing
        curve = self._curves.get(knobs)
        if failing is None or curve is None or curve.needs_traces or knobs.global_batch is not None:
            return None  # sizes are divisors of the global batch, of which the next may be twice as large
        if curve.verdict(failing, self._budget_bytes) is not Verdict.THRASH:
            return None
        beyond = range(failing + 1, MAX_BATCH + 1)
        num_running = bisect.bisect_left(
            beyond, True, key=lambda size: curve.verdict(size, self._budget_bytes) is Verdict.OOM
        )
        return failing + num_running


def _cap(knobs: Knobs, boundary: Boundary) -> str:
    if knobs.global_batch is not None and boundary.largest_fitting == knobs.global_batch:
        return f"batch {knobs.global_batch} is the whole global batch"
    return "it is the largest that --max-batch allows"


def _named(outcome: TrialOutcome) -> str:
    """Phrase for the batch size of a failed trial, with the global batch that it is a part of, if any."""
    size, whole = outcome.batch_size, outcome.knobs.global_batch
    if whole is None:
        return f"batch {size}"
    return f"batch {size}, the next that divides the global batch of {whole},"


def _stated_rate(time: StepTime | None) -> float | None:
    """Predicted samples a second; None if there is no prediction, or it is too uncertain to be shown."""
    return None if time is None or not time.confidence.is_stated else time.samples_per_second


def _error(predicted_bytes: int | None, measured_bytes: int | None) -> float | None:
    """Relative error of a predicted peak: (predicted − measured) / measured; None unless there are both."""
    if predicted_bytes is None or not measured_bytes:
        return None
    return predicted_bytes / measured_bytes - 1
