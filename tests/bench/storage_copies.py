"""A storage filled with copies of a real study and its real trial, or of jobs, row by row or line by line.

The trials of a study go through its settings, nine sizes of each, as a search does.

Optuna writes a trial in tens of statements; ten thousand of them would take longer than what is to
be measured.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, create_engine, func, insert, select, text

from autofit.jobs.stored.attributes import ATTEMPTS, JOB_ID, JOBS_STUDY, MARK
from autofit_workers.spec.pythons import Self

_OF_STUDY = ("study_directions", "study_user_attributes", "study_system_attributes")
_OF_TRIAL = ("trial_params", "trial_values", "trial_user_attributes", "trial_system_attributes")
_CREATE_STUDY, _CREATE_TRIAL = 0, 4  # of Optuna's JournalOperation
_CHUNK = 2000
_SIZES = 9  # of each setting
_BATCH_SIZE = "batch_size"


def fill(storage: str, template: str, sizes: Mapping[str, int]) -> None:
    """Adds studies like `template`, which holds one finished trial; the first batch is 1, the next 2, ….

    Args:
        sizes: trials by the name of the study; the template itself may be among them.
    """
    if storage.endswith(".journal"):
        _fill_journal(Path(storage), template, sizes)
        return
    with _rows_of(storage) as rows:
        rows.fill(template, sizes)


def fill_jobs(storage: str, copies: Mapping[str, int]) -> None:
    """Adds jobs like those of a queue that holds one job for each id.

    Args:
        copies: number of copies by the id of the job; theirs end in -000000, -000001, ….
    """
    if storage.endswith(".journal"):
        _fill_journal_with_jobs(Path(storage), copies)
        return
    with _rows_of(storage) as rows:
        rows.fill_jobs(copies)


@dataclass(frozen=True)
class _Configuration:
    """What a copy tries, made from its number.

    Attributes:
        params: as Optuna keeps them: of a categorical one the index of its choice.
        outcome: the parts of the outcome's document that follow.
    """

    params: dict[str, float]
    outcome: dict[str, Any]

    @classmethod
    def of(cls, number: int, distributions: Mapping[str, str]) -> Self:
        setting, size = divmod(number, _SIZES)
        params, knobs = {_BATCH_SIZE: float(size + 1)}, {}
        for name, distribution in distributions.items():
            if name != _BATCH_SIZE:
                choices = json.loads(distribution)["attributes"]["choices"]
                setting, index = divmod(setting, len(choices))
                params[name], knobs[name] = float(index), choices[index]
        return cls(params, {"batch_size": size + 1, "knobs": knobs})

    def told(self, outcome: str) -> str:
        document = json.loads(outcome)
        knobs = {**document["knobs"], **self.outcome["knobs"]}
        return json.dumps({**document, **self.outcome, "knobs": knobs}, separators=(",", ":"))


class _Rows:
    def __init__(self, connection: Connection, tables: Mapping[str, Table]) -> None:
        self._connection = connection
        self._tables = tables

    def fill(self, template: str, sizes: Mapping[str, int]) -> None:
        (study,) = self._rows("studies", study_name=template)
        trials = self._rows("trials", study_id=study["study_id"])
        attributes = {name: self._rows(name, trial_id=trials[0]["trial_id"]) for name in _OF_TRIAL}
        distributions = {row["param_name"]: row["distribution_json"] for row in attributes["trial_params"]}
        next_trial = self._highest("trials", "trial_id") + 1
        for name, num_trials in sizes.items():
            study_id, first = (
                (study["study_id"], len(trials)) if name == template else (self._copy(study, name), 0)
            )
            ids = {next_trial + number: number for number in range(first, num_trials)}
            next_trial += num_trials
            self._insert(
                "trials",
                ({**trials[0], "trial_id": i, "study_id": study_id, "number": n} for i, n in ids.items()),
            )
            tried = {i: _Configuration.of(n, distributions) for i, n in ids.items()}
            for table, rows in attributes.items():
                self._insert(table, ({**_copied(row, tried[i]), "trial_id": i} for i in ids for row in rows))
        self._advance("trials", "trial_id")

    def fill_jobs(self, copies: Mapping[str, int]) -> None:
        (study,) = self._rows("studies", study_name=JOBS_STUDY)
        trials = self._rows("trials", study_id=study["study_id"])
        next_trial, number = self._highest("trials", "trial_id") + 1, len(trials)
        for trial in trials:
            attributes = {name: self._rows(name, trial_id=trial["trial_id"]) for name in _OF_TRIAL}
            job_id = _job_id(attributes["trial_user_attributes"])
            new = {next_trial + i: f"{job_id}-{i:06}" for i in range(copies[job_id])}
            self._insert(
                "trials", ({**trial, "trial_id": i, "number": number + n} for n, i in enumerate(new))
            )
            for table, rows in attributes.items():
                self._insert(table, ({**_renamed(row, new[i]), "trial_id": i} for i in new for row in rows))
            next_trial, number = next_trial + len(new), number + len(new)
        self._advance("trials", "trial_id")

    def _copy(self, study: dict[str, Any], name: str) -> int:
        table = self._tables["studies"]
        made = self._connection.execute(insert(table).values(study_name=name)).inserted_primary_key
        assert made is not None
        study_id = int(made[0])
        for of_study in _OF_STUDY:
            rows = self._rows(of_study, study_id=study["study_id"])
            self._insert(of_study, ({**row, "study_id": study_id} for row in rows))
        return study_id

    def _rows(self, name: str, **where: Any) -> list[dict[str, Any]]:
        """Rows without their own key, which the database gives again; trials keep theirs."""
        table = self._tables[name]
        found = self._connection.execute(select(table).filter_by(**where)).mappings()
        own = {"studies": set(), "trials": set()}.get(name, {column.name for column in table.primary_key})
        return [{key: value for key, value in row.items() if key not in own} for row in found]

    def _insert(self, name: str, rows: Iterator[dict[str, Any]]) -> None:
        found = list(rows)
        for start in range(0, len(found), _CHUNK):
            self._connection.execute(insert(self._tables[name]), found[start : start + _CHUNK])

    def _highest(self, name: str, column: str) -> int:
        return int(self._connection.execute(select(func.max(self._tables[name].c[column]))).scalar_one())

    def _advance(self, name: str, column: str) -> None:
        if self._connection.dialect.name == "postgresql":
            highest = self._highest(name, column)
            self._connection.execute(
                text(f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), {highest})")
            )


def _copied(row: dict[str, Any], configuration: _Configuration) -> dict[str, Any]:
    """A row of a trial's, for another configuration."""
    if "param_name" in row:
        return {**row, "param_value": configuration.params[row["param_name"]]}
    if row.get("key") == "outcome":
        return {**row, "value_json": json.dumps(configuration.told(json.loads(row["value_json"])))}
    return row


def _job_id(attributes: Iterable[Mapping[str, Any]]) -> str:
    (found,) = [json.loads(row["value_json"]) for row in attributes if row["key"] == JOB_ID]
    return str(found)


def _renamed(row: dict[str, Any], job_id: str) -> dict[str, Any]:
    """Row of a job's trial, for a job with another id, which is also the mark of its process."""
    if row.get("key") not in (JOB_ID, MARK, ATTEMPTS):
        return row
    value = _with_id({row["key"]: json.loads(row["value_json"])}, job_id)[row["key"]]
    return {**row, "value_json": json.dumps(value)}


def _with_id(attributes: Mapping[str, Any], job_id: str) -> dict[str, Any]:
    """Attributes of a job with another id; its drivers are named after it and their number."""
    named = {name: job_id for name in (JOB_ID, MARK) if name in attributes}
    if ATTEMPTS in attributes:
        named[ATTEMPTS] = [
            {**attempt, "submission_id": f"{job_id}.{number}"}
            for number, attempt in enumerate(attributes[ATTEMPTS], 1)
        ]
    return {**attributes, **named}


@contextlib.contextmanager
def _rows_of(storage: str) -> Iterator[_Rows]:
    """Rows of a database, in one transaction."""
    engine = create_engine(storage.replace("postgresql://", "postgresql+psycopg://"))
    tables = MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        yield _Rows(connection, tables.tables)
    engine.dispose()


def _fill_journal_with_jobs(path: Path, copies: Mapping[str, int]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    trials = [line for line in lines if line["op_code"] == _CREATE_TRIAL]
    with path.open("a") as file:
        for trial_id, created in enumerate(trials):
            whole = _as_ended(created, [line for line in lines if line.get("trial_id") == trial_id])
            job_id = whole["user_attrs"][JOB_ID]
            for number in range(copies[job_id]):
                attributes = _with_id(whole["user_attrs"], f"{job_id}-{number:06}")
                file.write(json.dumps({**whole, "user_attrs": attributes}) + "\n")


def _fill_journal(path: Path, template: str, sizes: Mapping[str, int]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    studies = [line for line in lines if line["op_code"] == _CREATE_STUDY]
    trials = [line for line in lines if line["op_code"] == _CREATE_TRIAL]
    own_id = [line["study_name"] for line in studies].index(template)
    (trial_id,) = [number for number, line in enumerate(trials) if line["study_id"] == own_id]
    of_study = [line for line in lines if line.get("study_id") == own_id and line["op_code"] != _CREATE_TRIAL]
    trial = _as_ended(trials[trial_id], [line for line in lines if line.get("trial_id") == trial_id])
    copies = {name: len(studies) + number for number, name in enumerate(n for n in sizes if n != template)}
    with path.open("a") as file:
        for name, num_trials in sizes.items():
            study_id = copies.get(name, own_id)
            if name != template:
                made = [{**studies[own_id], "study_name": name}]
                made += [{**line, "study_id": study_id} for line in of_study]
                file.writelines(json.dumps(line) + "\n" for line in made)
            for number in range(1 if name == template else 0, num_trials):
                file.write(json.dumps({**_journal_trial(trial, number), "study_id": study_id}) + "\n")


def _as_ended(created: dict[str, Any], later: list[dict[str, Any]]) -> dict[str, Any]:
    """A line that creates a trial as it is in the end, in place of all that made it so."""
    parts = ("user_attrs", "system_attrs", "params", "distributions")
    whole = {**created, **{part: dict(created.get(part, {})) for part in parts}, "value": None}
    for line in later:
        whole["user_attrs"].update(line.get("user_attr", {}))
        whole["system_attrs"].update(line.get("system_attr", {}))
        if "state" in line:
            parts = ("state", "values", "datetime_start", "datetime_complete")
            whole.update({part: line[part] for part in parts if part in line})
    return whole


def _journal_trial(trial: dict[str, Any], number: int) -> dict[str, Any]:
    configuration = _Configuration.of(number, trial["distributions"])
    attributes = trial["user_attrs"]
    return {
        **trial,
        "params": configuration.params,
        "user_attrs": {**attributes, "outcome": configuration.told(attributes["outcome"])},
    }
