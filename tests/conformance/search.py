"""What a whole search keeps to, whoever runs its trials; each is a command line in a process of its own.

A test module of an implementation gives the fixture `ended`, one for the whole module: `run_all` of at
least `SEARCHES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.dispatcher import survivors, trial_processes
from tests.conformance.searches import Finished, Search
from workers.protocol import Verdict

# A workload of `tunable.py`, and the options that its search has beside the usual ones.
SEARCHES: dict[str, dict[str, str | None]] = {
    "hangs": {"max_batch": "2", "deadline": "6"},
    "healthy": {},
    "mistaken": {"max_batch": "2"},
}
_AT_ONCE = 2


@dataclass(frozen=True)
class Ended:
    """A search that ended, and what it left in its folder."""

    search: Search
    finished: Finished


def run_all(
    folder: Path, searches: Mapping[str, Mapping[str, str | None]], **options: str
) -> dict[str, Ended]:
    """Runs searches, two at a time.

    Args:
        options: of all of them, which say where trials run.
    """

    def run(name: str) -> Ended:
        search = Search(folder / name, name, **searches[name], **options)
        return Ended(search, search.run())

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(searches, pool.map(run, searches), strict=True))


def tries_by_verdict(search: Search) -> dict[Verdict, int]:
    """For each verdict, how often the size was tried that ended so most often; several may run at once."""
    tries = Counter((outcome.verdict, outcome.batch_size) for outcome in search.outcomes())
    return {verdict: max(num for (v, _), num in tries.items() if v is verdict) for verdict, _ in tries}


class SearchConformance:
    def test_no_search_leaves_a_process_of_a_trial_behind(self, ended: dict[str, Ended], mark: str):
        assert ended.keys() >= SEARCHES.keys()
        assert survivors(trial_processes(mark)) == []

    def test_every_trial_that_began_is_in_the_study_and_none_still_runs(self, ended: dict[str, Ended]):
        for name, end in ended.items():
            assert all(trial.state.is_finished() for trial in end.search.trials()), name
            in_study = Counter(trial.params["batch_size"] for trial in end.search.trials())
            assert Counter(end.search.ran) <= in_study, name

    def test_a_healthy_search_finds_a_size_that_ran_and_a_next_one_that_failed(self, ended: dict[str, Ended]):
        end = ended["healthy"]
        fits, fails = end.finished.answer
        assert fails == fits + 1
        verdicts = {outcome.batch_size: outcome.verdict for outcome in end.search.outcomes()}
        assert (verdicts[fits], verdicts[fails]) == (Verdict.FITS, Verdict.OOM)

    def test_a_hang_is_ended_at_its_deadline_and_exits_with_5_after_a_retry(self, ended: dict[str, Ended]):
        end = ended["hangs"]
        assert end.finished.code == 5
        assert "within 6 s" in end.finished.document["message"]
        assert tries_by_verdict(end.search) == {Verdict.TIMEOUT: 2}

    def test_an_exception_of_the_user_ends_the_search_at_once_with_the_users_traceback(
        self, ended: dict[str, Ended]
    ):
        end = ended["mistaken"]
        assert end.finished.code == 4
        assert end.finished.document["kind"] == "workload"
        assert "LookupError: no such layer" in end.finished.document["message"]
        assert f'File "{end.search.path / "tunable.py"}"' in end.finished.err
        assert set(end.search.verdicts()) == {Verdict.FAILED}
