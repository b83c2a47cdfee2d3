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

from autofit.search.boundary import Boundary
from autofit.search.choice import NEAR_THE_BEST_RATE, Configuration, best_of
from autofit.settings.goals import Objective
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence, TrialOutcome, Verdict
from autofit_workers.spec.pythons import StrEnum

_NUM_TIMED_HALVES = 3


class Purpose(StrEnum):
    """Reason why a trial (a run of a configuration) is made.

    `BOUNDARY`: to find a knob setting's largest batch. `RATE`: to measure the samples a second of a smaller
    batch. `VERIFY`: to run the best configuration for longer.
    """

    BOUNDARY = "boundary"
    RATE = "rate"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Aim of a search, and how long its trials (runs of a configuration) are.

    Attributes:
        objective: quantity to maximize: batch size or throughput.
        num_steps: number of training steps of an ordinary trial, after its warm-up.
        soak_steps: number of training steps of the longer trial that verifies the best configuration; 0 for
            no such trial.
    """

    objective: Objective = Objective.BATCH
    num_steps: int = 3
    soak_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Trial to run when all largest batches are known: it times a smaller batch, or verifies the best one."""

    purpose: Purpose
    knobs: Knobs
    batch_size: int

    @property
    def configuration(self) -> Configuration:
        return self.knobs, self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Agenda:
    """Trials (runs of a configuration) that a search still has to make, given the outcomes so far.

    A search first finds the largest batch of every knob setting. Then it times smaller batches, if throughput
    is the objective, and runs the best configuration for longer.

    Attributes:
        boundaries: search for the largest batch of each knob setting.
        is_settled: whether the largest batch of every knob setting is known.
        has_search: whether the search for the largest batches has a batch size to try that is not running
            yet.
        largest_fitting: largest batch of any setting that is known to fit; 0 for none.
        known: outcome of each configuration; of several, the one that counts by `decisive`.
        num_steps: number of steps of the longest trial of each configuration that fits.
        in_flight: configurations whose trials are running now.
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
        """Whether all trials have ended and no further trial is needed."""
        return self.is_settled and next(self._steps(), None) is None

    def next_step(self) -> Step | None:
        """Trial to start next, after the largest batches of all knob settings were found.

        Returns:
            The trial. None if some largest batch is still unknown; if every trial that is left runs already;
            or if nothing is left.
        """
        if not self.is_settled:
            return None
        open_steps = list(self._steps())
        if any(step.configuration in self.in_flight for step in open_steps):
            open_steps = [step for step in open_steps if step.purpose is Purpose.RATE]
        return next((step for step in open_steps if step.configuration not in self.in_flight), None)

    def num_steps_of(self, knobs: Knobs, batch_size: int, purpose: Purpose) -> int:
        """Number of training steps that a trial should run.

        A trial that may turn out to be the best configuration runs, from the start, as many steps as its
        verification needs.
        """
        if purpose is Purpose.RATE or (purpose is Purpose.BOUNDARY and not self._may_win(knobs, batch_size)):
            return self.goal.num_steps
        return max(self.goal.soak_steps, self.goal.num_steps)

    def _may_win(self, knobs: Knobs, batch_size: int) -> bool:
        return batch_size >= self.largest_fitting and self.boundaries[knobs].may_be_last(batch_size)

    def _steps(self) -> Iterator[Step]:
        """Yields timing trials without an outcome, running or not; if there are none, the verifying trial."""
        rates = list(self._rates()) if self.goal.objective is Objective.THROUGHPUT else []
        yield from rates
        best = best_of(self.known, self.boundaries, self.goal.objective)
        if rates or best is None or not self.goal.soak_steps or best.evidence is Evidence.PREDICTED:
            return
        if self.num_steps.get((best.knobs, best.batch_size), 0) < self.goal.soak_steps:
            yield Step(purpose=Purpose.VERIFY, knobs=best.knobs, batch_size=best.batch_size)

    def _rates(self) -> Iterator[Step]:
        """Yields trials that time half of each largest batch, then a quarter, and so on.

        A knob setting's trials end once the samples a second fall clearly below the best rate.
        """
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
