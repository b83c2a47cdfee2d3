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
    """Trial that runs now, in this or another process: its configuration, and the search that owns it."""

    configuration: Configuration
    owner: Owner


class Ledger:
    """State of a search in memory, updated trial by trial.

    A trial is one run or prediction of a configuration. The boundary of a knob setting is its largest batch
    that fits with the next one, which does not.

    Args:
        space: knob settings and batch sizes of the search.
        budget_bytes: bytes that measured peaks are compared with.
        curves: returns the predicted peak curve of a knob setting, None if there is none; called once for
            each setting.
        pruning: decides which settings need no trials, as another one is no slower and fits as large a batch;
            None to search all settings to their end.

    Attributes:
        boundaries: search for the largest batch of every knob setting, in the space's order.
        known: outcome of each configuration; of several, the one that counts (`decisive`). Outcomes are
            shortened, without logs and traces.
        running: trials that run now, by number.
        num_returned: number of trials with an outcome of any kind.
        num_measured: number of these trials that were really run, not answered by a prediction.
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
        """Updates the state with a trial read from the storage, running or ended.

        An ended trial must be given only once. Trials outside the search space are ignored.
        """
        configuration = self.configuration(trial)
        owner = owner_of(trial)
        if configuration is None:
            return
        if trial.state == TrialState.RUNNING and owner is not None:
            self.expect(trial.number, configuration, owner)
        elif trial.state.is_finished():
            self.finish(trial.number, configuration, outcome_of(trial), num_steps=num_steps_of(trial))

    def expect(self, number: int, configuration: Configuration, owner: Owner) -> None:
        """Records that a trial runs; may be called again for it, when its owner renews the claim on it.

        Args:
            number: number of the trial in its study.
        """
        if number not in self.running:
            self._num_running[configuration] += 1
            knobs, batch_size = configuration
            self.boundaries[knobs].expect(batch_size)
            self._look_at(knobs)
        self.running[number] = Running(configuration=configuration, owner=owner)

    def finish(
        self, number: int, configuration: Configuration, outcome: TrialOutcome | None, *, num_steps: int
    ) -> None:
        """Records that a trial has ended, with its outcome, or None if it was given up.

        Args:
            num_steps: number of training steps that the trial was asked to run.
        """
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
        """Marks a configuration as not running, unless another trial of it runs."""
        if self._num_running[configuration] <= 0:
            del self._num_running[configuration]
            knobs, batch_size = configuration
            self.boundaries[knobs].withdraw(batch_size)

    def open_settings(self) -> list[Knobs]:
        """Knob settings that have a batch size to try now, in the order of the search space.

        Settings that another one is predicted to beat are left out until that other one is finished.
        """
        found = list(itertools.compress(self._space.settings, self._is_open))
        return found if self._pruning is None else self._pruning.leading(found, self._unsettled)

    def deciding_size(self, knobs: Knobs) -> int | None:
        """Batch size to try first for a knob setting, as its failure would end the setting's search.

        Returns:
            The batch size; None for the usual order of sizes.
        """
        rival = None if self._pruning is None else self._pruning.best_rival(knobs, self._settled)
        if rival is None:
            return None
        return self.boundaries[knobs].doubtful_size_beyond(self._settled[rival])

    def take_changed(self) -> list[Knobs]:
        """Returns the knob settings whose trials or results changed since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    def agenda(self, goal: Goal) -> Agenda:
        """Trials that are left to run for a goal (objective, and number of steps of trials)."""
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
        """Configurations that fitted in a trial of `soak_steps` or more steps, with the number of steps."""
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
        """Updates the state of the search with a trial's outcome.

        Of several outcomes of a configuration the latest counts, but one that did not fit takes precedence.

        Args:
            number: number of the trial.
        """
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
        """Updates all state that depends on a knob setting's largest batch, and on which need trials."""
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
        """Decides whether a knob setting needs further trials, by the known largest batches of others."""
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
    """Part of an outcome's environment that says why the trial was not run; empty if it was run."""
    return (
        {NOT_TRIED: outcome.environment[NOT_TRIED]} if NOT_TRIED in outcome.environment else _NO_ENVIRONMENT
    )
