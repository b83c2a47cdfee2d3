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
        gpu: card that the search is for, see `autofit.settings.target.gpu_label`.
        budget_bytes: bytes that the allocator may reserve; for the CPU, bytes that the process may use.
        study: name of the study, by which the search can be resumed; all events of a search have it.
        started_seconds: time at which the search began, in seconds of the epoch.
    """

    workload: str
    gpu: str
    budget_bytes: int
    study: str
    started_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial was handed to a dispatcher, which runs it.

    Attributes:
        trial: number of the trial in its study.
        started_seconds: time of the start, in seconds of the epoch.
    """

    study: str
    trial: int
    spec: TrialSpec
    started_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial returned; its outcome is already in the study.

    Attributes:
        trial: number of the trial in its study.
    """

    study: str
    trial: int
    spec: TrialSpec
    outcome: TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAbandoned:
    """A started trial will not return: its search was ended, or the process that ran it is gone.

    Attributes:
        trial: number of the trial in its study.
    """

    study: str
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCompared:
    """A measured trial fits, and its peak is compared with its prediction.

    Attributes:
        trial: number of the trial in its study.
        predicted_bytes: likely predicted peak, of the memory that is compared with the budget.
        measured_bytes: measured peak of the same memory.
    """

    study: str
    trial: int
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryMoved:
    """The largest batch known to fit has changed for one knob setting.

    The batch grows as sizes are tried, and shrinks if a size that had fitted fails its soak, a longer trial.

    Attributes:
        largest_batch: largest batch known to fit; None if not even the smallest batch fits.
        peaks: peaks of the largest batch; predicted ones are at the level that has to fit.
        peak_bytes: the peak among `peaks` that is compared with the budget.
        evidence: how the largest batch is known to fit or, if none fits, the smallest to fail.
    """

    study: str
    knobs: Knobs
    largest_batch: int | None
    peaks: Peaks
    peak_bytes: int | None
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationMade:
    """A search is over, and recommends the configuration that a practitioner would take.

    Attributes:
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
    """The numbers of busy and idle workers that a search may use have changed."""

    study: str
    num_busy: int
    num_idle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsCounted:
    """The jobs of a cluster were counted.

    Attributes:
        by_state: number of jobs in each state; a state without jobs may be left out.
    """

    by_state: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableCounted:
    """The unreadable records of a storage, which are skipped, were counted.

    Attributes:
        source: name of the storage or journal that has the records.
        by_kind: number of records of each `autofit.study.damage.Kind`; kinds without any may be left out.
    """

    source: str
    by_kind: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a stage of a search, as text for a user.

    Attributes:
        done, total: steps of this stage that are done, and all of them; None if their number is unknown.
    """

    stage: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Note that the user should read while the command still runs; the answer repeats it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFinished:
    """The search is over.

    Attributes:
        best_batch, best_knobs: best configuration that fits; None if nothing fits.
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
    | Progress
    | Noted
    | TuneFinished
)
EventSink = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Event sink that does nothing."""


def fan_out(*sinks: EventSink) -> EventSink:
    """Event sink that passes every event to each of `sinks`, in their order."""

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit
