"""Jobs read from an SQLite database, without Optuna and SQLAlchemy, which take most of a second to import.

A list of jobs reads the attributes that it shows and no others: of an answer its gist. Whatever is not as
usual, such as a damaged record or a database that is busy, is left to `JobQueue`, which tells what is wrong.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autofit.jobs.records import JobRecord
from autofit.jobs.signing import Key
from autofit.jobs.stored.attributes import (
    ATTEMPTS,
    ENDED,
    GIST,
    JOB,
    JOB_ID,
    JOBS_STUDY,
    PACKED_RESULT,
    STATE_REASON,
    STOPPED,
    STUDY,
    record_of,
)
from autofit.study.damage import DAMAGED, UNREADABLE, Unreadable
from autofit.study.query_parts import query_parts
from autofit_workers.spec.documents import parse_json

_SQLITE = "sqlite:///"
_OPTUNAS_SCHEMA = 12  # of Optuna's tables since its version 1.0, as the table `version_info` has it
_LISTED = (JOB, ATTEMPTS, STATE_REASON, STOPPED, GIST, STUDY, ENDED, DAMAGED)
_ENDED_WITH_ANSWER = ("COMPLETE", "FAIL")


def listed_jobs(storage: str | None, *, key: Key | None, newest: int | None = None) -> list[JobRecord] | None:
    """Jobs of a storage, in the order in which they were enqueued; None where `JobQueue` has to read them.

    Args:
        storage: database URL or path of a journal.
        key: secret with which the jobs have to be signed; None if they need not be.
        newest: number of jobs, of which the last are read; None for all.
    """
    path = _file_of(storage)
    if path is None:
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            return _Reading(database, key).jobs(newest)
    except (sqlite3.Error, *UNREADABLE):
        return None


def _file_of(storage: str | None) -> Path | None:
    """Path of the file of an SQLite database; None for another storage, and for a URL with options."""
    if storage is None or not storage.startswith(_SQLITE) or "?" in storage:
        return None
    name = storage.removeprefix(_SQLITE)
    return Path(name).absolute() if name and not name.startswith((":", "file:")) else None


class _Reading:
    """One reading of the jobs in a database; raises one of `UNREADABLE` for what is not as usual.

    Args:
        database: open database, with Optuna's tables.
        key: secret with which the jobs have to be signed, or None.
    """

    def __init__(self, database: sqlite3.Connection, key: Key | None) -> None:
        self._database = database
        self._key = key

    def jobs(self, newest: int | None) -> list[JobRecord]:
        """Jobs by age: all, or the `newest` of them."""
        self._database.execute("BEGIN")  # all queries see the same moment
        [(schema,)] = self._rows("SELECT schema_version FROM version_info")
        if schema != _OPTUNAS_SCHEMA:
            raise ValueError("the tables are of another version of Optuna")
        wanted = self._wanted(newest)
        attributes = self._attributes(list(wanted), _LISTED)
        without_gist = [
            trial_id
            for trial_id, (_, _, state, _) in wanted.items()
            if state in _ENDED_WITH_ANSWER and GIST not in attributes[trial_id]
        ]
        for trial_id, found in self._attributes(without_gist, (PACKED_RESULT,)).items():
            attributes[trial_id].update(found)
        return [
            record_of(
                {JOB_ID: job_id, **attributes[trial_id]},
                number=number,
                state=state,
                claimed_seconds=None if began is None else datetime.fromisoformat(began).timestamp(),
                key=self._key,
                note=_raise,
            )
            for trial_id, (job_id, number, state, began) in wanted.items()
        ]

    def _wanted(self, newest: int | None) -> dict[int, tuple[str, int, str, str | None]]:
        """Job id, number, state and start of the trials that store jobs, by trial id; see `JobQueue`."""
        rows = self._rows(
            "SELECT t.trial_id, a.value_json, t.number, t.state, t.datetime_start FROM trials t "
            "JOIN studies s ON s.study_id = t.study_id AND s.study_name = ? "
            "LEFT JOIN trial_user_attributes a ON a.trial_id = t.trial_id AND a.key = ? ORDER BY t.trial_id",
            (JOBS_STUDY, JOB_ID),
        )
        firsts: dict[str, tuple[Any, ...]] = {}
        for trial_id, text, *others in rows:
            firsts.setdefault(text, (trial_id, *others))
        wanted = {}
        chosen = list(firsts.items())[0 if newest is None else -newest :]
        for text, (trial_id, number, state, began) in chosen:
            job_id = parse_json(text)
            if not isinstance(job_id, str) or not isinstance(number, int):
                raise ValueError("a job has no id or number")  # noqa: TRY004 - the file's fault
            wanted[trial_id] = (job_id, number, state, began)
        return wanted

    def _attributes(self, trial_ids: Sequence[int], names: Iterable[str]) -> dict[int, dict[str, Any]]:
        """Attributes with these names, by trial id and name."""
        found: dict[int, dict[str, Any]] = {trial_id: {} for trial_id in trial_ids}
        names = tuple(names)
        for some in query_parts(trial_ids):
            query = (
                "SELECT trial_id, key, value_json FROM trial_user_attributes "  # noqa: S608 - marks alone
                f"WHERE trial_id IN ({_marks(some)}) AND key IN ({_marks(names)})"
            )
            for trial_id, name, text in self._rows(query, (*some, *names)):
                found[trial_id][name] = parse_json(text)
        return found

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        return self._database.execute(query, values).fetchall()


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _raise(left_aside: Unreadable) -> None:
    raise ValueError(str(left_aside))
