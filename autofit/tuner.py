"""The coordinator: predict, search, measure, answer.

    curves ─▶ study.ask ─▶ a configuration ─▶ curve or worker ─▶ outcome ─▶ study.tell ─▶ … ─▶ frontier

The tuner is an ordinary object: study, curves, measurement, clock and events enter by its
constructor, so that it needs neither Ray nor torch.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autofit.curve_set import CurveSet
from autofit.dispatch.base import Runner
from autofit.errors import DispatchError
from autofit.prediction import raise_if_failed
from autofit.report.frontier import Frontier
from autofit.service.events import EventSink, SettingSettled, TrialFinished, TrialStarted
from workers.protocol import Knobs, Peaks, TrialOutcome, TrialSpec, Verdict

if TYPE_CHECKING:
    from autofit.search.study import TuningStudy

_NUM_TRIES = 2  # of a trial that was lost or hung, which says nothing of its size


class Tuner:
    """Finds the largest batch of every knob setting, by prediction or by measurement.

    Args:
        spec: what all trials have in common; knobs and batch size are the search's.
        study: what to try next, and the record.
        curves: the predictions, by knob setting.
        measure: runs a trial and returns its outcome; None answers from the curves.
        emit: takes the events.
    """

    def __init__(
        self,
        *,
        spec: TrialSpec,
        study: TuningStudy,
        curves: CurveSet,
        measure: Runner | None,
        emit: EventSink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert spec.budget_bytes is not None
        self._budget_bytes = spec.budget_bytes
        self._spec = spec
        self._study = study
        self._curves = curves
        self._measure = measure
        self._emit = emit
        self._clock = clock
        self._settled: set[Knobs] = set()
        self._num_losses: collections.Counter[TrialSpec] = collections.Counter()

    def run(self) -> Frontier:
        """Tries configurations until every setting's boundary is known.

        Raises:
            WorkloadFailedError: the workload fails, whatever the batch.
            DispatchError: a trial was lost or hung, and again when it was repeated; or another
                process is still running the last ones of the study.
        """
        self._announce_settled()
        while (ask := self._study.ask()) is not None:
            spec = dataclasses.replace(self._spec, knobs=ask.knobs, batch_size=ask.batch_size)
            self._emit(TrialStarted(trial=ask.trial_number, spec=spec))
            outcome = self._try(spec)
            self._study.tell(ask.trial_number, outcome)
            self._emit(TrialFinished(trial=ask.trial_number, spec=spec, outcome=outcome))
            self._stop_if_pointless(spec, outcome)
            self._announce_settled()
        if not self._study.is_settled:
            raise DispatchError(
                f"another process is running the last trials of study {self._study.name}: start again "
                "once it is done, which takes up its outcomes, or take another name with --study"
            )
        return self._frontier()

    def _try(self, spec: TrialSpec) -> TrialOutcome:
        if self._measure is not None:
            return self._measure(spec)
        started = self._clock()
        outcome = self._curves.of(spec.knobs).outcome(spec.batch_size, self._budget_bytes)
        return dataclasses.replace(outcome, wall_seconds=self._clock() - started)

    def _stop_if_pointless(self, spec: TrialSpec, outcome: TrialOutcome) -> None:
        """A lost or hung trial is repeated once; a workload that fails ends the search."""
        if outcome.verdict in (Verdict.LOST, Verdict.TIMEOUT):
            self._num_losses[spec] += 1
            if self._num_losses[spec] < _NUM_TRIES:
                return
        raise_if_failed(outcome)

    def _frontier(self) -> Frontier:
        return Frontier(
            boundaries=self._study.boundaries(),
            outcomes=[record.outcome for record in self._study.outcomes()],
            curves=self._curves.by_knobs,
            budget_bytes=self._budget_bytes,
        )

    def _announce_settled(self) -> None:
        frontier = self._frontier()
        for knobs in frontier.settled:
            if knobs in self._settled:
                continue
            self._settled.add(knobs)
            entry = frontier.entry(knobs)
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
