"""Reads a study's new and changed trials, without reading unchanged ones again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from autofit.study.relations import Relations  # imports SQLAlchemy, which a journal does not need

_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)


class TrialFeed:
    """Reads new and changed trials of a study (a search's stored record), and continues where it stopped.

    Of a trial that may still change, only its number and id are kept. Trials that this process itself created
    are not read, since it knows their state.

    Args:
        piece: number of trials that are read from a database in one query.
    """

    def __init__(self, backend: BaseStorage, study_id: int, *, piece: int = 500) -> None:
        self._backend = backend
        self._study_id = study_id
        self._piece = piece
        self._next_number = 0
        self._unfinished: dict[int, int] = {}  # number → id in the storage

    def attach(self, backend: BaseStorage) -> None:
        """Replaces the storage connection by another one to the same storage."""
        self._backend = backend

    def news(self) -> list[FrozenTrial]:
        """Returns trials of other processes that are new, have ended, or are still running."""
        if self._next_number == 0:
            return self._taken_in(self._all())
        return self._taken_in([*self._watched(), *self._beyond()])

    def _all(self) -> list[FrozenTrial]:
        """All trials of the study; a database's are read in parts, as Optuna needs much memory per trial."""
        backend = self._backend
        if not isinstance(backend, RDBStorage):
            return backend.get_all_trials(self._study_id, deepcopy=False)
        ids = cast("Relations", backend).trial_ids(self._study_id)
        if len(ids) <= self._piece:
            return backend.get_all_trials(self._study_id, deepcopy=False)
        trials: list[FrozenTrial] = []
        for begin in range(0, len(ids), self._piece):
            piece = set(ids[begin : begin + self._piece])
            # Optuna has no public function to read some of the trials. This one also returns trials made
            # since, which are dropped here and read later.
            read = backend._get_trials(self._study_id, None, piece, ids[-1])  # noqa: SLF001
            trials += [trial for trial in read if trial._trial_id in piece]  # noqa: SLF001
        return trials

    def until(self, trial_id: int) -> tuple[int, list[FrozenTrial]]:
        """Number of a trial that this process just created, and other processes' new trials before it."""
        earlier = []
        while (found := self._id_of(self._next_number)) != trial_id:
            assert found is not None, "a trial that was created has a number"
            earlier.append(self._backend.get_trial(found))
            self._next_number += 1
        number, self._next_number = self._next_number, self._next_number + 1
        return number, self._taken_in(earlier)

    def _watched(self) -> list[FrozenTrial]:
        """Trials that were not finished when last read, in their present state."""
        if not self._unfinished:
            return []
        running = {
            trial.number: trial
            for trial in self._backend.get_all_trials(self._study_id, deepcopy=False, states=_UNFINISHED)
        }
        return [
            running.get(number) or self._backend.get_trial(trial_id)
            for number, trial_id in self._unfinished.items()
        ]

    def _beyond(self) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = []
        while (trial_id := self._id_of(self._next_number + len(trials))) is not None:
            trials.append(self._backend.get_trial(trial_id))
        return trials

    def _id_of(self, number: int) -> int | None:
        try:
            return self._backend.get_trial_id_from_study_id_trial_number(self._study_id, number)
        except KeyError:
            return None

    def _taken_in(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        for trial in trials:
            self._next_number = max(self._next_number, trial.number + 1)
            if trial.state.is_finished():
                self._unfinished.pop(trial.number, None)
            elif trial.number not in self._unfinished:
                trial_id = self._id_of(trial.number)
                assert trial_id is not None, "a trial that was read is there"
                self._unfinished[trial.number] = trial_id
        return trials
