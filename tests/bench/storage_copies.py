"""A storage filled with copies of a real study and its real trial, row by row or line by line.

Optuna writes a trial in tens of statements; ten thousand of them would take longer than what is to
be measured.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, create_engine, func, insert, select, text

_OF_STUDY = ("study_directions", "study_user_attributes", "study_system_attributes")
_OF_TRIAL = ("trial_params", "trial_values", "trial_user_attributes", "trial_system_attributes")
_CREATE_STUDY, _CREATE_TRIAL = 0, 4  # of Optuna's JournalOperation
_CHUNK = 2000


def fill(storage: str, template: str, sizes: Mapping[str, int]) -> None:
    """Adds studies like `template`, which holds one finished trial; the first batch is 1, the next 2, ….

    Args:
        sizes: trials by the name of the study; the template itself may be among them.
    """
    if storage.endswith(".journal"):
        _fill_journal(Path(storage), template, sizes)
        return
    engine = create_engine(storage.replace("postgresql://", "postgresql+psycopg://"))
    tables = MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        _Rows(connection, tables.tables).fill(template, sizes)
    engine.dispose()


def _resized(outcome: str, batch_size: int) -> str:
    return json.dumps({**json.loads(outcome), "batch_size": batch_size}, separators=(",", ":"))


class _Rows:
    def __init__(self, connection: Connection, tables: Mapping[str, Table]) -> None:
        self._connection = connection
        self._tables = tables

    def fill(self, template: str, sizes: Mapping[str, int]) -> None:
        (study,) = self._rows("studies", study_name=template)
        trials = self._rows("trials", study_id=study["study_id"])
        attributes = {name: self._rows(name, trial_id=trials[0]["trial_id"]) for name in _OF_TRIAL}
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
            for table, rows in attributes.items():
                self._insert(
                    table,
                    ({**_sized(row, n + 1), "trial_id": i} for i, n in ids.items() for row in rows),
                )
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


def _sized(row: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """A row of a trial's for another batch size."""
    if row.get("param_name") == "batch_size":
        return {**row, "param_value": float(batch_size)}
    if row.get("key") == "outcome":
        return {**row, "value_json": json.dumps(_resized(json.loads(row["value_json"]), batch_size))}
    return row


def _fill_journal(path: Path, template: str, sizes: Mapping[str, int]) -> None:
    """The template must be the journal's first study."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["op_code"] == _CREATE_STUDY
    assert lines[0]["study_name"] == template
    of_study = [line for line in lines if "study_id" in line and line["op_code"] != _CREATE_TRIAL]
    trial = _as_created(lines)
    with path.open("a") as file:
        copies = [name for name in sizes if name != template]
        for study_id, name in enumerate([template, *copies]):
            made = [{**lines[0], "study_name": name}, *({**line, "study_id": study_id} for line in of_study)]
            of_trials = (
                {**_journal_trial(trial, number + 1), "study_id": study_id}
                for number in range(1 if study_id == 0 else 0, sizes.get(name, 1))
            )
            written = itertools.chain(() if study_id == 0 else made, of_trials)
            file.writelines(json.dumps(line) + "\n" for line in written)


def _as_created(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A line that creates trial 0 as it is in the end, in place of all that made it so."""
    (made,) = [line for line in lines if line["op_code"] == _CREATE_TRIAL]
    parts = ("user_attrs", "system_attrs", "params", "distributions")
    whole = {**made, **{part: dict(made.get(part, {})) for part in parts}}
    for line in lines:
        if "trial_id" not in line:
            continue
        whole["user_attrs"].update(line.get("user_attr", {}))
        whole["system_attrs"].update(line.get("system_attr", {}))
        if "state" in line:
            whole["state"], whole["values"] = line["state"], line["values"]
            whole["datetime_complete"] = line["datetime_complete"]
    return {**whole, "value": None}


def _journal_trial(trial: dict[str, Any], batch_size: int) -> dict[str, Any]:
    attributes = trial["user_attrs"]
    return {
        **trial,
        "params": {**trial["params"], "batch_size": float(batch_size)},
        "user_attrs": {**attributes, "outcome": _resized(attributes["outcome"], batch_size)},
    }
