"""Trials that go wrong in a search on this machine: each ends in its verdict and its exit code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Verdict
from tests.conformance.dispatcher import survivors, trial_processes
from tests.conformance.searches import SEARCHES, Ended, Search, SearchConformance, run_all, tries_by_verdict

# The first test waits for all the searches.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

OPTIONS: dict[str, dict[str, str | None]] = {
    **SEARCHES,
    "healthy": {"soak_steps": None},  # as many as usual
    "starving": {"max_batch": "2"},
    "killed": {"max_batch": "2"},
    "killed_once": {"max_batch": "2"},
    "leaks": {"max_batch": "1"},
    "vacuous": {"max_batch": "2"},
    "lies_about_its_batch": {"max_batch": "4"},
    "even_sizes_need_more": {},
}

# The console entry, where trials run another size than they were asked to.
LYING_TRIALS = """
import dataclasses
import sys
from autofit_workers.trials import door
from autofit import api
from autofit.cli import main
from autofit.cli.backend import Backend
from autofit.dispatch.inline import InlineDispatcher


def lying(spec):
    return door.run(dataclasses.replace(spec, batch_size=1))


def tune(settings, workload, emit):
    return api.run(settings, workload, emit=emit, connect=lambda *_: InlineDispatcher(runner=lying))


sys.exit(main(backend=Backend(tune=tune)))
"""


@pytest.fixture(scope="module")
def ended(mark: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return run_all(tmp_path_factory.mktemp("searches"), OPTIONS, dispatch="inline")


class TestConformance(SearchConformance):
    pass


def test_nothing_fits_exits_with_3(ended: dict[str, Ended]):
    end = ended["starving"]
    assert end.finished.code == 3
    assert end.finished.document["best"] is None
    assert set(end.search.verdicts()) == {Verdict.OOM}


def test_what_is_killed_again_is_lost_and_exits_with_5(ended: dict[str, Ended]):
    end = ended["killed"]
    assert end.finished.code == 5
    assert end.finished.document["kind"] == "dispatch"
    assert tries_by_verdict(end.search) == {Verdict.LOST: 2}


def test_what_is_killed_once_costs_one_trial_and_not_the_answer(ended: dict[str, Ended]):
    end = ended["killed_once"]
    assert end.finished.answer == (2, None)  # the cap
    verdicts = Counter(end.search.verdicts())
    assert verdicts.keys() == {Verdict.LOST, Verdict.FITS}
    assert verdicts[Verdict.LOST] == 1


def test_a_leak_past_the_limit_is_out_of_memory_and_not_a_loss(ended: dict[str, Ended]):
    end = ended["leaks"]
    assert end.finished.code == 3
    assert end.search.verdicts() == [Verdict.OOM]


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


def test_where_peaks_do_not_rise_with_the_batch_the_answer_is_a_size_that_ran(ended: dict[str, Ended]):
    """Even sizes need 128 MiB more, which no prediction warns of."""
    end = ended["even_sizes_need_more"]
    fits, fails = end.finished.answer
    assert fails == fits + 1
    verdicts = {outcome.batch_size: outcome.verdict for outcome in end.search.outcomes()}
    assert (verdicts[fits], verdicts[fails]) == (Verdict.FITS, Verdict.OOM)
    assert fits % 2 == 1


def test_a_trial_that_ran_another_size_than_asked_is_not_believed(tmp_path: Path, mark: str):
    search = Search(tmp_path, "healthy", dispatch="inline")
    end = search.run(main=LYING_TRIALS)
    assert end.code == 4
    assert set(search.verdicts()) == {Verdict.INVALID}
    assert survivors(trial_processes(mark)) == []


def test_where_ray_cannot_start_the_search_runs_on_this_machine_and_says_so_once(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
):
    """Where Ray's folder should be is a file."""
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    monkeypatch.setenv("RAY_TMPDIR", str(not_a_folder))
    end = Search(tmp_path / "search", "healthy", max_batch="1").run()
    assert end.answer == (1, None)  # the cap
    (note,) = [note for note in end.document["notes"] if "Ray" in note]
    assert note.startswith("Ray could not start (NotADirectoryError: ")
    assert end.err.count("Ray could not start") <= 1
    assert survivors(trial_processes(mark)) == []
