"""Trials that go wrong in a search on a cluster: each ends in its verdict and its exit code."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from ray.cluster_utils import Cluster

from tests.conformance.dispatcher import survivors, trial_processes
from tests.faults.searches import Finished, Search
from workers.protocol import Verdict

pytestmark = pytest.mark.timeout(900)  # the first test waits for all the searches

OPTIONS: dict[str, dict[str, str]] = {
    "healthy": {},
    "starving": {"max_batch": "2"},
    "killed_once": {"max_batch": "2"},
    "killed": {"max_batch": "2"},
    "worker_killed_once": {"max_batch": "2"},
    "worker_killed": {"max_batch": "2"},
    "hangs": {"max_batch": "2", "deadline": "6"},
    "leaks": {"max_batch": "1"},
    "mistaken": {"max_batch": "2"},
    "vacuous": {"max_batch": "2"},
    "lies_about_its_batch": {"max_batch": "4"},
    "even_sizes_need_more": {},
}


@dataclass(frozen=True)
class Ended:
    """A search that ended, and what it left in its folder."""

    search: Search
    finished: Finished


@pytest.fixture(scope="module")
def ended(cluster: Cluster, mark: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Every search, two at a time on the same node."""
    folder = tmp_path_factory.mktemp("searches")

    def run(name: str) -> Ended:
        search = Search(folder / name, name, address=cluster.address, **OPTIONS[name])
        return Ended(search, search.run())

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(OPTIONS, pool.map(run, OPTIONS), strict=True))


def tries_by_verdict(search: Search) -> dict[Verdict, int]:
    """For each verdict, how often the size was tried that ended so most often; several may run at once."""
    tries = Counter((outcome.verdict, outcome.batch_size) for outcome in search.outcomes())
    return {verdict: max(num for (v, _), num in tries.items() if v is verdict) for verdict, _ in tries}


def test_no_search_leaves_a_process_of_a_trial_behind(ended: dict[str, Ended], mark: str):
    assert len(ended) == len(OPTIONS)
    assert survivors(trial_processes(mark)) == []


def test_every_trial_that_began_is_in_the_study_and_none_still_runs(ended: dict[str, Ended]):
    for name, end in ended.items():
        assert all(trial.state.is_finished() for trial in end.search.trials()), name
        in_study = Counter(trial.params["batch_size"] for trial in end.search.trials())
        assert Counter(end.search.ran) <= in_study, name


def test_a_healthy_search_finds_a_size_that_ran_and_a_next_one_that_failed(ended: dict[str, Ended]):
    end = ended["healthy"]
    fits, fails = end.finished.answer
    assert fails == fits + 1
    verdicts = {outcome.batch_size: outcome.verdict for outcome in end.search.outcomes()}
    assert (verdicts[fits], verdicts[fails]) == (Verdict.FITS, Verdict.OOM)


def test_nothing_fits_exits_with_3(ended: dict[str, Ended]):
    end = ended["starving"]
    assert end.finished.code == 3
    assert end.finished.document["best"] is None
    assert set(end.search.verdicts()) == {Verdict.OOM}


@pytest.mark.parametrize("name", ["killed_once", "worker_killed_once"])
def test_what_is_killed_once_costs_one_trial_and_not_the_answer(ended: dict[str, Ended], name: str):
    end = ended[name]
    assert end.finished.answer == (2, None)  # the cap
    verdicts = Counter(end.search.verdicts())
    assert verdicts.keys() == {Verdict.LOST, Verdict.FITS}
    assert verdicts[Verdict.LOST] == 1


@pytest.mark.parametrize("name", ["killed", "worker_killed"])
def test_what_is_killed_again_is_lost_and_exits_with_5(ended: dict[str, Ended], name: str):
    end = ended[name]
    assert end.finished.code == 5
    assert end.finished.document["kind"] == "dispatch"
    assert tries_by_verdict(end.search) == {Verdict.LOST: 2}


def test_a_hang_is_ended_at_its_deadline_and_exits_with_5_after_a_retry(ended: dict[str, Ended]):
    end = ended["hangs"]
    assert end.finished.code == 5
    assert "within 6 s" in end.finished.document["message"]
    assert tries_by_verdict(end.search) == {Verdict.TIMEOUT: 2}


def test_a_leak_past_the_limit_is_out_of_memory_and_not_a_loss(ended: dict[str, Ended]):
    end = ended["leaks"]
    assert end.finished.code == 3
    assert end.search.verdicts() == [Verdict.OOM]


def test_an_exception_of_the_user_ends_the_search_at_once_with_the_users_traceback(ended: dict[str, Ended]):
    end = ended["mistaken"]
    assert end.finished.code == 4
    assert end.finished.document["kind"] == "workload"
    assert "LookupError: no such layer" in end.finished.document["message"]
    assert f'File "{end.search.path / "tunable.py"}"' in end.finished.err
    assert set(end.search.verdicts()) == {Verdict.FAILED}


@pytest.mark.parametrize(
    ("name", "said"), [("vacuous", "changed no parameter"), ("lies_about_its_batch", "batch")]
)
def test_a_trial_that_does_not_do_its_work_is_invalid_and_exits_with_4(
    ended: dict[str, Ended], name: str, said: str
):
    end = ended[name]
    assert end.finished.code == 4
    assert said in end.finished.document["message"]
    assert set(end.search.verdicts()) == {Verdict.INVALID}


def test_a_size_that_fails_below_one_that_fits_does_not_hide_it(ended: dict[str, Ended]):
    """Even sizes need 128 MiB more, so that 6 and 8 fail and 7 fits, where a larger is predicted to."""
    end = ended["even_sizes_need_more"]
    fits, fails = end.finished.answer
    assert fails == fits + 1
    verdicts = {outcome.batch_size: outcome.verdict for outcome in end.search.outcomes()}
    assert (verdicts[fits], verdicts[fails]) == (Verdict.FITS, Verdict.OOM)
    healthy = ended["healthy"].finished.answer[0]
    assert fits == (healthy if healthy % 2 else healthy - 1)
