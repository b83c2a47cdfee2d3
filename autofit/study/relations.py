"""Optuna's storage in a database, whose reads return all other records if one is damaged.

A value may be invalid JSON, a state unknown, a page unreadable for the database. Optuna reads all trials of a
study, or all studies, together, and one such record makes the whole read fail. Then the request is halved
until the record is found; its readable part is returned with the mark `DAMAGED`.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.exc import DBAPIError

from autofit.study.damage import DAMAGED, UNREADABLE
from autofit.study.query_parts import query_parts
from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.pythons import SQLITE_CORRUPT, sqlite_code

_Read = TypeVar("_Read")

_LARGEST_ID = 2**31 - 1
_NOT_FOUND = models.NOT_FOUND_MSG
_CORRUPT_STATE = "XX"  # PostgreSQL's data_corrupted, index_corrupted and other internal errors
_UNDECODABLE = "Could not decode to UTF-8"  # sqlite3's only message for invalid text


class Relations(RDBStorage):
    """Optuna's storage in a database, in which damaged records can still be read in part.

    Such a record has the attribute `DAMAGED`.
    """

    def get_all_studies(self) -> list[FrozenStudy]:
        return _or(super().get_all_studies, self._studies_apart)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return _or(
            lambda: super(Relations, self).get_study_user_attrs(study_id),
            lambda: self._attributes(models.StudyUserAttributeModel, study_id),
        )

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return _or(
            lambda: super(Relations, self).get_study_system_attrs(study_id),
            lambda: self._attributes(models.StudySystemAttributeModel, study_id),
        )

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return _or(lambda: super(Relations, self).get_trial(trial_id), lambda: self._lost(trial_id))

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        def by_rank() -> int:
            """Id of the trial, found by its position among the sorted ids of the study's trials."""
            ids = self.trial_ids(study_id)
            if trial_number >= len(ids):
                raise KeyError(_NOT_FOUND)
            return ids[trial_number]

        find = super().get_trial_id_from_study_id_trial_number
        return _or(lambda: find(study_id, trial_number), by_rank)

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        """Trials of a study; read one by one, without damaged attributes, if they cannot be read together."""

        def apart() -> list[FrozenTrial]:
            wanted = [
                trial_id
                for trial_id in self.trial_ids(study_id, states)
                if trial_id > trial_id_greater_than or trial_id in included_trial_ids
            ]
            found = self._trials_apart(study_id, wanted)
            return [trial for trial in found if states is None or trial.state in states]

        read = super()._get_trials
        return _or(lambda: read(study_id, states, included_trial_ids, trial_id_greater_than), apart)

    def _build_frozen_trial_from_trial_model(self, trial: Any) -> FrozenTrial:
        """Trial from its database row; without the parts that are damaged, if any are."""

        def what_is_left() -> FrozenTrial:
            return self._marked(
                trial.trial_id,
                self._rank(trial.study_id, trial.trial_id) if trial.number is None else trial.number,
                trial.state,
                self._attributes(models.TrialUserAttributeModel, trial.trial_id),
            )

        build = super()._build_frozen_trial_from_trial_model

        def whole() -> FrozenTrial:
            if trial.number is None:
                raise ValueError("it has no number")
            return build(trial)

        return _or(whole, what_is_left)

    def trial_ids(self, study_id: int, states: Container[TrialState] | None = None) -> list[int]:
        """Ids of a study's trials that are in one of `states`, ascending; if states is None, of all trials.

        If the states cannot be read, the ids of all trials are returned.
        """
        trial = models.TrialModel

        def ids(*conditions: ColumnElement[bool]) -> Callable[[], list[int]]:
            return lambda: self._all(select(trial.trial_id).where(*conditions).order_by(trial.trial_id))

        by_index, by_table = trial.study_id == study_id, trial.study_id + 0 == study_id  # sums use no index
        if states is None:
            return _or(ids(by_index), ids(by_table))
        chosen = trial.state.in_(cast("Iterable[TrialState]", states))
        return _or(
            ids(by_index, chosen), lambda: _or(ids(by_table, chosen), lambda: self.trial_ids(study_id))
        )

    def trial_states(self, study_id: int) -> dict[int, TrialState]:
        """States of a study's trials by the trials' ids, ascending; `FAIL` for one that cannot be read."""
        trial = models.TrialModel
        query = select(trial.trial_id, trial.state).where(trial.study_id == study_id)

        def state_of(trial_id: int) -> TrialState:
            found: TrialState = self._all(select(trial.state).where(trial.trial_id == trial_id))[0]
            return found

        def apart() -> dict[int, TrialState]:
            return {
                trial_id: _or(functools.partial(state_of, trial_id), lambda: TrialState.FAIL)
                for trial_id in self.trial_ids(study_id)
            }

        return _or(lambda: dict(map(tuple, self._rows(query.order_by(trial.trial_id)))), apart)

    def trials_at(self, study_id: int, trial_ids: Sequence[int]) -> Iterator[FrozenTrial]:
        """Yields the trials of a study that have these ids, oldest first; they are read in parts."""
        for wanted in query_parts(trial_ids):
            yield from self._get_trials(study_id, None, set(wanted), _LARGEST_ID)

    def trials_with(self, study_id: int, name: str, values: Collection[str]) -> list[FrozenTrial]:
        """Trials of a study whose user attribute `name` has one of the values, oldest first.

        The database looks for them, so that the other trials are not read.
        """
        trial, attribute = models.TrialModel, models.TrialUserAttributeModel
        texts = [json.dumps(value) for value in values]  # as Optuna writes them
        found: list[int] = []
        for some in query_parts(texts):
            query = (
                select(trial.trial_id)
                .join(attribute, attribute.trial_id == trial.trial_id)
                .where(trial.study_id == study_id, attribute.key == name)
                .where(attribute.value_json.in_(some))
            )
            found += self._all(query)
        return sorted(self.trials_at(study_id, found), key=lambda each: each.number)

    # ── reading around damage ───────────────────────────────────────────────────────────────────

    def _trials_apart(self, study_id: int, trial_ids: list[int]) -> list[FrozenTrial]:
        """Trials with these ids, of which damaged ones are replaced by failed ones.

        It reads halves of the list, and halves of the half that fails, until a damaged trial is found.
        """
        if len(trial_ids) <= 1:
            get = super().get_trial
            return [
                _or(functools.partial(get, each), functools.partial(self._lost, each, [study_id]))
                for each in trial_ids
            ]
        middle = len(trial_ids) // 2
        read = super()._get_trials
        return [
            trial
            for half in (trial_ids[:middle], trial_ids[middle:])
            for trial in _or(
                functools.partial(read, study_id, None, set(half), _LARGEST_ID),
                functools.partial(self._trials_apart, study_id, half),
            )
        ]

    def _lost(self, trial_id: int, study_ids: Iterable[int] | None = None) -> FrozenTrial:
        """Failed trial marked `DAMAGED`, in place of a trial whose record is lost except for its id.

        Args:
            study_ids: studies that the trial may belong to; all studies unless given.
        """
        if study_ids is None:
            study_ids = self._all(select(models.StudyModel.study_id))
        for study_id in study_ids:
            if trial_id in self.trial_ids(study_id):
                return self._marked(trial_id, self._rank(study_id, trial_id), TrialState.FAIL, {})
        raise KeyError(_NOT_FOUND)

    def _rank(self, study_id: int, trial_id: int) -> int:
        """Number of a trial in its study, derived from the order of the trials' ids."""
        return sum(other < trial_id for other in self.trial_ids(study_id))

    def _marked(
        self, trial_id: int, number: int, state: TrialState, attributes: dict[str, Any]
    ) -> FrozenTrial:
        trial = create_trial(state=TrialState.RUNNING, user_attrs={**attributes, DAMAGED: True})
        trial.state = state  # without a value, which Optuna would require
        trial.number = number
        trial._trial_id = trial_id  # noqa: SLF001 - Optuna's storages are addressed by it
        return trial

    def _studies_apart(self) -> list[FrozenStudy]:
        """Studies with their attributes, read one by one without those that are damaged."""
        names = self._rows(select(models.StudyModel.study_id, models.StudyModel.study_name))
        user_attrs = self._attributes_of_all(models.StudyUserAttributeModel, [found for found, _ in names])
        system_attrs = self._attributes_of_all(
            models.StudySystemAttributeModel, [found for found, _ in names]
        )
        return [
            FrozenStudy(
                study_name=name,
                direction=StudyDirection.MAXIMIZE,
                user_attrs=user_attrs[study_id],
                system_attrs=system_attrs[study_id],
                study_id=study_id,
            )
            for study_id, name in sorted(names)
        ]

    def _attributes_of_all(self, model: Any, study_ids: list[int]) -> dict[int, dict[str, Any]]:
        """Attributes of each study by its id; where some cannot be read, the mark `DAMAGED` is among them.

        Args:
            model: Optuna's table of attributes.
        """
        try:
            rows = self._rows(select(model.study_id, model.key, model.value_json))
        except DBAPIError as error:
            if not _is_damage(error):
                raise
            return {study_id: self._attributes(model, study_id) for study_id in study_ids}
        found: dict[int, dict[str, Any]] = {study_id: {} for study_id in study_ids}
        for study_id, key, text in rows:
            if study_id in found:
                found[study_id].update(_or(functools.partial(_attribute, key, text), _mark))
        return found

    def _attributes(self, model: Any, owner_id: int) -> dict[str, Any]:
        """Attributes of a trial or study that can be read, with the mark `DAMAGED` for those that cannot.

        Args:
            model: Optuna's table of attributes.
            owner_id: id of the trial or study.
        """
        owner = model.trial_id if hasattr(model, "trial_id") else model.study_id
        (key,) = model.__mapper__.primary_key
        found = _mark()
        for each in _or(lambda: self._all(select(key).where(owner == owner_id)), list):
            row = select(model.key, model.value_json).where(key == each)
            for name, text in _or(functools.partial(self._rows, row), list):
                found.update(_or(functools.partial(_attribute, name, text), dict))
        return found

    def _all(self, query: Select[Any]) -> list[Any]:
        return [value for (value,) in self._rows(query)]

    def _rows(self, query: Select[Any]) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(query))


def _attribute(key: str, text: str) -> dict[str, Any]:
    return {key: parse_json(text)}


def _mark() -> dict[str, Any]:
    return {DAMAGED: True}


def _or(read: Callable[[], _Read], read_apart: Callable[[], _Read]) -> _Read:
    """Result of `read()`, or of `read_apart()` if `read()` fails because of a damaged record."""
    try:
        return read()
    except Exception as error:
        if not _is_damage(error):
            raise
    return read_apart()


def _is_damage(error: BaseException) -> bool:
    """Whether an error comes from a damaged record, not from a lost connection or a missing record."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DBAPIError):
            return _is_corrupt(cause.orig)
        cause = cause.__cause__
    return isinstance(error, (*UNREADABLE, AssertionError)) and error.args != (_NOT_FOUND,)


def _is_corrupt(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return sqlite_code(error) == SQLITE_CORRUPT or _UNDECODABLE in str(error)
    return str(getattr(error, "sqlstate", "")).startswith(_CORRUPT_STATE)
