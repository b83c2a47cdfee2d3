"""The page's way from an empty server to a job, and what is said to those who leave it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psycopg
import pytest

from autofit.jobs.queue import JobQueue, JobState
from tests.deploy.database_page import PAGE, SUPERUSER, Block, Server, blocks
from tests.postgres import running_postgres
from tests.ray_cluster import RayCluster

pytestmark = pytest.mark.process

TOKEN = "a-token-of-a-test-0123456789abcdef"
# The page's steps, one after the other.
OWNER, TABLES, ROLES_AND_GRANTS, LOGIN = blocks()
CLOSE = "REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT CREATE ON SCHEMA public TO autofit"
ROLES, GRANTS = (Block("sh", line) for line in ROLES_AND_GRANTS.text.splitlines())


@pytest.fixture
def server() -> Iterator[Server]:
    """An empty one, administered by its superuser."""
    with running_postgres() as postgres:
        yield Server(postgres)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster(num_drivers=1, token=TOKEN) as started:
        started.await_started()
        yield started


def error_of(server: Server, name: str, *, user: str, database: str = "autofit") -> str:
    """What psql says of a file that it refuses, as one line."""
    refused = server.run_file(name, user=user, database=database)
    assert refused.returncode == 3  # psql's, for an error in a file
    (_, said) = re.split(r"ERROR: +", refused.stderr)  # one error
    return " ".join(said.partition("CONTEXT:")[0].split())


def one(server: Server, query: str) -> object:
    """The one value that a query finds in autofit's database."""
    url = server.url_of(SUPERUSER).replace("+psycopg", "")
    with contextlib.closing(psycopg.connect(url)) as connection:
        ((value,),) = connection.execute(query.encode()).fetchall()
        return value


@pytest.mark.parametrize("administrator", [SUPERUSER, "admin"])
def test_the_page_leads_from_an_empty_server_to_a_job(cluster: RayCluster, administrator: str) -> None:
    with running_postgres() as postgres:
        server = Server(postgres, administrator)
        server.follow()
        may = "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = 'autofit'"
        assert one(server, may) is False
        command, *_ = re.findall(r"^autofit submit .*", PAGE, re.MULTILINE)
        submitted = server.shell(
            command,
            **cluster.environment,
            RAY_API_SERVER_ADDRESS=cluster.jobs_address,
            AUTOFIT_STORAGE=server.url_of("alice"),
        )
        assert submitted.returncode == 0, submitted.stderr
        assert "they wait for `autofit serve --address`" in submitted.stderr
        server.follow(
            Block("sql", LOGIN.text.replace("alice", "dora").replace("autofit_submitter", "autofit_driver"))
        )
        with JobQueue.open(server.url_of("dora")) as queue:
            (job,) = queue.records()
            assert (f"{job.job_id}\n", job.state) == (submitted.stdout, JobState.QUEUED)
            assert queue.claim_next() is not None


def test_both_files_may_be_run_again_by_a_superuser_as_by_the_owner(server: Server) -> None:
    server.follow(OWNER, TABLES, ROLES)
    for user in (SUPERUSER, "autofit", SUPERUSER):
        for name in ("roles.sql", "grants.sql"):
            again = server.run_file(name, user=user)
            assert again.returncode == 0, again.stderr
    owners = "SELECT array_agg(DISTINCT proowner::regrole::text) FROM pg_proc WHERE proname LIKE 'autofit_%'"
    assert one(server, owners) == ["autofit"]


def test_what_a_superuser_made_of_an_earlier_file_becomes_the_owners(server: Server) -> None:
    server.follow()
    moved = server.sql("\\c autofit\nALTER FUNCTION autofit_is_created_now OWNER TO postgres")
    assert moved.returncode == 0, moved.stderr
    assert error_of(server, "grants.sql", user="autofit") == (
        "the function autofit_is_created_now(integer) belongs to another role than the tables "
        "HINT: Run grants.sql once as a superuser."
    )
    assert server.run_file("grants.sql", user=SUPERUSER).returncode == 0
    assert server.run_file("grants.sql", user="autofit").returncode == 0


def test_an_owner_who_may_make_no_roles_is_told_who_may(server: Server) -> None:
    server.follow(OWNER, TABLES)
    assert error_of(server, "roles.sql", user="autofit") == (
        "there is no role autofit_reader, and autofit may not make it HINT: Run roles.sql as a superuser, "
        "such as postgres, or as a role with CREATEROLE."
    )
    assert error_of(server, "grants.sql", user="autofit") == (
        "these roles are missing: autofit_driver, autofit_reader, autofit_submitter HINT: Let the "
        "administrator of the server run roles.sql first."
    )


def test_grants_before_the_tables_are_refused(server: Server) -> None:
    server.follow(OWNER, ROLES)
    assert error_of(server, "grants.sql", user="autofit") == (
        "the database autofit has no tables of autofit HINT: Let their owner run one command first, such as "
        "`autofit jobs`, with AUTOFIT_STORAGE."
    )


def test_nobody_but_the_owner_or_a_superuser_grants(server: Server) -> None:
    server.follow()
    assert error_of(server, "grants.sql", user="alice") == (
        "the tables of autofit belong to autofit, and alice may not grant rights on them "
        "HINT: Run grants.sql as autofit."
    )


def test_a_schema_in_which_everybody_makes_tables_is_refused(server: Server) -> None:
    """It was so before PostgreSQL 15, where the schema was the superuser's."""
    server.follow(OWNER, TABLES, ROLES)
    opened = server.sql(
        "\\c autofit\nALTER SCHEMA public OWNER TO postgres; GRANT CREATE ON SCHEMA public TO PUBLIC"
    )
    assert opened.returncode == 0, opened.stderr
    assert error_of(server, "grants.sql", user="autofit") == (
        "everybody may create tables in the schema public, and autofit may not change that "
        f"HINT: Let the owner of the schema do so: {CLOSE}"
    )
    assert one(server, "SELECT count(*) FROM pg_policies") == 0  # everything or nothing
    server.follow(Block("sql", f"\\c autofit\n{CLOSE}"), GRANTS)
