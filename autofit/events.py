"""Events that the tuner emits while it works.

Events are plain data for consumers such as the progress display and the metrics, of which the tuner knows
nothing. `autofit serve` emits the same events for trials that it reads from a storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, Peaks, TrialOutcome, TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneStarted:
    """A search begins, or an interrupted search is resumed.

    Attributes:
        workload: short name of the workload, as in `WorkloadRef.name`.
        gpu: short name of the GPU that the search is for, such as `t4`; see `gpu_label`.
        budget_bytes: bytes that the allocator may reserve; for the CPU, bytes that the process may use.
        study: name of the study (the stored search), by which it can be resumed; all events of a search
            have it.
        started_seconds: time at which the search began, in seconds of the epoch.
    """

    workload: str
    gpu: str
    budget_bytes: int
    study: str
    started_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial, one prediction or run of a configuration, was started.

    Attributes:
        study: name of the search's study.
        trial: number of the trial in its study.
        spec: the configuration, and how to predict or run it.
        started_seconds: time of the start, in seconds of the epoch.
    """

    study: str
    trial: int
    spec: TrialSpec
    started_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial, one prediction or run of a configuration, has ended, and its result is stored.

    Attributes:
        study: name of the search's study.
        trial: number of the trial in its study.
        spec: the configuration, and how it was predicted or run.
        outcome: result: how the trial ended, and its peaks.
    """

    study: str
    trial: int
    spec: TrialSpec
    outcome: TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAbandoned:
    """A started trial will give no result: its search was ended, or the process that ran it is gone.

    Attributes:
        study: name of the search's study.
        trial: number of the trial (one prediction or run of a configuration) in its study.
    """

    study: str
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCompared:
    """A configuration was run and fits, and its measured peak is compared with the predicted one.

    Attributes:
        study: name of the search's study.
        trial: number of the run in its study.
        predicted_bytes: likely predicted peak, of the memory that is compared with the budget.
        measured_bytes: measured peak of the same memory.
    """

    study: str
    trial: int
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryMoved:
    """The largest batch known to fit has changed for one knob setting (precision, optimizer, …).

    The batch grows as sizes are tried. It shrinks if a size that had fitted fails its soak, a longer run.

    Attributes:
        study: name of the search's study.
        knobs: the knob setting.
        largest_batch: largest batch known to fit; None if not even the smallest batch fits.
        peaks: peaks of the largest batch. If predicted, they are at the level of the prediction (likely, high
            end, …) that has to fit.
        peak_bytes: the peak among `peaks` that is compared with the budget; None if unknown.
        evidence: whether the result was predicted or measured. If no batch fits, it is that of the smallest
            batch, which failed.
    """

    study: str
    knobs: Knobs
    largest_batch: int | None
    peaks: Peaks
    peak_bytes: int | None
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationMade:
    """A search is over, and recommends a configuration.

    Attributes:
        study: name of the search's study.
        knobs, batch_size: the configuration; None if nothing fits.
        predicted_step_seconds: likely time of its step; None if it is too uncertain to be shown.
        step_time_error: (predicted − measured) / measured step time; None if the step was not measured.
    """

    study: str
    knobs: Knobs | None
    batch_size: int | None
    predicted_step_seconds: float | None = None
    step_time_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersChanged:
    """The numbers of busy and idle workers (processes that run configurations) of a search have changed."""

    study: str
    num_busy: int
    num_idle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsCounted:
    """The jobs of a cluster, each a queued or running `autofit tune`, were counted.

    Attributes:
        by_state: number of jobs in each state, such as `running`; a state without jobs may be left out.
    """

    by_state: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableCounted:
    """The records of a storage that cannot be read, and are skipped, were counted.

    Attributes:
        source: name of the storage or journal file that has the records.
        by_kind: number of such records by kind, such as `trial` or `job`; kinds without any may be left out.
    """

    source: str
    by_kind: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRunPeak:
    """Peak that a user observed in a real run and stored with `autofit observe`.

    Attributes:
        workload: short name of the workload.
        gpu: key of the card; empty if none was named.
        kind: kind of the peak: `allocated`, `reserved` or `device`.
        observed_bytes: the observed peak.
        predicted_bytes: likely peak of that kind that was predicted for the run; None if it is not known.
    """

    workload: str
    gpu: str
    kind: str
    observed_bytes: int
    predicted_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRunsObserved:
    """The stored peaks of real runs have changed.

    Attributes:
        peaks: all that are stored now, the newest first.
    """

    peaks: tuple[RealRunPeak, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a stage of a search or prediction, for a user to see.

    Attributes:
        stage: name of the stage, such as `predicting curves`.
        done: number of steps of this stage that are done.
        total: number of all steps of this stage; None if unknown.
        detail: part of the stage that takes long, and for how long, such as `compiling graph 3 (24 s)`; empty
            if there is none.
    """

    stage: str
    done: int = 0
    total: int | None = None
    detail: str = ""

    @property
    def in_words(self) -> str:
        """Line for a user, such as `predicting curves 2/5` or `tracing batch 8: compiling graph 3 (24 s)`."""
        number = "" if self.total is None else f" {self.done + 1}/{self.total}"
        return f"{self.stage}{number}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Note that the user should read while a command still runs; its answer has the note again."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFinished:
    """A search is over.

    Attributes:
        workload: short name of the workload.
        best_batch, best_knobs: best configuration that fits; None if nothing fits.
        num_trials: number of trials (predictions or runs of a configuration) in the study.
        wall_seconds: duration of the search.
    """

    workload: str
    best_batch: int | None
    best_knobs: Knobs | None
    num_trials: int
    wall_seconds: float


Event = (
    TuneStarted
    | TrialStarted
    | TrialFinished
    | TrialAbandoned
    | PredictionCompared
    | BoundaryMoved
    | RecommendationMade
    | WorkersChanged
    | JobsCounted
    | UnreadableCounted
    | RealRunsObserved
    | Progress
    | Noted
    | TuneFinished
)
EventSink = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Event sink (a function that is called with each event) that does nothing."""


def fan_out(*sinks: EventSink) -> EventSink:
    """Event sink (a function that is called with each event) that calls several others in their order."""

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit
