"""The roles of `deploy/postgres/` on a real server: what each may do, and what it may not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from autofit.cli import main
from autofit.errors import StorageDeniedError
from autofit.jobs import packages
from autofit.jobs.queue import JobQueue, JobSpec, JobState
from tests.autofit.serve.searches import Reading, open_search, tell
from tests.deploy.database_page import SUPERUSER, Block, Server
from tests.postgres import running_postgres

pytestmark = pytest.mark.process

SPEC = JobSpec(options={"model": "davenet", "gpu-mem": "16G"}, workload="davenet")
ANSWER = {"schema": "autofit.tune/1", "best": None}
TABLES = (
    *("studies", "study_directions", "study_user_attributes", "study_system_attributes", "trials"),
    *("trial_user_attributes", "trial_system_attributes", "trial_params", "trial_values"),
    *("trial_intermediate_values", "trial_heartbeats", "version_info", "alembic_version"),
)
LOGINS = {
    "rita": "autofit_reader",
    "sam": "autofit_submitter",
    "sue": "autofit_submitter",
    "dora": "autofit_driver",
}

UrlOf = Callable[[str], str]


@pytest.fixture(scope="module", params=[SUPERUSER, "admin"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server on which the page was followed, by a superuser or by an ordinary administrator."""
    with running_postgres() as postgres:
        started = Server(postgres, request.param)
        started.follow()
        for login, role in LOGINS.items():
            started.follow(Block("sql", f"CREATE ROLE {login} LOGIN IN ROLE {role}"))
        yield started


@pytest.fixture
def url_of(server: Server) -> UrlOf:
    """The storage as one of the logins has it, without the name of a driver, for psycopg too."""
    return lambda login: server.url_of(login).replace("+psycopg", "")


@pytest.fixture
def as_driver(url_of: UrlOf) -> Iterator[JobQueue]:
    with JobQueue.open(url_of("dora")) as queue:
        yield queue


def run(url: str, *statements: str) -> int:
    """Runs SQL past all of autofit, in one transaction; returns how many rows the last one changed."""
    with contextlib.closing(psycopg.connect(url)) as connection, connection.transaction():
        return [connection.execute(statement.encode()).rowcount for statement in statements][-1]


def is_denied(url: str, *statements: str) -> bool:
    """Whether one is refused for want of a right, or the last meets no row that it may change."""
    try:
        return run(url, *statements) == 0
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.CheckViolation):
        return True


def test_a_driver_does_all_that_jobs_and_searches_need(as_driver: JobQueue, url_of: UrlOf) -> None:
    as_driver.enqueue("driven", SPEC)
    while (claimed := as_driver.claim_next()) is not None:
        job = as_driver.record_attempt(claimed, f"{claimed.job_id}.1")
        assert as_driver.finish(job, ANSWER)
    for fresh in (False, True):
        with open_search(url_of("dora"), name="driven", fresh=fresh) as study:
            tell(study, study.ask())
            assert study.num_trials == 1


def test_a_driver_changes_no_table(url_of: UrlOf) -> None:
    assert is_denied(url_of("dora"), "CREATE TABLE mine (id integer)")
    assert is_denied(url_of("dora"), "UPDATE alembic_version SET version_num = 'x'")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
        run(url_of("dora"), "ALTER TABLE trials DISABLE ROW LEVEL SECURITY")


def test_a_reader_reads_all_and_writes_nothing(
    as_driver: JobQueue, url_of: UrlOf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_driver.enqueue("read", SPEC)
    with open_search(url_of("dora"), name="read") as study:
        tell(study, study.ask())
    monkeypatch.setenv("AUTOFIT_STORAGE", url_of("rita"))
    assert main(["jobs", "--json"]) == 0
    assert "read" in [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]]
    reading = Reading(url_of("rita"))
    assert reading.read()["trials_total cuda FITS"] >= 1
    reading.close()
    with JobQueue.open(url_of("rita")) as queue:
        with pytest.raises(StorageDeniedError, match=r"does not allow its user .* deploy/README\.md"):
            queue.enqueue("mine", SPEC)
        with pytest.raises(StorageDeniedError):
            queue.claim_next()
    for table in TABLES:
        assert is_denied(url_of("rita"), f"DELETE FROM {table}"), table
        assert is_denied(url_of("rita"), f"INSERT INTO {table} DEFAULT VALUES"), table
    assert is_denied(url_of("rita"), "UPDATE trials SET state = 'COMPLETE'")
    assert is_denied(url_of("rita"), "UPDATE trial_user_attributes SET value_json = '1'")


