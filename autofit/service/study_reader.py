"""One study, read again and again: what is new becomes the events that its coordinator emitted."""

from __future__ import annotations

import datetime as dt

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from autofit.search.owner import Owner
from autofit.search.records import SearchRecord, outcome_of, owner_of, predicted_bytes_of
from autofit.service.background import Log
from autofit.service.events import (
    EventSink,
    TrialAbandoned,
    TrialFinished,
    TrialStarted,
    TuneStarted,
    WorkersChanged,
)
from autofit.service.findings import Findings

UNREADABLE = (ValueError, LookupError, TypeError)
"""What reading another version's record raises."""

_FEW = 50  # new trials are fetched one by one; from so many on, all are listed at once


class StudyReader:
    """Reads one study; each of its trials is counted once, when it has been told.

    Reading costs one query where nothing has changed, and a few for each trial that has: numbers of
    trials have no gaps, so what lies below the next one and is finished is not looked at again.

    Args:
        study_id: of the study in its storage.
        emit: takes the events.
        log: takes a sentence about what cannot be read.
    """

    def __init__(self, study_id: int, name: str, record: SearchRecord, *, emit: EventSink, log: Log) -> None:
        self.record = record
        self._study_id = study_id
        self._name = name
        self._emit = emit
        self._log = log
        self._findings = Findings(study=name, min_batch=record.space.min_batch)
        self._num_seen = 0
        self._unfinished: dict[int, FrozenTrial] = {}
        self._first_start: dt.datetime | None = None
        self._in_flight: set[int] = set()
        self._workers = WorkersChanged(study=name, num_busy=0, num_idle=0)
        self._num_unreadable = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether it has trials that are not over."""
        return bool(self._unfinished)

    @property
    def num_seen(self) -> int:
        """The number of trials that were read, in whatever state."""
        return self._num_seen

    def is_same(self, backend: BaseStorage, study_id: int) -> bool:
        """Whether it is still the study that was read before, not one begun anew under its name.

        SQLite uses the ids of deleted rows again.
        """
        if study_id != self._study_id:
            return False
        first = self._fetch(backend, 0)
        return self._num_seen == 0 or (first is not None and first.datetime_start == self._first_start)

    def open(self, record: SearchRecord) -> None:
        """Says that the search began, or was taken up again, and what is known of it."""
        self.record = record
        self._emit(
            TuneStarted(
                workload=record.opened.workload,
                gpu=record.opened.gpu,
                budget_bytes=record.budget_bytes,
                study=self._name,
                started_seconds=record.opened.opened_seconds,
            )
        )
        for found in self._findings.all():
            self._emit(found)

    def read(self, backend: BaseStorage) -> None:
        """Reads what is new.

        Raises:
            KeyError: the study has been deleted.
        """
        if self._num_seen == 0:
            listed = backend.get_all_trials(self._study_id, deepcopy=False)
            for trial in listed:
                self._take(trial)
            return
        unfinished: dict[int, FrozenTrial] = {}
        if self._unfinished:
            listed = backend.get_all_trials(
                self._study_id, deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)
            )
            unfinished = {trial.number: trial for trial in listed}
            for number in list(self._unfinished):
                trial_now = unfinished.get(number) or self._fetch(backend, number)
                if trial_now is not None:
                    self._take(trial_now)
        self._take_new(backend, unfinished)

    def announce(self) -> None:
        """Says which trials are under way; those whose coordinator is gone are not."""
        owners = {
            number: owner
            for number, trial in self._unfinished.items()
            if (owner := self._owner(trial)) is not None and owner.why_gone() is None
        }
        for number in sorted(self._in_flight - owners.keys()):
            self._abandon(number)
        for number, owner in owners.items():
            spec = self.record.spec_of(self._unfinished[number])
            if number not in self._in_flight and spec is not None:
                self._in_flight.add(number)
                self._emit(
                    TrialStarted(
                        study=self._name, trial=number, spec=spec, started_seconds=owner.asked_seconds
                    )
                )
        self._announce_workers([owners[number] for number in self._in_flight])

    def end(self) -> None:
        """Says that nothing of it is under way any more: it was deleted."""
        self._unfinished.clear()
        self.announce()

    def _take_new(self, backend: BaseStorage, unfinished: dict[int, FrozenTrial]) -> None:
        for _ in range(_FEW):
            number = self._num_seen
            trial = unfinished.get(number) or self._fetch(backend, number)
            if trial is None:
                return
            self._take(trial)
        for trial in backend.get_all_trials(self._study_id, deepcopy=False)[self._num_seen :]:
            self._take(trial)

    def _fetch(self, backend: BaseStorage, number: int) -> FrozenTrial | None:
        try:
            trial_id = backend.get_trial_id_from_study_id_trial_number(self._study_id, number)
        except KeyError:
            return None
        return backend.get_trial(trial_id)

    def _take(self, trial: FrozenTrial) -> None:
        self._num_seen = max(self._num_seen, trial.number + 1)
        if trial.number == 0:
            self._first_start = trial.datetime_start
        if not trial.state.is_finished():
            self._unfinished[trial.number] = trial
            return
        self._unfinished.pop(trial.number, None)
        try:
            spec, outcome = self.record.spec_of(trial), outcome_of(trial)
        except UNREADABLE as error:
            self._skip(trial, error)
            return
        if spec is None or outcome is None:
            self._abandon(trial.number)
            return
        self._in_flight.discard(trial.number)
        self._emit(
            TrialFinished(
                study=self._name,
                trial=trial.number,
                spec=spec,
                outcome=outcome,
                predicted_bytes=predicted_bytes_of(trial),
            )
        )
        moved = self._findings.take(outcome)
        if moved is not None:
            self._emit(moved)

    def _owner(self, trial: FrozenTrial) -> Owner | None:
        """Whose trial it is, once it has a configuration."""
        try:
            return None if self.record.spec_of(trial) is None else owner_of(trial)
        except UNREADABLE:
            return None

    def _abandon(self, number: int) -> None:
        if number in self._in_flight:
            self._in_flight.discard(number)
            self._emit(TrialAbandoned(study=self._name, trial=number))

    def _skip(self, trial: FrozenTrial, error: Exception) -> None:
        self._abandon(trial.number)
        self._num_unreadable += 1
        if self._num_unreadable == 1:
            self._log(
                f"trial {trial.number} of study {self._name} was written by another version of autofit "
                f"({error}); such trials are not counted"
            )

    def _announce_workers(self, owners: list[Owner]) -> None:
        """A coordinator says with every trial how many it can run at once; the latest word counts."""
        num_workers: dict[tuple[str, int, float], int] = {}
        for owner in sorted(owners, key=lambda owner: owner.asked_seconds):
            coordinator = owner.host, owner.process_id, owner.started_seconds
            num_workers[coordinator] = owner.num_workers or num_workers.get(coordinator, 0)
        changed = WorkersChanged(
            study=self._name,
            num_busy=len(owners),
            num_idle=max(sum(num_workers.values()) - len(owners), 0),
        )
        if changed != self._workers:
            self._workers = changed
            self._emit(changed)
