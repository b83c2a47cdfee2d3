"""Storages with damaged bytes: a page, a line, a text that is none; the records beside them are read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from autofit.errors import StorageError
from autofit.study.damage import DAMAGED, NewerError, UnreadableError, require_schema
from autofit.study.feed import TrialFeed
from autofit.study.storage import Storage, open_storage, quiet_optuna
from autofit.study.study import TuningStudy
from autofit_workers.spec.plain import from_plain

NUM_TRIALS = 200
_TEXT = "x" * 400  # so that a page has few


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "mine.journal"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


def filled(url: str, num_trials: int = NUM_TRIALS) -> None:
    with quiet_optuna():
        storage = open_storage(url, "mine")
        study = storage.backend.create_new_study([StudyDirection.MAXIMIZE], "mine")
        for number in range(num_trials):
            attributes = {"number": number, "text": _TEXT}
            storage.backend.create_new_trial(study, create_trial(value=1.0, user_attrs=attributes))
        storage.close()


def read(url: str) -> dict[int, dict[str, Any]]:
    """The attributes of the trials that can be read whole, by number; every trial is there."""
    with quiet_optuna():
        storage = open_storage(url, "mine")
        try:
            return _whole(storage)
        finally:
            storage.close()


def _whole(storage: Storage) -> dict[int, dict[str, Any]]:
    backend = storage.backend
    trials = storage.run(lambda: backend.get_all_trials(backend.get_study_id_from_name("mine")))
    assert [trial.number for trial in trials] == list(range(NUM_TRIALS))
    for trial in trials:
        found = backend.get_trial_id_from_study_id_trial_number(
            backend.get_study_id_from_name("mine"), trial.number
        )
        assert found == trial._trial_id
    return {trial.number: trial.user_attrs for trial in trials if DAMAGED not in trial.user_attrs}


@pytest.mark.parametrize("table", ["trial_user_attributes", "trials"])
def test_a_damaged_page_of_sqlite_costs_the_trials_on_it(database: Path, table: str) -> None:
    url = f"sqlite:///{database}"
    filled(url)
    _damage_page(database, table)
    whole = read(url)
    assert 0 < NUM_TRIALS - len(whole) < NUM_TRIALS
    assert all(attributes == {"number": number, "text": _TEXT} for number, attributes in whole.items())


@pytest.mark.parametrize("table", ["trial_user_attributes", "trials"])
def test_the_first_news_of_a_damaged_page_has_each_trial_once(database: Path, table: str) -> None:
    """It is read in pieces, some of which have the page."""
    url = f"sqlite:///{database}"
    filled(url)
    _damage_page(database, table)
    with quiet_optuna():
        storage = open_storage(url, "mine")
        news = TrialFeed(storage.backend, storage.backend.get_study_id_from_name("mine"), piece=30).news()
        storage.close()
    assert [trial.number for trial in news] == list(range(NUM_TRIALS))
    damaged = [trial for trial in news if DAMAGED in trial.user_attrs]
    assert 0 < len(damaged) < NUM_TRIALS


def test_of_a_damaged_index_of_sqlite_the_table_answers(database: Path) -> None:
    url = f"sqlite:///{database}"
    filled(url, NUM_TRIALS - 1)
    with quiet_optuna():
        storage = open_storage(url, "mine")
        study = storage.backend.get_study_id_from_name("mine")
        storage.backend.create_new_trial(study, create_trial(state=TrialState.RUNNING))
        storage.close()
    _write_over(database, *_root(database, "ix_trials_study_id"))
    whole = {number: {"number": number, "text": _TEXT} for number in range(NUM_TRIALS - 1)}
    assert read(url) == whole | {NUM_TRIALS - 1: {}}
    with quiet_optuna():
        storage = open_storage(url, "mine")
        feed = TrialFeed(storage.backend, study, piece=30)
        first, later = ([trial.number for trial in feed.news()] for _ in range(2))
        storage.close()
    assert (first, later) == (list(range(NUM_TRIALS)), [NUM_TRIALS - 1])


def _damage_page(database: Path, table: str) -> None:
    """Writes over the second leaf page of a table."""
    leaves = _leaves(database, table)
    assert len(leaves) > 1
    _write_over(database, *leaves[1])


def _write_over(database: Path, page_bytes: int, page: int) -> None:
    with database.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xa5" * page_bytes)


def _root(database: Path, name: str) -> tuple[int, int]:
    """The size of a page, and the number of the first one of a table or an index."""
    with sqlite3.connect(database) as connection:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    connection.close()
    return page_bytes, root


def _leaves(database: Path, table: str) -> list[tuple[int, int]]:
    """The leaf pages of a table, with their size: those that its first page points to."""
    page_bytes, root = _root(database, table)
    content = database.read_bytes()[(root - 1) * page_bytes : root * page_bytes]
    assert content[0] == 5, "a table of one page has no leaves"
    num_cells = int.from_bytes(content[3:5], "big")
    offsets = [int.from_bytes(content[12 + 2 * cell :][:2], "big") for cell in range(num_cells)]
    return [(page_bytes, int.from_bytes(content[offset : offset + 4], "big")) for offset in offsets]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("trial_user_attributes.value_json", b'{"a": \xff}'),
        ("trial_user_attributes.value_json", b"[" * 3000),
        ("trials.state", b"COMPLEPE"),
        ("trials.number", None),
        ("trials.datetime_start", b"2026-99-99"),
    ],
)
def test_a_damaged_value_of_sqlite_costs_its_trial(database: Path, column: str, value: bytes | None) -> None:
    url = f"sqlite:///{database}"
    filled(url)
    table, _, name = column.partition(".")
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(f"UPDATE {table} SET {name} = CAST(? AS TEXT) WHERE trial_id = 8", (value,))
    connection.close()
    assert read(url).keys() == set(range(NUM_TRIALS)) - {7}


def flip(line: bytes, place: int, bit: int) -> bytes:
    flipped = line[:place] + bytes([line[place] ^ (1 << bit)]) + line[place + 1 :]
    return flipped.replace(b"\n", b" ")


def test_a_bit_flip_anywhere_in_a_line_of_a_journal_costs_its_trial_at_most(journal: Path) -> None:
    """What is left is read at every one of its bytes; a digit that became another is seen by nobody."""
    filled(str(journal), 10)
    lines = journal.read_bytes().splitlines(keepends=True)
    target = next(number for number, line in enumerate(lines) if b'"number":7,' in line)
    line = lines[target][:-1]
    num_places = line.index(_TEXT.encode())
    num_unseen = 0
    for place in range(num_places):
        damaged = flip(line, place, place % 7)
        journal.write_bytes(b"".join([*lines[:target], damaged + b"\n", *lines[target + 1 :]]))
        whole = _numbers(journal)
        assert whole >= set(range(10)) - {7}, damaged
        num_unseen += 7 in whole
    assert num_unseen < num_places


def _numbers(journal: Path) -> set[int]:
    """The trials that say themselves which they are, wherever they are."""
    with quiet_optuna():
        storage = open_storage(str(journal), "mine")
        trials = storage.backend.get_all_trials(0, deepcopy=False)
        for trial in trials:
            assert storage.backend.get_trial(trial._trial_id).number == trial.number
        return {trial.user_attrs.get("number") for trial in trials if DAMAGED not in trial.user_attrs}


def test_what_was_appended_to_half_a_line_is_read(journal: Path) -> None:
    """A process was killed while it wrote, and another that had the journal open went on."""
    filled(str(journal), 10)
    with quiet_optuna():
        storage = open_storage(str(journal), "mine")
        with journal.open("ab") as file:
            file.write(b'{"op_code":8,"worker_id":"gone","trial_id":3,"user_attr":{"te')
        storage.backend.create_new_trial(0, create_trial(state=TrialState.WAITING))
        assert len(storage.backend.get_all_trials(0)) == 11
    assert len(_numbers(journal)) == 11  # the last has no number among its attributes


def test_a_study_whose_settings_are_damaged_is_not_continued_but_may_be_begun_anew(
    open_study: Callable[..., TuningStudy], database: Path
) -> None:
    url = f"sqlite:///{database}"
    open_study(storage=url).close()
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("UPDATE study_user_attributes SET value_json = '{' WHERE key = 'autofit_settings'")
    connection.close()
    with pytest.raises(StorageError, match="is damaged: start it over with --fresh"):
        open_study(storage=url)
    assert open_study(storage=url, fresh=True).ask() is not None


@pytest.mark.parametrize("schema", [None, "1", 0, [1]])
def test_a_schema_that_is_no_number_is_damage(schema: object) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"):
        require_schema({"schema": schema}, 1)
    with pytest.raises(NewerError, match="was written by a newer version"):
        require_schema({"schema": 2}, 1)
    require_schema({}, 1)


@pytest.mark.parametrize(
    ("kind", "value"), [(int, True), (int, 1.5), (float, True), (float, "1"), (str, None)]
)
def test_a_plain_value_of_another_type_is_refused(kind: type, value: object) -> None:
    with pytest.raises(ValueError, match=f"not a valid {kind.__name__}"):
        from_plain(kind, value)