def test_a_submitter_adds_jobs_and_their_code(url_of: UrlOf, as_driver: JobQueue, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    package = packages.pack(tmp_path, [tmp_path / "train.py"])
    with JobQueue.open(url_of("sam")) as queue:
        folder = packages.store(queue.storage, package)
        assert packages.store(queue.storage, package) == folder
        job, is_new = queue.enqueue("submitted", JobSpec(options={}, workload="w", working_dir=folder))
        assert (is_new, job.state) == (True, JobState.QUEUED)
        assert queue.enqueue("submitted", job.spec) == (job, False)
        assert queue.enqueue("submitted", job.spec, again=True)[0].job_id == "submitted-2"
    assert packages.load(as_driver.storage, folder) == package


def test_a_submitter_changes_nothing_that_is_there(url_of: UrlOf, as_driver: JobQueue) -> None:
    with JobQueue.open(url_of("sue")) as queue:
        queue.enqueue("others", SPEC)
    before = as_driver.record("others")
    assert before is not None
    with JobQueue.open(url_of("sam")) as queue:
        with pytest.raises(StorageDeniedError):
            queue.claim_next()
        for change in (
            lambda: queue.give_up(before, "because"),
            lambda: queue.finish(before, ANSWER),
            lambda: queue.request_stop(before),
            lambda: queue.record_attempt(before, "others.1"),
        ):
            with pytest.raises(StorageDeniedError):
                change()
    for table in TABLES:
        assert is_denied(url_of("sam"), f"DELETE FROM {table}"), table
    for statement in (
        "UPDATE trials SET state = 'COMPLETE'",
        "UPDATE trials SET number = 7",
        "UPDATE trial_user_attributes SET value_json = '{}'",
        "UPDATE studies SET study_name = 'mine'",
        "INSERT INTO studies (study_name) VALUES ('anything')",
        "INSERT INTO trial_user_attributes (trial_id, key, value_json) "
        "SELECT trial_id, 'packed_result', '1' FROM trials",
        "INSERT INTO trial_values (trial_id, objective, value, value_type) "
        "SELECT trial_id, 3, 1, 'FINITE' FROM trials",
        "INSERT INTO study_directions (study_id, direction, objective) "
        "SELECT study_id, 'MAXIMIZE', 1 FROM studies",
        "INSERT INTO study_user_attributes (study_id, key, value_json) "
        "SELECT study_id, 'x', '1' FROM studies",
    ):
        assert is_denied(url_of("sam"), statement), statement
    assert as_driver.record("others") == before


def test_a_submitter_leaves_no_half_of_a_trial_and_takes_no_others_number(
    url_of: UrlOf, as_driver: JobQueue
) -> None:
    as_driver.enqueue("numbered", SPEC)
    half = (
        "INSERT INTO trials (study_id, state) SELECT study_id, 'RUNNING' FROM studies "
        "WHERE study_name = 'autofit-jobs'"
    )
    for ending in ("", "; UPDATE trials SET state = 'WAITING', number = 0 WHERE number IS NULL"):
        with pytest.raises(psycopg.errors.CheckViolation, match="is not numbered in its order"):
            run(url_of("sam"), half + ending)


def test_a_submitters_own_tables_stand_for_none_of_autofit(url_of: UrlOf, as_driver: JobQueue) -> None:
    as_driver.enqueue("believed", SPEC)
    before = as_driver.record("believed")
    own = (
        "CREATE TEMP TABLE trials AS SELECT trial_id, study_id, NULL::int AS number FROM trials",
        "CREATE TEMP TABLE studies AS SELECT study_id, 'autofit-jobs'::text AS study_name FROM studies",
    )
    for first in ("", "pg_temp, "):
        path = f"SET search_path = {first}public"
        for statement in (
            "UPDATE public.trial_user_attributes SET value_json = '{}'",
            "INSERT INTO public.trial_user_attributes (trial_id, key, value_json) "
            "SELECT trial_id, 'packed_result', '1' FROM public.trials",
            "INSERT INTO public.trial_values (trial_id, objective, value, value_type) "
            "SELECT trial_id, 3, 1, 'FINITE' FROM public.trials",
            "INSERT INTO public.trials (study_id, state) SELECT study_id, 'RUNNING' FROM public.studies",
        ):
            assert is_denied(url_of("sam"), *own, path, statement), statement
    assert as_driver.record("believed") == before
