"""Kills as `kills.py` makes them, of every process that a search has; several of one search, to save time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from signal import Signals

import pytest

from tests.faults.kills import SIGNALS, TARGETS, Kill, Report, kills_of, reference, summary, try_kills
from tests.postgres import Postgres, running_postgres

# The first test waits for all of them.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

# Of two searches, in their order; `python tests/faults/kills.py` makes random ones, each of its own search.
KILLS = (
    Kill(0, "coordinator", Signals.SIGTERM, 0.2),  # while Ray starts, which has a handler of its own
    Kill(1, "coordinator", Signals.SIGKILL, 0.37),  # in a trial: processes, files and the journal's lock stay
    Kill(2, "raylet", Signals.SIGKILL, 0.34),
    Kill(3, "trial", Signals.SIGKILL, 0.37),
    Kill(4, "worker", Signals.SIGKILL, 0.6),
)
KILLS_IN_A_DATABASE = (
    Kill(5, "coordinator", Signals.SIGINT, 0.37),
    Kill(6, "gcs", Signals.SIGKILL, 0.34),
    Kill(7, "database", Signals.SIGKILL, 0.37),  # a crash: connections break off
    Kill(8, "worker", Signals.SIGTERM, 0.5),  # Ray ends it in its own way
    Kill(9, "database", Signals.SIGINT, 0.6),  # a shutdown, of which clients are told
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[int, Report]:
    folder = tmp_path_factory.mktemp("kills")
    normal = reference(folder / "reference")
    server: Postgres = request.getfixturevalue("postgres")

    with ThreadPoolExecutor(2) as pool:
        ended = [
            pool.submit(try_kills, kills, normal, folder / str(kills[0].number), server)
            for kills in (KILLS, KILLS_IN_A_DATABASE)
        ]
        return {report.kill.number: report for each in ended for report in each.result()}


@pytest.mark.parametrize(
    "kill", [*KILLS, *KILLS_IN_A_DATABASE], ids=lambda kill: f"{kill.signal.name}-{kill.target}"
)
def test_after_a_kill_the_answer_is_the_same_and_nothing_is_lost_or_left(
    reports: dict[int, Report], kill: Kill
):
    report = reports[kill.number]
    assert (report.problems, report.came_too_late) == ((), False)


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
