"""Runs the trials of a search on a dispatcher, or answers them from the predicted curves.

    Tuner ─ submit ─▶ TrialsInReach ─┬─▶ Measuring ─▶ dispatcher    a setting that may fit
                                     └─▶ its prediction, as OOM     one that is out of reach
    Tuner ─ submit ─▶ PredictedTrials ─▶ a peak curve               if nothing is measured

A knob setting is out of reach if even the low end of its smallest batch exceeds the budget by more than 10 %.
A trial of the setting would show nothing beyond its prediction, and may crash the machine. The predicted
outcome is in the study like any other, with the evidence `predicted`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Protocol

from autofit.dispatch.base import Devices, Dispatcher
from autofit.events import EventSink, Noted, ignore
from autofit.tuning.curves import CurveSet, Need
from autofit.units import format_bytes
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import NOT_TRIED, Evidence, Peaks, Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.pythons import Self
from autofit_workers.trials.door import ended_by, without_answer

# A setting whose low end is above this multiple of the budget is not run.
_FAR = 1.1
_TELLING_SHARE = 0.5  # share of the predicted need from which a message names the convolution workspace


class Trials(Protocol):
    """Interface of an object that runs trials, or computes their outcomes from predictions.

    A trial is one run or prediction of a configuration.
    """

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]: ...

    def capacity(self, trial: Probe | TrialSpec) -> int: ...


class TrialsInReach:
    """Runs trials, but answers "out of memory" without a run for settings that need far more than the budget.

    Which settings these are is predicted for the smallest batch. If all settings are, the one with the
    smallest predicted need is run nevertheless.

    Args:
        trials: runs trials.
        curves: predicted peak curves; settings without a curve are always run.
        settings: all knob settings (precision, optimizer, …) that are searched.
        min_batch: smallest batch size of the search.
        budget_bytes: bytes that peaks are compared with.
    """

    def __init__(
        self,
        trials: Trials,
        curves: CurveSet,
        *,
        settings: tuple[Knobs, ...],
        min_batch: int,
        budget_bytes: int,
    ) -> None:
        self._trials = trials
        self._curves = curves
        self._settings = settings
        self._min_batch = min_batch
        self._far_bytes = int(_FAR * budget_bytes)

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        """Runs a trial, or answers it without a run if even the smallest batch is far beyond the budget.

        Returns:
            Future of the outcome. If the knob setting is predicted to need far more than the budget, even at
            the smallest batch, the future is done already: its outcome is out of memory, with the predicted
            peak.
        """
        if spec.knobs not in self._out_of_reach:
            return self._trials.submit(spec)
        future: Future[TrialOutcome] = Future()
        future.set_result(_predicted(spec, self._curves.need(spec.knobs, spec.batch_size)))
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        return self._trials.capacity(trial)

    @cached_property
    def _out_of_reach(self) -> frozenset[Knobs]:
        """Knob settings whose smallest batch is predicted far beyond the budget; never all of the settings.

        The set is computed when the first trial is submitted: predictions for the CPU first measure a process
        without a workload.
        """
        far = {
            knobs
            for knobs in self._settings
            if self._curves.cannot_run(knobs, self._min_batch, self._far_bytes)
        }
        if len(far) == len(self._settings):
            far.discard(min(self._settings, key=self._likely_bytes))
        return frozenset(far)

    def _likely_bytes(self, knobs: Knobs) -> int:
        return self._curves.need(knobs, self._min_batch).likely_bytes


def _predicted(spec: TrialSpec, need: Need) -> TrialOutcome:
    outcome = without_answer(spec, Verdict.OOM, None, environment={NOT_TRIED: _what_takes_it(spec, need)})
    peaks = Peaks(reserved_bytes=need.likely_bytes)
    if outcome.device.kind == "cpu":
        peaks = Peaks(device_bytes=need.likely_bytes)
    return dataclasses.replace(outcome, evidence=Evidence.PREDICTED, steady=peaks)


def _what_takes_it(spec: TrialSpec, need: Need) -> str:
    """Phrase on the convolutions' scratch memory; empty if that is less than half of the predicted need."""
    if need.workspace_bytes < _TELLING_SHARE * need.likely_bytes:
        return ""
    algorithm = conv.find(spec.knobs.conv_algo)
    return f"{format_bytes(need.workspace_bytes)} of it for {algorithm.takes}"


class PredictedTrials:
    """Answers trials from predicted peak curves; nothing is run."""

    def __init__(self, curves: CurveSet, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._curves = curves
        self._clock = clock

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        """Predicts the outcome of a trial; the returned future holds it already."""
        assert spec.budget_bytes is not None
        started = self._clock()
        outcome = self._curves.of(spec.knobs).outcome(spec.batch_size, spec.budget_bytes)
        future: Future[TrialOutcome] = Future()
        future.set_result(dataclasses.replace(outcome, wall_seconds=self._clock() - started))
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:  # noqa: ARG002
        return 1


class Measuring:
    """Connection to the place where trials run, made on first use or in the background.

    Args:
        connect: makes the dispatcher, the object that runs trials on this machine or a Ray cluster.
        emit: called with an event for the dispatcher's notes, at its first use.

    Attributes:
        notes: sentences of the dispatcher for the user, once it was used; before empty.
    """

    def __init__(self, connect: Callable[[], Dispatcher], *, emit: EventSink = ignore) -> None:
        self.notes: tuple[str, ...] = ()
        self._connect = connect
        self._emit = emit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="autofit-connect")
        self._connecting: Future[Dispatcher] | None = None
        self._unwanted = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._unwanted.set()  # gives up a connection that is being made
        self._pool.shutdown()
        if self._connecting is not None and self._connecting.exception() is None:
            self._connecting.result().close()

    def begin_to_connect(self) -> None:
        """Connects the dispatcher in a thread; a failure is raised when the dispatcher is first needed."""
        if self._connecting is None:
            self._connecting = self._pool.submit(self._connect_while_wanted)

    def _connect_while_wanted(self) -> Dispatcher:
        with ended_by(self._unwanted):
            return self._connect()

    def devices(self) -> Devices:
        return self._connected().devices()

    def submit(self, spec: TrialSpec) -> Future[TrialOutcome]:
        return self._connected().submit(spec)

    def capacity(self, trial: Probe | TrialSpec) -> int:
        return self._connected().capacity(trial)

    def _connected(self) -> Dispatcher:
        self.begin_to_connect()
        assert self._connecting is not None
        dispatcher = self._connecting.result()
        if self.notes != dispatcher.notes:
            self.notes = dispatcher.notes
            for note in self.notes:
                self._emit(Noted(text=note))
        return dispatcher
