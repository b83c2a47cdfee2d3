"""What a reader makes of real storages, in which searches are written while it reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest

from autofit.errors import StorageError, UsageError
from autofit.jobs.queue import JobQueue
from autofit.jobs.records import JobSpec
from autofit.paths import studies_dir
from autofit.study.search_record import OPENED
from autofit.study.search_record import RECOMMENDED as RECOMMENDED_ATTRIBUTE
from autofit.study.storage import open_storage, quiet_optuna
from autofit_workers.spec.protocol import Verdict
from tests.autofit.serve.searches import BUDGET_BYTES, GIB, Reading, open_search, search_elsewhere, tell
from tests.postgres import Postgres, running_postgres

FITS = "trials_total cuda FITS"
OOM = "trials_total cuda OOM"
BEST = "best_batch_size resnet50 t4 cudnn"
RECOMMENDED = "recommended_batch_size resnet50 t4 cudnn"
IN_FLIGHT = "trials_in_flight cuda"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def storage_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names a storage of a kind; the server of a database starts with the first test that wants it."""

    def name(kind: str) -> str:
        if kind == "postgresql":
            server: Postgres = request.getfixturevalue("postgres")
            return server.new_database("autofit")
        return {"journal": f"{tmp_path}/all.journal", "sqlite": f"sqlite:///{tmp_path}/all.db"}[kind]

    return name


@pytest.fixture(params=["journal", "sqlite"])
def storage(request: pytest.FixtureRequest, storage_of: Callable[[str], str]) -> str:
    return storage_of(request.param)


@pytest.fixture
def reading(storage: str) -> Iterator[Reading]:
    reading = Reading(storage)
    yield reading
    reading.close()


@pytest.mark.process
@pytest.mark.parametrize("kind", ["journal", "sqlite", "postgresql"])
def test_a_search_of_another_process_shows_as_it_goes_on_and_after_a_restart(
    kind: str, storage_of: Callable[[str], str]
) -> None:
    storage = storage_of(kind)
    search = search_elsewhere(storage)
    assert search.stdout is not None
    started_seconds = float(search.stdout.readline())
    reading = Reading(storage)
    during = reading.read()
    assert (during[FITS], during[IN_FLIGHT]) == (2, 1)
    assert (during["workers busy"], during["workers idle"]) == (1, 3)
    assert during["oldest_trial_start_timestamp_seconds"] == started_seconds
    assert reading.read() == during

    search.communicate("go on\n", timeout=60)
    after = reading.read()
    assert (after[FITS], after[OOM], after["oom_total cuda"]) == (2, 1, 1)
    assert after["trial_duration_seconds_count cuda"] == 3
    assert IN_FLIGHT not in after
    assert after["budget_bytes resnet50 t4"] == BUDGET_BYTES
    assert after["budget_utilization_ratio resnet50 t4"] == pytest.approx(14 / 15)
    assert after["prediction_error_ratio resnet50 t4"] == pytest.approx(12 / 14 - 1)
    assert after["peak_memory_bytes resnet50 reserved measured"] == 14 * GIB

    again = Reading(storage)
    assert again.read() == after
    reading.close()
    again.close()


@pytest.mark.process
def test_a_trial_whose_coordinator_was_killed_is_not_under_way(storage: str, reading: Reading) -> None:
    search = search_elsewhere(storage)
    assert search.stdout is not None
    search.stdout.readline()
    assert reading.read()[IN_FLIGHT] == 1
    search.kill()
    search.communicate()
    samples = reading.read()
    assert samples[FITS] == 2
    assert not samples.keys() & {IN_FLIGHT, "workers busy", "workers idle"}


def test_what_a_search_recommends_is_read_and_told_again_when_it_is_taken_up(
    storage: str, reading: Reading
) -> None:
    with open_search(storage) as study:
        ask = study.ask()
        batch_size = tell(study, ask)
        assert RECOMMENDED not in reading.read()
        assert ask is not None
        study.recommend((ask.knobs, batch_size))
        assert reading.read()[RECOMMENDED] == batch_size
    again = Reading(storage)
    assert again.read()[RECOMMENDED] == batch_size
    again.close()
    with open_search(storage) as study:
        tell(study, study.ask())
        assert reading.read()[RECOMMENDED] == batch_size
        study.recommend(None)
        assert RECOMMENDED not in reading.read()


def test_who_tries_nothing_leaves_the_recommendation_as_it_is(storage: str, reading: Reading) -> None:
    with open_search(storage) as study:
        ask = study.ask()
        assert ask is not None
        study.recommend((ask.knobs, tell(study, ask)))
    before = reading.read()[RECOMMENDED]
    with open_search(storage) as study:
        study.recommend(None)
    assert reading.read()[RECOMMENDED] == before


def test_a_recommendation_of_another_version_is_passed_over(storage: str, reading: Reading) -> None:
    with open_search(storage) as study:
        tell(study, study.ask())
    with quiet_optuna():
        opened = open_storage(storage, "mine")
        try:
            study_id = opened.backend.get_study_id_from_name("mine")
            opened.backend.set_study_user_attr(study_id, RECOMMENDED_ATTRIBUTE, {"batch": 4})
        finally:
            opened.close()
    samples = reading.read()
    assert samples[FITS] == 1
    assert RECOMMENDED not in samples


def test_each_trial_is_counted_once_however_many_come_between_two_reads(
    storage: str, reading: Reading
) -> None:
    with open_search(storage) as study:
        tell(study, study.ask())
        assert reading.read()[FITS] == 1
        under_way = study.ask()
        assert reading.read()[IN_FLIGHT] == 1
        for _ in range(5):
            tell(study, study.ask(), verdict=Verdict.LOST)
        tell(study, under_way)
        samples = reading.read(2)
    assert (samples[FITS], samples["trials_total cuda LOST"]) == (2, 5)
    assert IN_FLIGHT not in samples


def test_a_trial_that_is_given_up_is_not_counted(storage: str, reading: Reading) -> None:
    with open_search(storage) as study:
        tell(study, study.ask())
        study.ask()
        assert reading.read()[IN_FLIGHT] == 1
    samples = reading.read()
    assert (samples[FITS], samples["trial_duration_seconds_count cuda"]) == (1, 1)
    assert IN_FLIGHT not in samples


def test_a_study_that_is_begun_anew_counts_on_and_its_answer_is_the_new_one(
    storage: str, reading: Reading
) -> None:
    with open_search(storage) as study:
        for _ in range(3):
            tell(study, study.ask(), gib=14)
        before = reading.read()
    with open_search(storage, fresh=True) as study:
        batch_size = tell(study, study.ask(), gib=13)
        after = reading.read()
    assert (before[FITS], after[FITS]) == (3, 4)
    assert before[BEST] > after[BEST] == batch_size


def test_a_study_that_is_taken_up_again_is_the_one_that_shows(storage: str, reading: Reading) -> None:
    batches = {}
    for name, gib in (("first", 14), ("second", 13)):
        with open_search(storage, name=name) as study:
            batches[name] = [tell(study, study.ask(), gib=gib) for _ in range(2 if name == "first" else 1)]
    assert reading.read()[BEST] == max(batches["second"])
    with open_search(storage, name="first") as study:
        study.ask()
        assert reading.read()[BEST] == max(batches["first"])
        again = Reading(storage)
        assert again.read() == reading.read()
        again.close()


def test_a_study_that_was_deleted_has_no_trial_under_way(storage: str, reading: Reading) -> None:
    study = open_search(storage)
    study.ask()
    assert reading.read()[IN_FLIGHT] == 1
    opened = open_storage(storage, "mine")
    optuna.delete_study(study_name="mine", storage=opened.backend)
    opened.close()
    assert IN_FLIGHT not in reading.read()
    study._asked.clear()
    study.close()


def test_what_is_no_search_is_left_aside(storage: str, reading: Reading) -> None:
    opened = open_storage(storage, "any")
    with quiet_optuna():
        for name in ("answer-0123", "somebody's"):
            study = optuna.create_study(study_name=name, storage=opened.backend)
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    opened.close()
    assert reading.read() == {}
    assert reading.said == []


def test_a_study_of_another_version_is_said_once_and_the_others_are_counted(
    storage: str, reading: Reading
) -> None:
    with open_search(storage, name="newer", settings={}) as study:
        tell(study, study.ask())
    with open_search(storage) as study:
        tell(study, study.ask())
    assert reading.read(2)[FITS] == 1
    (said,) = reading.said
    assert said == "study newer cannot be read (it lacks 'workload') and is not shown"


def test_an_outcome_of_another_version_is_said_once_and_not_counted(storage: str, reading: Reading) -> None:
    with open_search(storage) as study:
        asks = [study.ask(), study.ask()]
        for ask in asks:
            assert ask is not None
            trial_id = study._asked.pop(ask.trial_number).trial_id
            study._storage.backend.set_trial_user_attr(
                trial_id, "outcome", '{"schema":"autofit.trial-outcome/99"}'
            )
            study._storage.backend.set_trial_state_values(trial_id, optuna.trial.TrialState.FAIL)
        tell(study, study.ask())
    assert reading.read(2)[FITS] == 1
    (said,) = reading.said
    assert said.startswith("trial 0 of study mine was written by a newer version and is not shown")


def test_idle_studies_of_a_database_are_looked_at_in_turns_and_at_once_when_opened(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/all.db"
    with open_search(storage) as study, open_search(storage, name="other") as other:
        tell(study, study.ask())
        tell(other, other.ask())
        reading = Reading(storage)
        assert reading.read()[FITS] == 2
        reading.seconds += 3600
        reading.read(20)
        tell(study, study.ask())
        assert reading.read(20)[FITS] == 3
        reading.seconds += 3600
        with open_search(storage, name="other") as again:
            tell(again, again.ask())
            assert reading.read()[FITS] == 4
        reading.close()


def test_a_reader_that_starts_long_after_the_searches_knows_all_of_them_at_once(tmp_path: Path) -> None:
    storage, names = f"sqlite:///{tmp_path}/all.db", ("one", "two", "three")
    for name in names:
        with open_search(storage, name=name) as study:
            tell(study, study.ask())
    opened = open_storage(storage, "one")
    for found in opened.backend.get_all_studies():
        before = found.user_attrs[OPENED]
        hours_ago = {**before, "opened_seconds": before["opened_seconds"] - 7200}
        opened.backend.set_study_user_attr(found._study_id, OPENED, hours_ago)
    opened.close()
    reading = Reading(storage)
    assert reading.read()[FITS] == len(names)
    reading.close()


def test_jobs_are_counted_by_state(storage: str, reading: Reading) -> None:
    with JobQueue.open(storage) as queue:
        for number in range(3):
            queue.enqueue(f"job-{number}", JobSpec(options={}, workload="resnet50"))
        queue.claim_next()
        assert reading.read() == {"jobs queued": 2, "jobs running": 1}
        queue.give_up(queue.records()[0], "no driver")
        assert reading.read() == {"jobs queued": 2, "jobs failed": 1}


def test_a_job_that_the_key_has_not_signed_is_unreadable_and_not_queued(
    storage: str, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id, secret in (("unsigned", None), ("forged", "0" * 64), ("signed", "1" * 64)):
        if secret is not None:
            monkeypatch.setenv("AUTOFIT_STORAGE_KEY", secret)
        with JobQueue.open(storage) as queue:
            queue.enqueue(job_id, JobSpec(options={}, workload="resnet50"))
    assert reading.read() == {"jobs queued": 1, "unreadable_records job": 2}
    assert [said.partition(" is not signed")[0] for said in reading.said] == ["job unsigned", "job forged"]


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_a_missing_file_is_an_error_and_stays_missing(
    kind: str, storage_of: Callable[[str], str], tmp_path: Path
) -> None:
    reading = Reading(storage_of(kind))
    with pytest.raises(StorageError, match=r"all\.(journal|db) cannot be read: No such file"):
        reading.read()
    assert list(tmp_path.glob("all.*")) == []
    with open_search(storage_of(kind)) as study:
        tell(study, study.ask())
    assert reading.read()[FITS] == 1
    reading.close()


def test_a_file_that_is_locked_for_long_is_an_error_and_what_was_read_stays(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/all.db?timeout=0.1"
    reading = Reading(storage)
    with open_search(storage) as study:
        tell(study, study.ask())
    before = reading.read()
    other = sqlite3.connect(tmp_path / "all.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="database is locked"):
        reading.read()
    other.close()
    assert reading.read() == before
    reading.close()


def test_what_can_be_no_storage_is_a_wrong_option() -> None:
    with pytest.raises(UsageError, match=r"a study cannot be kept in 'studies\.csv'"):
        Reading("studies.csv").read()


def test_without_a_storage_the_journals_of_the_state_directory_are_read() -> None:
    reading = Reading(None)
    assert reading.read() == {}
    with open_search(None, name="one") as one, open_search(None, name="two", gpu="l4") as two:
        tell(one, one.ask())
        tell(two, two.ask())
        two.ask()
        samples = reading.read()
    assert (samples[FITS], samples[IN_FLIGHT]) == (2, 1)
    assert {BEST, "best_batch_size resnet50 l4 cudnn"} <= samples.keys()
    with JobQueue.open(None) as queue:
        queue.enqueue("job", JobSpec(options={}, workload="resnet50"))
    samples = reading.read()
    assert (samples[FITS], samples["jobs queued"]) == (2, 1)
    assert IN_FLIGHT not in samples
    assert Reading(None).read() == samples


def test_a_damaged_journal_is_said_once_and_the_others_are_read() -> None:
    with open_search(None) as study:
        tell(study, study.ask())
    damaged = studies_dir() / "damaged.journal"
    damaged.write_text("no journal\n")
    reading = Reading(None)
    assert reading.read(3)[FITS] == 1
    assert len(reading.said) == 1
    assert "damaged.journal" in reading.said[0]
    damaged.unlink()
    assert reading.read()[FITS] == 1
