"""A storage that goes away and comes back: what is served meanwhile, and what the operator is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry

from autofit.errors import StorageError, UsageError
from autofit.serve.metrics import Metrics
from autofit.serve.reader import StorageReader
from autofit.serve.watch import StorageWatch
from tests.autofit.serve.searches import open_search, tell
from tests.postgres import Postgres, running_postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


class Watched:
    """A watch on a storage, its registry, and what it said."""

    def __init__(self, read: Callable[[], None], counted: CollectorRegistry | None = None) -> None:
        self.read_storage = read
        self.registry = CollectorRegistry()
        self.said: list[str] = []
        self.seconds = 0.0
        self.watch = StorageWatch(
            self,
            registry=self.registry,
            on_first_read=lambda: counted and self.registry.register(counted),
            log=self.said.append,
            clock=lambda: self.seconds,
        )

    def read(self) -> None:
        self.read_storage()

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"autofit_{name}", labels)


@pytest.mark.process
def test_a_database_that_is_stopped_and_started_again(postgres: Postgres) -> None:
    storage = postgres.new_database("autofit")
    counted = CollectorRegistry()
    said: list[str] = []
    reader = StorageReader(storage, emit=Metrics(counted), log=said.append)
    watched = Watched(reader.read, counted)
    fits = {"probe": "cuda", "verdict": "FITS"}
    with open_search(storage) as study:
        tell(study, study.ask())
        watched.watch.read()
        assert (watched.sample("storage_up"), watched.sample("trials_total", **fits)) == (1, 1)
        read_at = watched.sample("storage_read_timestamp_seconds")
        postgres.stop("immediate")
        for _ in range(3):
            watched.watch.read()
        assert (watched.sample("storage_up"), watched.sample("trials_total", **fits)) == (0, 1)
        assert watched.sample("storage_read_timestamp_seconds") == read_at
        assert watched.watch.why_not_ready() == "the storage cannot be read"
        postgres.start()
        tell(study, study.ask())
        watched.watch.read()
    assert (watched.sample("storage_up"), watched.sample("trials_total", **fits)) == (1, 2)
    assert watched.watch.why_not_ready() is None
    gone, back = watched.said
    assert gone.startswith("the storage cannot be read, trying again: ")
    assert "password" not in gone
    assert back == "the storage can be read again"
    assert said == []
    reader.close()


def test_nothing_is_counted_before_everything_was_read() -> None:
    """Else a count that grows to what it was before a restart would look like new trials."""
    failures = [StorageError("it is not there")]

    def read() -> None:
        if failures:
            raise failures.pop()

    counted = CollectorRegistry()
    Metrics(counted)
    watched = Watched(read, counted)
    fits = {"probe": "cuda", "verdict": "FITS"}
    assert watched.watch.why_not_ready() == "the storage has not been read yet"
    watched.watch.read()
    assert (watched.sample("storage_up"), watched.sample("trials_total", **fits)) == (0, None)
    watched.watch.read()
    assert (watched.sample("storage_up"), watched.sample("trials_total", **fits)) == (1, 0)


def test_a_storage_that_never_answers_is_a_reason_to_start_again() -> None:
    watched = Watched(lambda: None)
    watched.seconds += 299
    assert watched.watch.why_stuck() is None
    watched.seconds += 10
    assert watched.watch.why_stuck() == "the storage has not answered for 309 s"
    watched.watch.read()
    assert watched.watch.why_stuck() is None


def raising(error: Exception) -> Callable[[], None]:
    def read() -> None:
        raise error

    return read


def test_what_no_patience_mends_is_raised() -> None:
    missing = StorageError("psycopg is not installed")
    missing.__cause__ = ImportError("psycopg")
    for error in (missing, UsageError("no such storage")):
        with pytest.raises(type(error)):
            Watched(raising(error)).watch.read()
