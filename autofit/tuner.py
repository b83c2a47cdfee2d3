"""The coordinator: predict, search, measure, verify, answer.

    curves ─▶ study.ask ─▶ configurations ─▶ curve or workers ─▶ outcomes ─▶ study.tell ─▶ … ─▶ frontier

As many trials are in flight as there are free workers, and outcomes are told in whatever order
they come. The tuner is an ordinary object: study, curves, trials, clock and events enter by its
constructor, so that it needs neither Ray nor torch.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autofit.curve_set import CurveSet
from autofit.prediction import raise_if_failed
from autofit.report.frontier import Frontier
from autofit.service.events import EventSink, Progress, SettingSettled, TrialFinished, TrialStarted
from workers.outcomes import answering
from workers.protocol import Knobs, Peaks, Probe, TrialOutcome, TrialSpec, Verdict

if TYPE_CHECKING:
    from autofit.search.study import Ask, TuningStudy

_NUM_TRIES = 2  # of a trial that was lost or hung, which says nothing of its size
_POLL_SECONDS = 0.5


class Trials(Protocol):
    """What runs trials: a dispatcher, or the curves."""

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]: ...

    def capacity(self, trial: Probe | TrialSpec) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search ends though something is left to try; None for no limit.

    Attributes:
        num_trials: measured trials in the study, those of earlier runs included.
        seconds: of this run, since the tuner began; what is still running then is given up.
    """

    num_trials: int | None = None
    seconds: float | None = None


