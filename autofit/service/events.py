"""What the tuner says while it works.

The tuner emits; progress display, metrics and journal consume. An event is plain data, so that a
consumer can be added without the tuner knowing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workers.protocol import Evidence, Knobs, Peaks, TrialOutcome, TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneStarted:
    """A search begins, or is taken up again.

    Attributes:
        workload: its short name, as in `WorkloadRef.name`.
        budget_bytes: what the allocator may reserve (CPU: what the process may use).
        study: the name the study can be resumed by.
    """

    workload: str
    budget_bytes: int
    study: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial was handed to a dispatcher.

    Attributes:
        trial: its number in the study.
    """

    trial: int
    spec: TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial returned; its outcome is already in the study.

    Attributes:
        trial: its number in the study.
    """

    trial: int
    spec: TrialSpec
    outcome: TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSettled:
    """The largest batch of one knob setting is known.

    A setting may settle again: as measured after it was predicted, or when a soak failed.

    Attributes:
        largest_batch: None when not even the smallest batch fits.
        first_failing_batch: None when the search ended at its cap.
        peaks: of the largest batch.
    """

    workload: str
    knobs: Knobs
    largest_batch: int | None
    first_failing_batch: int | None
    peaks: Peaks
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stage of the search has come, in words for a person.

    Attributes:
        done, total: steps of this stage; a total of None is not known beforehand.
    """

    stage: str
    done: int = 0
    total: int | None = None


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


Event = TuneStarted | TrialStarted | TrialFinished | SettingSettled | Progress | TuneFinished
EventSink = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """The sink of whoever does not watch."""


def fan_out(*sinks: EventSink) -> EventSink:
    """One sink that hands every event to each of `sinks`, in their order."""

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit
