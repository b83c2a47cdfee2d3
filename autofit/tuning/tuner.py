"""Coordinator of a search: predicts, runs trials, verifies the best, and returns the result.

    curves ─▶ study.ask ─▶ configurations ─▶ curve or workers ─▶ outcomes ─▶ study.tell ─▶ … ─▶ frontier

As many trials run as there are free workers, and outcomes are recorded in whatever order
they come. The tuner is an ordinary object: its constructor takes study, curves, trials, clock and events,
so that it needs neither Ray nor torch.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofit.events import EventSink, Progress, TrialAbandoned, TrialFinished, TrialStarted, WorkersChanged
from autofit.predict.curve import likely_bytes
from autofit.predict.failures import raise_if_failed
from autofit.study.findings import Findings, comparison
from autofit.tuning.curves import CurveSet
from autofit.tuning.frontier import Cap, Frontier
from autofit.tuning.trials import Trials
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.trials.door import answering

if TYPE_CHECKING:
    from autofit.study.study import Ask, TuningStudy

_NUM_TRIES = 2  # tries of a trial that is lost or hangs, which shows nothing about its size
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits at which a search ends early, on its trials and its time; None is no limit.

    Attributes:
        num_trials: number of measured trials, including those of earlier runs of the same search.
        seconds: seconds from the start of the tuner; trials that still run at the end are abandoned.
    """

    num_trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Running trial, with the likely peak predicted for it."""

    ask: Ask
    spec: TrialSpec
    predicted_bytes: int | None


class Tuner:
    """Finds the largest batch of every knob setting, from predictions or from measured trials.

    Args:
        spec: specification with the fields that all trials share; the tuner sets knobs, batch size and steps.
        study: stored record of the search; it proposes the next trial and keeps the outcomes.
        curves: predicted peak curves by knob setting.
        trials: runs trials, several at the same time if it has the capacity.
        emit: called with each event.
        limits: limits at which the search ends early.
        caps: for knob settings whose search ends at a smaller batch than that of others, the reason.
        pause: sleeps a number of seconds; called while only another process still runs trials of the study.
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
        caps: Mapping[Knobs, Cap] | None = None,
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
        self._caps = caps or {}
        self._clock = clock
        self._pause = pause
        self._began = clock()
        self._findings = Findings(study.name)
        self._num_workers: int | None = None
        self._workers_told = WorkersChanged(study=study.name, num_busy=0, num_idle=0)
        self._in_flight: dict[Future[TrialOutcome], _Trial] = {}
        self._num_losses: collections.Counter[tuple[Knobs, int]] = collections.Counter()

    def run(self) -> Frontier:
        """Runs trials until every largest batch is known and the best is verified, or a limit is reached.

        Raises:
            WorkloadFailedError: the workload fails, whatever the batch.
            DispatchError: a trial's process died or hung, and did so again when the trial was repeated.
        """
        self._announce_found()
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
            # Whatever ended the search, finished outcomes are recorded before the study is closed.
            self._tell([future for future in self._in_flight if _has_outcome(future)])
            self._announce_end()
        complete = stopped_by is None or self._study.is_complete
        return self._frontier(stopped_by=None if complete else stopped_by)

    def _limit_reached(self) -> str | None:
        """Name of the option whose limit is reached, `--max-seconds` or `--max-trials`; else None.

        `--max-trials` counts as reached only when no trial runs any more.
        """
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
        """Starts trials until every free worker is busy."""
        while self._trials_left() > 0 and self._has_room():
            ask = self._study.ask(num_workers=self._num_workers)
            if ask is None:
                break
            spec = self._spec_of(ask)
            trial = _Trial(ask=ask, spec=spec, predicted_bytes=self._predicted_bytes(spec))
            self._emit(
                TrialStarted(
                    study=self._study.name,
                    trial=ask.trial_number,
                    spec=spec,
                    started_seconds=ask.asked_seconds,
                )
            )
            self._in_flight[self._trials.submit(spec)] = trial
        self._announce_workers(len(self._in_flight), self._num_workers or 0)

    def _spec_of(self, ask: Ask) -> TrialSpec:
        plan = self._curves.conv_plan(ask.knobs, ask.batch_size, self._budget_bytes)
        return dataclasses.replace(
            self._spec,
            knobs=ask.knobs,
            batch_size=ask.batch_size,
            num_steps=ask.num_steps,
            conv_plan=() if plan is None else plan.assignment,
        )

    def _has_room(self) -> bool:
        """Whether another trial can start now; True without asking the dispatcher if no trial runs."""
        if not self._in_flight:
            return True
        self._num_workers = self._trials.capacity(self._spec)
        return len(self._in_flight) < self._num_workers

    def _predicted_bytes(self, spec: TrialSpec) -> int | None:
        """Likely predicted peak in bytes, to compare a measured trial with; None for a predicted trial."""
        if spec.probe is Probe.PREDICT:
            return None
        return likely_bytes(self._curves.by_knobs, spec.knobs, spec.batch_size)

    def _ended(self) -> list[Future[TrialOutcome]]:
        """Waits until a trial ends or the time is over, and returns the trials that have ended.

        Meanwhile it renews this process's claims (leases) on its trials, so that others do not take them
        over.
        """
        while True:
            left = max(self._seconds_left(), 0.0)
            timeout = min(left, self._study.renewal_seconds)
            done, _ = wait(self._in_flight, timeout, return_when=FIRST_COMPLETED)
            self._study.renew()
            if done or timeout == left:
                return [future for future in self._in_flight if future in done]

    def _take_in(self, ended: list[Future[TrialOutcome]]) -> None:
        told = self._tell([future for future in ended if _has_outcome(future)])
        for future in ended:
            if not _has_outcome(future):
                future.result()  # raises the reason why no worker could be had
        self._announce_found()
        for outcome in told:
            self._stop_if_pointless(outcome)

    def _tell(self, ended: list[Future[TrialOutcome]]) -> list[TrialOutcome]:
        """Records the outcomes of ended trials in the study, then emits an event for each.

        No event is emitted before all outcomes are recorded.
        """
        told = []
        for future in ended:
            trial = self._in_flight.pop(future)
            outcome = answering(trial.spec, future.result())
            self._study.tell(trial.ask.trial_number, outcome, predicted_bytes=trial.predicted_bytes)
            told.append((trial, outcome))
        for trial, outcome in told:
            number = trial.ask.trial_number
            self._emit(TrialFinished(study=self._study.name, trial=number, spec=trial.spec, outcome=outcome))
            compared = comparison(self._study.name, number, outcome, trial.predicted_bytes)
            if compared is not None:
                self._emit(compared)
        return [outcome for _, outcome in told]

    def _stop_if_pointless(self, outcome: TrialOutcome) -> None:
        """Raises the error of a trial that ends the search: the workload failed, or a trial was lost twice.

        A trial counts as lost if its process died or exceeded its time limit; the first time it is repeated.
        """
        if outcome.verdict in (Verdict.LOST, Verdict.TIMEOUT):
            configuration = outcome.knobs, outcome.batch_size
            self._num_losses[configuration] += 1
            if self._num_losses[configuration] < _NUM_TRIES:
                return
        raise_if_failed(outcome)

    def _wait_for_others(self) -> None:
        """Waits a moment while only another process runs trials, then ends trials that it has abandoned."""
        self._emit(Progress(stage=f"waiting for another process to finish trials of {self._study.name}"))
        self._pause(min(_POLL_SECONDS, max(self._seconds_left(), 0.0)))
        self._study.reconcile()

    def _frontier(self, *, stopped_by: str | None) -> Frontier:
        """Frontier of the trials so far; `stopped_by` names the option that ended the search early."""
        return Frontier(
            boundaries=self._study.boundaries(),
            known=self._study.known,
            curves=self._curves.by_knobs,
            budget_bytes=self._budget_bytes,
            architecture=HOST_ARCHITECTURE if self._spec.probe is Probe.CPU else self._spec.architecture,
            objective=self._study.goal.objective,
            verified=self._study.verified(),
            stopped_by=stopped_by,
            caps=self._caps,
            parallel=self._spec.setup.parallel,
        )

    def _announce_found(self) -> None:
        """Emits an event for each knob setting whose largest known batch has changed."""
        changed = {knobs: self._study.boundary(knobs) for knobs in self._study.take_changed()}
        for moved in self._findings.moved(changed, self._study.known):
            self._emit(moved)

    def _announce_workers(self, num_busy: int, num_workers: int) -> None:
        changed = WorkersChanged(
            study=self._study.name, num_busy=num_busy, num_idle=max(num_workers - num_busy, 0)
        )
        if changed != self._workers_told:
            self._workers_told = changed
            self._emit(changed)

    def _announce_end(self) -> None:
        """Emits the last events of a search: running trials are abandoned, and no worker is busy any more."""
        self._announce_found()
        for trial in self._in_flight.values():
            self._emit(TrialAbandoned(study=self._study.name, trial=trial.ask.trial_number))
        self._announce_workers(0, 0)


def _has_outcome(future: Future[TrialOutcome]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
