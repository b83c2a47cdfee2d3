"""Lists the trials left once all largest batches are known: timed smaller ones, and a long check of the best.

    boundaries ──▶ rates ──▶ verification ──▶ done
        ▲    (throughput only)    │
        └──── the soak failed ────┘

The boundaries themselves propose sizes by `Boundary.propose`. The agenda follows from the outcomes alone,
so that a resumed or shared study goes on with the same trials.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from autofit.search.boundary import Boundary
from autofit.search.choice import NEAR_THE_BEST_RATE, Configuration, best_of
from autofit.settings.goals import Objective
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, TrialOutcome, Verdict

_NUM_TIMED_HALVES = 3


class Purpose(StrEnum):
    """Purpose of a trial: to find a largest batch, to measure a rate, or to verify the best configuration."""

    BOUNDARY = "boundary"
    RATE = "rate"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Goal of a search: its objective, and the number of steps of its trials.

    Attributes:
        num_steps: number of steps of an ordinary trial after its warm-up.
        soak_steps: number of steps of the trial that verifies the winner; 0 for none.
    """

    objective: Objective = Objective.BATCH
    num_steps: int = 3
    soak_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Trial to run besides those that search for the largest batches."""

    purpose: Purpose
    knobs: Knobs
    batch_size: int

    @property
    def configuration(self) -> Configuration:
        return self.knobs, self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Agenda:
    """Trials that are still to run, given the outcomes in a study.

    Attributes:
        is_settled: whether the largest batch of every knob setting is known.
        has_search: whether a batch size is left to try in the search for these largest batches.
        largest_fitting: largest batch of any setting that is known to fit; 0 for none.
        known: outcome that counts for every configuration, see `decisive`.
        num_steps: number of steps of the longest trial of each configuration that fits.
        in_flight: configurations of running trials.
        min_batch: smallest batch size of the search.
    """

    goal: Goal
    boundaries: Mapping[Knobs, Boundary]
    is_settled: bool
    has_search: bool
    largest_fitting: int
    known: Mapping[Configuration, TrialOutcome]
    num_steps: Mapping[Configuration, int]
    in_flight: Collection[Configuration]
    min_batch: int

    @property
    def is_complete(self) -> bool:
        """Whether no trial is left, neither to run nor to wait for."""
        return self.is_settled and next(self._steps(), None) is None

    def next_step(self) -> Step | None:
        """Next trial once all largest batches are known; None before that, or if all trials run."""
        if not self.is_settled:
            return None
        open_steps = list(self._steps())
        if any(step.configuration in self.in_flight for step in open_steps):
            open_steps = [step for step in open_steps if step.purpose is Purpose.RATE]
        return next((step for step in open_steps if step.configuration not in self.in_flight), None)

    def num_steps_of(self, knobs: Knobs, batch_size: int, purpose: Purpose) -> int:
        """Number of training steps of a trial; more if the trial may verify the best configuration."""
        if purpose is Purpose.RATE or (purpose is Purpose.BOUNDARY and not self._may_win(knobs, batch_size)):
            return self.goal.num_steps
        return max(self.goal.soak_steps, self.goal.num_steps)

    def _may_win(self, knobs: Knobs, batch_size: int) -> bool:
        return batch_size >= self.largest_fitting and self.boundaries[knobs].may_be_last(batch_size)

    def _steps(self) -> Iterator[Step]:
        """Trials still to finish, in flight or not; the verifying one only when no other is left."""
        rates = list(self._rates()) if self.goal.objective is Objective.THROUGHPUT else []
        yield from rates
        best = best_of(self.known, self.boundaries, self.goal.objective)
        if rates or best is None or not self.goal.soak_steps or best.evidence is Evidence.PREDICTED:
            return
        if self.num_steps.get((best.knobs, best.batch_size), 0) < self.goal.soak_steps:
            yield Step(purpose=Purpose.VERIFY, knobs=best.knobs, batch_size=best.batch_size)

    def _rates(self) -> Iterator[Step]:
        """Trials to time at repeated halves of each largest batch, while the rate stays near the best."""
        fitting = [outcome for outcome in self.known.values() if outcome.verdict is Verdict.FITS]
        best_rate = max((outcome.samples_per_second or 0.0 for outcome in fitting), default=0.0)
        for knobs, boundary in self.boundaries.items():
            size = boundary.largest_fitting or 0
            largest = self.known.get((knobs, size))
            if largest is not None and largest.evidence is Evidence.PREDICTED:
                continue  # no trial was timed
            for _ in range(_NUM_TIMED_HALVES):
                size = boundary.at_most(size // 2)
                if size < self.min_batch:
                    break
                outcome = self.known.get((knobs, size))
                if outcome is None:
                    yield Step(purpose=Purpose.RATE, knobs=knobs, batch_size=size)
                    break
                if (outcome.samples_per_second or 0.0) < NEAR_THE_BEST_RATE * best_rate:
                    break
