"""Reads one study repeatedly, and emits the events that the process of its search emitted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from autofit.events import (
    EventSink,
    PredictionCompared,
    RecommendationMade,
    TrialAbandoned,
    TrialFinished,
    TrialStarted,
    TuneStarted,
    WorkersChanged,
)
from autofit.search.choice import Configuration
from autofit.search.curves import Curve
from autofit.serve.background import Log
from autofit.study.damage import UNREADABLE, Kind, Unreadable, UnreadableError, require_whole
from autofit.study.feed import TrialFeed
from autofit.study.findings import Findings, comparison
from autofit.study.ledger import Ledger
from autofit.study.owner import Owner
from autofit.study.records import outcome_of, owner_of, predicted_bytes_of
from autofit.study.search_record import RecommendedTime, SearchRecord, recommendation_of, recommended_time_of
from autofit_workers.spec.knobs import Knobs


class StudyReader:
    """Reads a study (the stored record of a search) again and again, and emits events for its news.

    Each trial is counted once, when it has ended.

    Args:
        study_id: id of the study in its storage.
        emit: called with each event.
        log: called with a sentence about a trial that cannot be read.
    """

    def __init__(
        self,
        backend: BaseStorage,
        study_id: int,
        name: str,
        record: SearchRecord,
        *,
        emit: EventSink,
        log: Log,
    ) -> None:
        self._record = record
        self._study_id = study_id
        self._name = name
        self._emit = emit
        self._log = log
        self._feed = TrialFeed(backend, study_id)
        self._ledger = Ledger(record.space, budget_bytes=record.budget_bytes, curves=_no_curve)
        self._findings = Findings(name)
        self._compared: PredictionCompared | None = None
        self._recommended: Configuration | None = None
        self._recommended_time = RecommendedTime()
        self._first_start: dt.datetime | None = None
        self._in_flight: set[int] = set()
        self._workers = WorkersChanged(study=name, num_busy=0, num_idle=0)
        self._unreadable: set[int] = set()
        self._was_read = False

    @property
    def was_read(self) -> bool:
        """Whether the study's trials have been read at least once."""
        return self._was_read

    @property
    def num_unreadable(self) -> int:
        """Number of the study's trials that cannot be read."""
        return len(self._unreadable)

    @property
    def has_unfinished(self) -> bool:
        """Whether the study had running trials when it was last read."""
        return bool(self._ledger.running)

    def is_same(self, backend: BaseStorage, study_id: int) -> bool:
        """Whether an id still belongs to the study that was read before, not to a new one of the same name.

        The id alone does not tell, as SQLite reuses the ids of deleted rows.
        """
        if study_id != self._study_id:
            return False
        if self._first_start is None:
            return True
        try:
            first = backend.get_trial_id_from_study_id_trial_number(study_id, 0)
        except KeyError:
            return False
        return backend.get_trial(first).datetime_start == self._first_start

    def open(self, record: SearchRecord) -> None:
        """Emits events that the search began or was resumed, and for its results so far."""
        self._record = record
        self._emit(
            TuneStarted(
                workload=record.opened.workload,
                gpu=record.opened.gpu,
                budget_bytes=record.budget_bytes,
                study=self._name,
                started_seconds=record.opened.opened_seconds,
            )
        )
        for found in self._findings.told:
            self._emit(found)
        if self._compared is not None:
            self._emit(self._compared)
        if self._recommended is not None:
            self._emit_recommended()

    def hear(self, attributes: Mapping[str, Any]) -> None:
        """Emits an event for the recommended configuration in the study's `attributes`, if it has changed."""
        try:
            recommended, time = recommendation_of(attributes), recommended_time_of(attributes)
        except UNREADABLE:  # written by another version; the study's trials count all the same
            return
        if (recommended, time) != (self._recommended, self._recommended_time):
            self._recommended, self._recommended_time = recommended, time
            self._emit_recommended()

    def _emit_recommended(self) -> None:
        knobs, batch_size = self._recommended or (None, None)
        self._emit(
            RecommendationMade(
                study=self._name, knobs=knobs, batch_size=batch_size, **self._recommended_time._asdict()
            )
        )

    def read(self, backend: BaseStorage) -> bool:
        """Reads new trials of the study and emits events for them.

        Returns:
            Whether anything has changed since the last call; False for the first call.

        Raises:
            KeyError: the study has been deleted.
        """
        self._feed.attach(backend)
        news = self._feed.news()
        for trial in news:
            if trial.number == 0:
                self._first_start = trial.datetime_start
            try:
                self._take(trial)
            except UnreadableError as error:
                self._skip(trial, error)
        changed = {knobs: self._ledger.boundaries[knobs] for knobs in self._ledger.take_changed()}
        for moved in self._findings.moved(changed, self._ledger.known):
            self._emit(moved)
        was_read, self._was_read = self._was_read, True
        return was_read and bool(news)

    def announce(self) -> None:
        """Emits events for trials that have started, and for running trials whose search is gone."""
        owners = {
            number: running.owner
            for number, running in self._ledger.running.items()
            if running.owner.why_gone() is None
        }
        for number in sorted(self._in_flight - owners.keys()):
            self._abandon(number)
        for number in sorted(owners.keys() - self._in_flight):
            self._in_flight.add(number)
            knobs, batch_size = self._ledger.running[number].configuration
            self._emit(
                TrialStarted(
                    study=self._name,
                    trial=number,
                    spec=self._record.spec_of(knobs, batch_size),
                    started_seconds=owners[number].asked_seconds,
                )
            )
        self._announce_workers(list(owners.values()))

    def end(self) -> None:
        """Emits events that end all running trials, for a study that was deleted."""
        self._ledger.running.clear()
        self.announce()

    def _take(self, trial: FrozenTrial) -> None:
        """Takes a trial into the state of the search, and emits events if it has ended."""
        require_whole(trial.user_attrs)
        configuration = self._ledger.configuration(trial)
        if configuration is None:
            return
        if not trial.state.is_finished():
            owner = owner_of(trial)
            if owner is not None:
                self._ledger.expect(trial.number, configuration, owner)
            return
        outcome = outcome_of(trial)
        spec = self._record.spec_of(*configuration)
        self._ledger.finish(trial.number, configuration, outcome, num_steps=0)
        if outcome is None:
            self._abandon(trial.number)
            return
        self._in_flight.discard(trial.number)
        self._emit(TrialFinished(study=self._name, trial=trial.number, spec=spec, outcome=outcome))
        compared = comparison(self._name, trial.number, outcome, predicted_bytes_of(trial))
        if compared is not None:
            self._emit(compared)
            if self._compared is None or compared.trial > self._compared.trial:
                self._compared = compared

    def _abandon(self, number: int) -> None:
        if number in self._in_flight:
            self._in_flight.discard(number)
            self._emit(TrialAbandoned(study=self._name, trial=number))

    def _skip(self, trial: FrozenTrial, error: UnreadableError) -> None:
        self._ledger.running.pop(trial.number, None)
        if not self._unreadable:
            name = f"trial {trial.number} of study {self._name}"
            self._log(f"{Unreadable.of(Kind.TRIAL, name, error)}; others of the study are not told of")
        self._unreadable.add(trial.number)

    def _announce_workers(self, owners: list[Owner]) -> None:
        """Emits how many trials run, and how many more could, if this has changed.

        Args:
            owners: searches that own the running trials, one for each trial.
        """
        num_workers: dict[tuple[str, int, str], int] = {}
        for owner in sorted(owners, key=lambda owner: owner.asked_seconds):
            coordinator = owner.host, owner.process_id, owner.coordinator
            num_workers[coordinator] = owner.num_workers or num_workers.get(coordinator, 0)
        changed = WorkersChanged(
            study=self._name,
            num_busy=len(owners),
            num_idle=max(sum(num_workers.values()) - len(owners), 0),
        )
        if changed != self._workers:
            self._workers = changed
            self._emit(changed)


def _no_curve(_knobs: Knobs) -> Curve | None:
    """Returns None for every knob setting, as a reader makes no predictions."""
    return None
