"""A few of the random kills of `kills.py`, at moments that a seed decides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.kills import SIGNALS, TARGETS, Kill, Report, kills_of, reference, summary, try_kill
from tests.postgres import Postgres, running_postgres

# The first test waits for all of them.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

NUM_KILLS, SEED = 10, 4
KILLS = list(itertools.islice(kills_of(SEED), NUM_KILLS))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[int, Report]:
    folder = tmp_path_factory.mktemp("kills")
    normal = reference(folder / "reference")
    server: Postgres = request.getfixturevalue("postgres")

    def report(kill: Kill) -> Report:
        return try_kill(kill, normal, folder / str(kill.number), server)

    # One after another for the database, which they would take from each other.
    of_database = [kill for kill in KILLS if kill.target == "database"]
    others = [kill for kill in KILLS if kill.target != "database"]
    with ThreadPoolExecutor(2) as pool:
        ended = pool.submit(lambda: [report(kill) for kill in of_database])
        reports = [*pool.map(report, others), *ended.result()]
    return {each.kill.number: each for each in reports}


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: f"{kill.signal.name}-{kill.target}")
def test_after_a_kill_the_answer_is_the_same_and_nothing_is_lost_or_left(
    reports: dict[int, Report], kill: Kill
):
    assert reports[kill.number].problems == ()


def test_a_seed_stands_for_the_same_kills_and_every_pair_comes_equally_often():
    first, again = (list(itertools.islice(kills_of(1), 36)) for _ in range(2))
    assert first == again
    assert [kill.number for kill in first] == list(range(36))
    pairs = [(kill.target, kill.signal) for kill in first]
    assert all(pairs.count(pair) == 2 for pair in itertools.product(TARGETS, SIGNALS))
    assert {kill.moment for kill in first}.isdisjoint(
        kill.moment for kill in itertools.islice(kills_of(2), 36)
    )


def test_the_summary_counts_what_went_wrong():
    kill = next(
        kill for kill in kills_of(1) if kill.target == "coordinator" and kill.signal.name == "SIGTERM"
    )
    right = Report(kill, False, 130, 2.0, 0, ()).to_dict(1)
    wrong = Report(
        kill, False, 143, 2.0, 0, ("alive after 15 s: raylet", "the answer is 3 and not 4")
    ).to_dict(1)
    text = summary(1, [right, wrong])
    assert "same answer 1 of 2" in text
    assert "1 processes after 15 s" in text
    assert "TERM and INT: 1 of 2 in 130" in text
    assert text.endswith("1 with a problem")
