"""Studies in PostgreSQL, whose server is stopped, killed and started again in the middle."""

from __future__ import annotations

import re
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from autofit.errors import StorageError, UsageError
from autofit.search.space import SearchSpace
from autofit.study.database import parse_url, shown
from autofit.study.storage import open_storage
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict
from tests.postgres import Postgres, running_postgres

ONLY = SearchSpace(choices={"conv_algo": ("cudnn",)}, max_batch=300)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def url(server: Postgres) -> str:
    """Of a server that runs; its database is shared, so every test names its study."""
    if not server.is_running():
        server.start()
    return server.url


@pytest.fixture
def open_study(open_study: Any, url: str, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens the test's study on the server."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)[-100:].strip("-")
    return lambda **options: open_study(**{"storage": url, "name": name, "space": ONLY, **options})


@pytest.fixture
def away(server: Postgres) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Makes the server go away, and come back while something else waits for it."""
    threads = []

    def make(leave: Callable[[], object]) -> None:
        for thread in threads:
            thread.join()  # a server that leaves again while `pg_ctl` waits for it has not started, it says
        leave()
        thread = threading.Thread(target=server.start)
        thread.start()
        threads.append(thread)

    yield make
    for thread in threads:
        thread.join()
    if not server.is_running():
        server.start()


def told(study: Any) -> list[tuple[int, TrialState, bool]]:
    """Every trial of a study: its size, its state, and whether it has an outcome."""
    return [
        (trial.params["batch_size"], trial.state, "outcome" in trial.user_attrs)
        for trial in study._study.trials
    ]


@pytest.mark.process
def test_postgresql_holds_a_study(open_study: Any, run_study: Any) -> None:
    study = open_study()
    assert run_study(study, lambda _, batch: batch * 100)
    study.close()
    again = open_study()
    assert again.is_complete
    assert {boundary.largest_fitting for boundary in again.boundaries().values()} == {100}


@pytest.mark.process
@pytest.mark.parametrize("leave", ["kill", "immediate", "fast"])
def test_a_server_that_goes_away_between_two_trials_costs_nothing(
    open_study: Any, outcome_of: Any, server: Postgres, away: Any, leave: str
) -> None:
    leaving = server.kill if leave == "kill" else lambda: server.stop(leave)
    study = open_study()
    tried = []
    while (ask := study.ask()) is not None:
        if len(tried) == 1:
            away(leaving)
        study.tell(ask.trial_number, outcome_of(ask, ask.batch_size * 100))
        tried.append(ask.batch_size)
        if len(tried) == 3:
            away(leaving)
    assert told(study) == [(size, TrialState.COMPLETE, True) for size in tried]
    assert study.is_complete


class Losing:
    """A storage whose server is killed at a write, before it or right after it was committed.

    Args:
        at: which write of the study, counted from 0.
    """

    def __init__(self, backend: BaseStorage, leave: Callable[[], None], *, at: int, committed: bool) -> None:
        self._backend = backend
        self._leave = leave
        self._at = at
        self._committed = committed
        self.num_writes = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if not name.startswith(("set_", "create_")):
            return method

        def write(*arguments: Any) -> Any:
            loses = self.num_writes == self._at
            self.num_writes += 1
            if loses and self._committed:
                method(*arguments)
            if loses:
                self._leave()
                # The next use of the connection finds it dead, as if this answer had been on its way.
                self._backend.get_all_studies()
            return method(*arguments)

        return write


NUM_WRITES = 6  # of a trial that fits: asked, outcome, verdict, peak, constraint, state


@pytest.mark.process
@pytest.mark.parametrize("committed", [False, True])
def test_a_connection_lost_at_any_write_loses_no_outcome_and_tells_none_twice(
    open_study: Any, outcome_of: Any, server: Postgres, away: Any, committed: bool
) -> None:
    study = open_study(space=SearchSpace(choices={"conv_algo": ("cudnn", "native")}, max_batch=300))
    backend = study._records._backend
    tried = []
    for at in range(NUM_WRITES):
        losing = Losing(backend, lambda: away(server.kill), at=at, committed=committed)
        study._records._backend = losing
        ask = study.ask()
        study.tell(ask.trial_number, outcome_of(ask, 100))
        assert losing.num_writes > NUM_WRITES
        tried.append((ask.knobs, ask.batch_size))
    kept = [record.outcome for record in study.outcomes()]
    assert [(outcome.knobs, outcome.batch_size) for outcome in kept] == tried
    assert study.num_trials == len(tried) == len(set(tried))
    given_up = [trial for trial in study._study.trials if "outcome" not in trial.user_attrs]
    assert [trial.state for trial in given_up] == [TrialState.FAIL] * committed
    assert all(trial.state.is_finished() for trial in study._study.trials)


@pytest.mark.process
def test_a_trial_that_was_told_is_not_told_again_after_the_connection_was_lost(
    open_study: Any, outcome_of: Any
) -> None:
    study = open_study()
    ask = study.ask()
    other = open_study()
    other._end(ask.trial_number, "by somebody else")
    with pytest.raises(StorageError, match=r"trial 0 of study .* is over"):
        study.tell(ask.trial_number, outcome_of(ask, 100))


@pytest.mark.process
def test_a_server_that_stays_away_ends_the_search_with_a_storage_error_and_nothing_is_lost(
    open_study: Any, outcome_of: Any, server: Postgres
) -> None:
    study = open_study(wait_seconds=0.3)
    first = study.ask()
    study.tell(first.trial_number, outcome_of(first, 100))
    ask = study.ask()
    server.kill()
    with pytest.raises(StorageError, match=r"could not be reached for 0 s: .*run the same command") as gone:
        study.tell(ask.trial_number, outcome_of(ask, 100))
    assert gone.value.exit_code == 5
    study.close()
    server.start()
    again = open_study()
    assert [record.outcome.batch_size for record in again.outcomes()] == [first.batch_size]
    assert told(again)[1] == (ask.batch_size, TrialState.FAIL, False)  # nobody runs it any more
    assert again.ask().batch_size == ask.batch_size


@pytest.mark.process
def test_two_coordinators_on_a_server_try_nothing_twice(
    open_study: Any, outcome_of: Any, server: Postgres
) -> None:
    """Each in a thread of its own, as two drivers are."""
    studies = [open_study() for _ in range(2)]
    tried: list[tuple[Knobs, int]] = []

    def drive(study: Any) -> None:
        while not study.is_complete:
            if (ask := study.ask()) is not None:
                tried.append((ask.knobs, ask.batch_size))
                study.tell(ask.trial_number, outcome_of(ask, ask.batch_size * 100))

    threads = [threading.Thread(target=drive, args=(study,)) for study in studies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tried) == len(set(tried)) == len(studies[0].outcomes())
    assert {boundary.largest_fitting for boundary in studies[0].boundaries().values()} == {100}


@pytest.mark.process
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_many_that_open_a_new_database_at_once_make_its_tables_once(
    server: Postgres, tmp_path: Path, kind: str
) -> None:
    """As the drivers of a cluster do."""
    new = f"sqlite:///{tmp_path / 'new.db'}" if kind == "sqlite" else server.new_database("new")
    with ThreadPoolExecutor(6) as pool:
        opened = list(pool.map(lambda _: open_storage(new, "mine"), range(6)))
    for storage in opened:
        assert storage.backend.get_all_studies() == []
        storage.close()


# URLs and messages


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@127.0.0.1:1/x",
        "postgres://me:secret@127.0.0.1:1/x",
        "postgresql+psycopg://me:secret@127.0.0.1:1/x",
        "postgresql://me@127.0.0.1:1/x?password=secret",
    ],
)
def test_a_server_that_cannot_be_reached_is_named_without_its_password(url: str) -> None:
    """Nobody listens on port 1."""
    with pytest.raises(StorageError, match=r"127.0.0.1:1/x\S* cannot be reached: .*refused") as refused:
        open_storage(url, "mine")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_password_of_a_misspelt_url_is_repeated() -> None:
    with pytest.raises(UsageError, match="is not a valid database URL") as refused:
        open_storage("postgresql://me:secret/studies", "mine")
    assert "secret" not in str(refused.value)


def test_a_url_is_shown_as_it_is_written() -> None:
    assert shown(parse_url("postgresql://me:secret@db:5432/x")) == "postgresql://me:***@db:5432/x"
    assert shown(parse_url("postgresql+psycopg2://me@db/x")) == "postgresql+psycopg2://me@db/x"


def test_without_its_driver_postgresql_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageError, match=r"pip install -c constraints.txt '\.\[postgres\]'") as refused:
        open_storage("postgresql://me:secret@127.0.0.1:1/x", "mine")
    assert "secret" not in str(refused.value)


def test_a_database_that_another_process_keeps_busy_is_waited_for(
    open_study: Any, outcome_of: Any, tmp_path: Path
) -> None:
    path = tmp_path / "studies.db"
    study = open_study(storage=f"sqlite:///{path}?timeout=0", space=ONLY)
    ask = study.ask()
    other = sqlite3.connect(path, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, other.rollback)
    release.start()
    study.tell(ask.trial_number, outcome_of(ask, 100))
    release.join()
    other.close()
    assert [record.outcome.verdict for record in study.outcomes()] == [Verdict.FITS]
