"""Settings that a measurement need not try: even the low end of their smallest batch is beyond the budget.

    Tuner ─ submit ─▶ TrialsInReach ─┬─▶ dispatcher                a setting that may fit
                                     └─▶ its prediction, as OOM    one that is out of reach

A trial that asks for what there is not would tell nothing that its prediction does not, and may
take the machine with it. Such an outcome is in the study like any other, with the evidence `predicted`.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from functools import cached_property

from autofit.curve_set import CurveSet, Need
from autofit.tuner import Trials
from autofit.units import format_bytes
from workers.knobs import conv
from workers.outcomes import without_answer
from workers.protocol import NOT_TRIED, Evidence, Knobs, Peaks, Probe, TrialOutcome, TrialSpec, Verdict

# The low end of a prediction beyond so many times the budget leaves no doubt.
_FAR = 1.1
_TELLING_SHARE = 0.5  # of the need: what takes less is not what is to be blamed


class TrialsInReach:
    """Runs trials, save those of settings that are out of reach: those are answered by their prediction.

    Where all settings are, the least needy is tried nevertheless.

    Args:
        trials: runs trials.
        curves: the predictions; what has none is tried.
        settings: all that are searched.
        min_batch: the smallest size of interest.
        budget_bytes: what peaks are held against.
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
        """The trial, or its prediction at once."""
        if spec.knobs not in self._out_of_reach:
            return self._trials.submit(spec)
        future: Future[TrialOutcome] = Future()
        future.set_result(_predicted(spec, self._curves.need(spec.knobs, spec.batch_size)))
        return future

    def capacity(self, trial: Probe | TrialSpec) -> int:
        return self._trials.capacity(trial)

    @cached_property
    def _out_of_reach(self) -> frozenset[Knobs]:
        """Found once there is a trial to run: a prediction may have to measure what a process takes."""
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
    """What most of the memory is for, where that is the convolution algorithm's doing; else nothing."""
    if need.workspace_bytes < _TELLING_SHARE * need.likely_bytes:
        return ""
    algorithm = conv.find(spec.knobs.conv_algo)
    return f"{format_bytes(need.workspace_bytes)} of it for {algorithm.takes}"