class Tuner:
    """Finds the largest batch of every knob setting, by prediction or by measurement.

    Args:
        spec: what all trials have in common; knobs, batch size and steps are the search's.
        study: what to try next, and the record.
        curves: the predictions, by knob setting.
        trials: runs trials, several at once where it has the capacity.
        emit: takes the events.
        limits: when to end early.
        pause: waits so many seconds, where another process is running the last trials.
    """

    def __init__(
        self,
        *,
        spec: TrialSpec,
        study: TuningStudy,
        curves: CurveSet,
        trials: Trials,
        emit: EventSink,
        limits: Limits = Limits(),
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        assert spec.budget_bytes is not None
        self._budget_bytes = spec.budget_bytes
        self._spec = spec
        self._study = study
        self._curves = curves
        self._trials = trials
        self._emit = emit
        self._limits = limits
        self._clock = clock
        self._pause = pause
        self._began = clock()
        self._settled: dict[Knobs, tuple[int | None, int | None]] = {}
        self._in_flight: dict[Future[TrialOutcome], tuple[Ask, TrialSpec]] = {}
        self._num_losses: collections.Counter[tuple[Knobs, int]] = collections.Counter()

    def run(self) -> Frontier:
        """Tries configurations until every boundary is known and the winner verified, or a limit is reached.

        Raises:
            WorkloadFailedError: the workload fails, whatever the batch.
            DispatchError: a trial was lost or hung, and again when it was repeated.
        """
        self._announce_settled()
        try:
            while (stopped_by := self._limit_reached()) is None:
                self._start_trials()
                if self._in_flight:
                    self._take_in(self._ended())
                elif self._study.is_complete:
                    break
                else:
                    self._wait_for_others()
        finally:
            # Whatever ended the search, an outcome that is there is told before the study is closed.
            self._tell([future for future in self._in_flight if _has_outcome(future)])
        complete = stopped_by is None or self._study.is_complete
        return self._frontier(stopped_by=None if complete else stopped_by)

    def _limit_reached(self) -> str | None:
        """The option whose limit is used up; trials in flight are waited for unless time is."""
        if self._seconds_left() <= 0:
            return "--max-seconds"
        if self._trials_left() <= 0 and not self._in_flight:
            return "--max-trials"
        return None

    def _seconds_left(self) -> float:
        if self._limits.seconds is None:
            return float("inf")
        return self._limits.seconds - (self._clock() - self._began)

    def _trials_left(self) -> float:
        if self._limits.num_trials is None:
            return float("inf")
        return self._limits.num_trials - self._study.num_measured - len(self._in_flight)

    def _start_trials(self) -> None:
        """Keeps every free worker busy."""
        while self._trials_left() > 0 and self._has_room():
            ask = self._study.ask()
            if ask is None:
                return
            spec = dataclasses.replace(
                self._spec, knobs=ask.knobs, batch_size=ask.batch_size, num_steps=ask.num_steps
            )
            self._emit(TrialStarted(trial=ask.trial_number, spec=spec))
            self._in_flight[self._trials.submit(spec)] = ask, spec

    def _has_room(self) -> bool:
        """Asks the dispatcher, which may have to be connected, only once there is a trial for it."""
        return not self._in_flight or len(self._in_flight) < self._trials.capacity(self._spec)

    def _ended(self) -> list[Future[TrialOutcome]]:
        """Waits for trials to end, not beyond the time there is."""
        left = self._seconds_left()
        done, _ = wait(
            self._in_flight, None if left == float("inf") else max(left, 0.0), return_when=FIRST_COMPLETED
        )
        return [future for future in self._in_flight if future in done]

    def _take_in(self, ended: list[Future[TrialOutcome]]) -> None:
        told = self._tell([future for future in ended if _has_outcome(future)])
        for future in ended:
            if not _has_outcome(future):
                future.result()  # raises why no worker could be had
        for outcome in told:
            self._stop_if_pointless(outcome)
        self._announce_settled()

    def _tell(self, ended: list[Future[TrialOutcome]]) -> list[TrialOutcome]:
        """Records outcomes; nothing else is done with any before all are in the study."""
        told = []
        for future in ended:
            ask, spec = self._in_flight.pop(future)
            outcome = answering(spec, future.result())
            self._study.tell(ask.trial_number, outcome)
            told.append((ask, spec, outcome))
        for ask, spec, outcome in told:
            self._emit(TrialFinished(trial=ask.trial_number, spec=spec, outcome=outcome))
        return [outcome for _, _, outcome in told]

    def _stop_if_pointless(self, outcome: TrialOutcome) -> None:
        """A lost or hung trial is repeated once; a workload that fails ends the search."""
        if outcome.verdict in (Verdict.LOST, Verdict.TIMEOUT):
            configuration = outcome.knobs, outcome.batch_size
            self._num_losses[configuration] += 1
            if self._num_losses[configuration] < _NUM_TRIES:
                return
        raise_if_failed(outcome)

    def _wait_for_others(self) -> None:
        """Another process shares the study and runs its last trials; what it leaves behind is ours."""
        self._emit(Progress(stage=f"waiting for another process to end its trials of {self._study.name}"))
        self._pause(min(_POLL_SECONDS, max(self._seconds_left(), 0.0)))
        self._study.reconcile()

    def _frontier(self, *, stopped_by: str | None = None) -> Frontier:
        return Frontier(
            boundaries=self._study.boundaries(),
            outcomes=[record.outcome for record in self._study.outcomes()],
            curves=self._curves.by_knobs,
            budget_bytes=self._budget_bytes,
            objective=self._study.goal.objective,
            verified=self._study.verified(),
            stopped_by=stopped_by,
        )

    def _announce_settled(self) -> None:
        frontier = self._frontier()
        for knobs in frontier.settled:
            entry = frontier.entry(knobs)
            boundary = entry.largest_batch, entry.first_failing_batch
            if self._settled.get(knobs) == boundary:
                continue
            self._settled[knobs] = boundary
            self._emit(
                SettingSettled(
                    workload=self._spec.workload.name,
                    knobs=knobs,
                    largest_batch=entry.largest_batch,
                    first_failing_batch=entry.first_failing_batch,
                    peaks=Peaks(
                        reserved_bytes=entry.peak_reserved_bytes, device_bytes=entry.device_peak_bytes
                    ),
                    evidence=entry.evidence,
                )
            )


def _has_outcome(future: Future[TrialOutcome]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
