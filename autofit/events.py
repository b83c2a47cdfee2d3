"""Events that the tuner emits while it works.

Progress display, metrics and journal consume them. An event is plain data, so that a consumer can be
added without the tuner knowing of it. `autofit serve` emits the same events of what it reads from the
storage.
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
        workload: the workload's short name, as in `WorkloadRef.name`.
        gpu: the card that the search is for, see `autofit.settings.target.gpu_label`.
        budget_bytes: what the allocator may reserve (CPU: what the process may use).
        study: the name the study can be resumed by; the events of a search all have it.
        started_seconds: epoch.
    """

    workload: str
    gpu: str
    budget_bytes: int
    study: str
    started_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial was handed to a dispatcher.

    Attributes:
        trial: its number in the study.
        started_seconds: epoch.
    """

    study: str
    trial: int
    spec: TrialSpec
    started_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial returned; its outcome is already in the study.

    Attributes:
        trial: its number in the study.
    """

    study: str
    trial: int
    spec: TrialSpec
    outcome: TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAbandoned:
    """A started trial will not return: its search was ended, or its coordinator is gone.

    Attributes:
        trial: its number in the study.
    """

    study: str
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCompared:
    """A measured trial fits, and its peak is compared with its prediction.

    Attributes:
        trial: its number in the study.
        predicted_bytes: the likely prediction of the peak that is held against the budget.
        measured_bytes: that peak as it was measured.
    """

    study: str
    trial: int
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryMoved:
    """The largest batch known to fit has changed for one knob setting.

    It grows as sizes are tried, and shrinks when a size that had fitted fails its soak.

    Attributes:
        largest_batch: None when not even the smallest batch fits.
        peaks: of the largest batch; those of a prediction at the level that has to fit.
        peak_bytes: the one of them that is held against the budget.
        evidence: how that batch is known to fit, or the smallest to fail.
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
        knobs, batch_size: the configuration; None where nothing fits.
        predicted_step_seconds: the likely time of its step; None where it is not sure enough to be said.
        step_time_error: (predicted − measured) / measured step time, where the step was measured.
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
        by_state: how many there are in each state; a state without jobs may be left out.
    """

    by_state: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableCounted:
    """The unreadable records of a storage, which are skipped, were counted.

    Attributes:
        source: the storage.
        by_kind: how many there are of each kind, see `autofit.study.damage.Kind`; none may be left out.
    """

    source: str
    by_kind: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a stage of a search, as text for a user.

    Attributes:
        done, total: steps of this stage; a total of None is not known beforehand.
    """

    stage: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Note that the waiting user should read at once; the answer repeats it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFinished:
    """The search is over.

    Attributes:
        best_batch, best_knobs: the answer; None when nothing fits.
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
