"""State of a search in memory, updated with each trial of its study.

Each trial updates the boundaries, the outcomes and the running trials, so that the thousandth trial costs as
much as the first.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from autofit.search.agenda import Agenda, Goal
from autofit.search.boundary import Boundary
from autofit.search.choice import Configuration
from autofit.search.curves import Curve
from autofit.search.pruning import PrunedSetting, Pruning
from autofit.search.space import BATCH_SIZE, SearchSpace
from autofit.study.owner import Owner
from autofit.study.records import num_steps_of, outcome_of, owner_of
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import NOT_TRIED, Device, TrialOutcome, Verdict

_NO_ENVIRONMENT: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Running trial of this or another process, with its configuration and its owner."""

    configuration: Configuration
    owner: Owner


class Ledger:
    """State of a search in memory: largest batches, outcomes, running trials and pruned knob settings.

    Args:
        budget_bytes: budget that measured peaks are compared with.
        curves: returns the peak curve of a knob setting, or None; called once for each setting.
        pruning: decides which settings others make pointless; without it every boundary is searched.

    Attributes:
        boundaries: largest fitting and smallest failing batch of every knob setting, in the space's order.
        known: outcome that counts for each configuration, see `decisive`; of its environment
            only the reason why it was not tried is kept.
        running: running trials by number.
        num_returned: number of trials with an outcome of any kind.
        num_measured: number of trials with an outcome that were run, not answered by a prediction.
        pruned: settings that are not searched to their end, with the reason.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        budget_bytes: int,
        curves: Callable[[Knobs], Curve | None],
        pruning: Pruning | None = None,
    ) -> None:
        self._space = space
        self._pruning = pruning
        self._distributions = space.distributions
        self.boundaries: Mapping[Knobs, Boundary] = {
            knobs: Boundary(
                budget_bytes=budget_bytes,
                sizes=space.sizes(knobs),
                prior=curves(knobs),
            )
            for knobs in space.settings
        }
        self.known: dict[Configuration, TrialOutcome] = {}
        self.running: dict[int, Running] = {}
        self.num_returned = 0
        self.num_measured = 0
        self._known_from: dict[Configuration, int] = {}  # number of that trial
        self._num_running: collections.Counter[Configuration] = collections.Counter()
        self._num_steps: dict[Configuration, int] = {}
        self._devices: dict[Device, Device] = {}
        # Whether each knob setting has a size to propose; a list, as there may be thousands of settings.
        self._is_open = [False] * len(space.settings)
        self._index = {knobs: index for index, knobs in enumerate(space.settings)}
        self._unsettled: set[Knobs] = set()
        self._largest: dict[Knobs, int] = {}
        self._settled: dict[Knobs, int] = {}  # largest batch of settings whose boundary is known
        self.pruned: dict[Knobs, PrunedSetting] = {}
        self._changed: dict[Knobs, None] = {}
        for knobs in space.settings:
            self._look_at(knobs)
        self._changed.clear()

    def take_in(self, trial: FrozenTrial) -> None:
        """Updates the search state with a trial read from the storage; call it once for an ended trial."""
        configuration = self.configuration(trial)
        owner = owner_of(trial)
        if configuration is None:
            return
        if trial.state == TrialState.RUNNING and owner is not None:
            self.expect(trial.number, configuration, owner)
        elif trial.state.is_finished():
            self.finish(trial.number, configuration, outcome_of(trial), num_steps=num_steps_of(trial))

    def expect(self, number: int, configuration: Configuration, owner: Owner) -> None:
        """Records a trial as running; called again when its owner's lease was renewed."""
        if number not in self.running:
            self._num_running[configuration] += 1
            knobs, batch_size = configuration
            self.boundaries[knobs].expect(batch_size)
            self._look_at(knobs)
        self.running[number] = Running(configuration=configuration, owner=owner)

    def finish(
        self, number: int, configuration: Configuration, outcome: TrialOutcome | None, *, num_steps: int
    ) -> None:
        """Records the outcome of an ended trial; `outcome` is None if the trial was given up."""
        if self.running.pop(number, None) is not None:
            self._num_running[configuration] -= 1
        self.withdraw(configuration)
        if outcome is not None:
            self.num_returned += 1
            self.num_measured += outcome.was_run
            if outcome.verdict.is_about_memory:
                self._learn(number, configuration, outcome)
                done = max(num_steps, self._num_steps.get(configuration, 0))
                self._num_steps[configuration] = done
        self._look_at(configuration[0])

    def withdraw(self, configuration: Configuration) -> None:
        """Takes back a proposed configuration, unless a trial of it is running."""
        if self._num_running[configuration] <= 0:
            del self._num_running[configuration]
            knobs, batch_size = configuration
            self.boundaries[knobs].withdraw(batch_size)

    def open_settings(self) -> list[Knobs]:
        """Knob settings that have a batch size to try, in the order of the search space.

        Settings that may become pointless wait for the settings that decide it.
        """
        found = list(itertools.compress(self._space.settings, self._is_open))
        return found if self._pruning is None else self._pruning.leading(found, self._unsettled)

    def deciding_size(self, knobs: Knobs) -> int | None:
        """Batch size to try first, as its failure ends a knob setting's search; None for the usual order."""
        rival = None if self._pruning is None else self._pruning.best_rival(knobs, self._settled)
        if rival is None:
            return None
        return self.boundaries[knobs].doubtful_size_beyond(self._settled[rival])

    def take_changed(self) -> list[Knobs]:
        """Knob settings whose state changed since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    def agenda(self, goal: Goal) -> Agenda:
        """Agenda for a goal: the trials that are left to run."""
        return Agenda(
            goal=goal,
            boundaries=self.boundaries,
            is_settled=not self._unsettled,
            has_search=any(self._is_open),
            largest_fitting=max(self._largest.values(), default=0),
            known=self.known,
            num_steps=self._num_steps,
            in_flight=self._num_running.keys(),
            min_batch=self._space.min_batch,
        )

    def verified(self, soak_steps: int) -> dict[Configuration, int]:
        """Configurations that fit and ran at least `soak_steps` steps, each with its number of steps."""
        return {
            configuration: num_steps
            for configuration, num_steps in self._num_steps.items()
            if num_steps >= soak_steps and self.known[configuration].verdict is Verdict.FITS
        }

    def configuration(self, trial: FrozenTrial) -> Configuration | None:
        """Configuration that a trial tries; None if it is not in this search space."""
        if any(trial.distributions.get(name) != own for name, own in self._distributions.items()):
            return None
        index = self._index.get(self._space.to_knobs(trial.params))
        return None if index is None else (self._space.settings[index], trial.params[BATCH_SIZE])

    def _learn(self, number: int, configuration: Configuration, outcome: TrialOutcome) -> None:
        """Records a trial's outcome; of several the latest counts, but a failure counts more than a fit."""
        knobs, batch_size = configuration
        fits = outcome.verdict is Verdict.FITS
        before = self.known.get(configuration)
        if before is None or fits == (before.verdict is Verdict.FITS):
            counts = number >= self._known_from.get(configuration, number)
        else:
            counts = not fits
        if counts:
            self.known[configuration] = self._slim(knobs, outcome)
            self._known_from[configuration] = number
        self.boundaries[knobs].observe(
            batch_size, fits=fits, peak_bytes=outcome.budgeted_bytes if counts else None
        )
        if self._num_running[configuration] > 0:
            self.boundaries[knobs].expect(batch_size)

    def _slim(self, knobs: Knobs, outcome: TrialOutcome) -> TrialOutcome:
        """Copy of an outcome with only the fields that search and frontier need, to save memory."""
        return dataclasses.replace(
            outcome,
            knobs=knobs,
            device=self._devices.setdefault(outcome.device, outcome.device),
            environment=_reason(outcome),
            error=None,
            trace_json=None,
            log_tail="",
        )

    def _look_at(self, knobs: Knobs) -> None:
        """Updates what depends on a knob setting's largest batch, and prunes other knob settings by it."""
        boundary = self.boundaries[knobs]
        self._is_open[self._index[knobs]] = boundary.has_proposal
        (self._unsettled.discard if boundary.is_settled else self._unsettled.add)(knobs)
        self._largest[knobs] = boundary.largest_fitting or 0
        self._changed[knobs] = None
        if self._pruning is None:
            return
        self._prune(self._pruning, knobs)
        settled = self._largest[knobs] if boundary.is_settled else None
        if settled != self._settled.get(knobs):
            if settled is None:
                del self._settled[knobs]
            else:
                self._settled[knobs] = settled
            for other in self._pruning.affected_by(knobs):
                self._prune(self._pruning, other)

    def _prune(self, pruning: Pruning, knobs: Knobs) -> None:
        """Prunes a knob setting that other settings' known largest batches rule out, or else reopens it."""
        boundary = self.boundaries[knobs]
        if boundary.is_settled:
            self.pruned.pop(knobs, None)
            return
        pruned = pruning.pruned(knobs, self._settled, boundary)
        if pruned is None:
            self.pruned.pop(knobs, None)
        else:
            self.pruned[knobs] = pruned
        self._is_open[self._index[knobs]] = boundary.has_proposal and pruned is None
        (self._unsettled.add if pruned is None else self._unsettled.discard)(knobs)


def _reason(outcome: TrialOutcome) -> dict[str, str]:
    """Environment of an outcome, reduced to the reason why it was not tried; empty if it was tried."""
    return (
        {NOT_TRIED: outcome.environment[NOT_TRIED]} if NOT_TRIED in outcome.environment else _NO_ENVIRONMENT
    )
