"""Searches whose coordinator is killed, whose disk is full, or that are two: the study loses nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from autofit_workers.spec.protocol import Verdict
from tests.conformance.dispatcher import survivors, trial_processes
from tests.conformance.searches import Finished, Search, finished

pytestmark = pytest.mark.process

# On a disk of its own, which only this process and its children see. 77: no such disk can be had here.
ON_A_FULL_DISK = """
mount -t tmpfs -o size=$DISK_SIZE none "$DISK" || exit 77
"$@" >first.out 2>first.err
echo $? >first.code
mount -o remount,size=1m "$DISK"
"$@" >second.out 2>second.err
echo $? >second.code
cp "$DISK"/study.journal .
"""
ON_A_READ_ONLY_DISK = """
mount -t tmpfs -o size=1m none "$DISK" && mount -o remount,ro "$DISK" || exit 77
exec "$@"
"""
NO_DISK = 77
NUM_AT_ONCE = 1  # trials on this machine


@pytest.fixture
def search_for(tmp_path: Path):
    """Makes a search for a workload, in the test's folder."""
    return lambda attribute, **options: Search(tmp_path, attribute, dispatch="inline", **options)


def test_a_coordinator_that_is_killed_is_resumed_and_repeats_the_trials_in_flight_alone(
    search_for, mark: str
):
    search = search_for("hangs_at_its_second_trial")
    search.will_hang()
    coordinator = search.start()
    trial = [psutil.Process(process_id) for process_id in search.wait_until_it_hangs()]
    coordinator.kill()
    assert finished(coordinator).code == -signal.SIGKILL
    assert survivors([*trial, *trial_processes(mark)]) == []
    told = search.outcomes()

    second = search.run()
    fits, fails = second.answer
    assert fails == fits + 1
    assert search.outcomes()[: len(told)] == told
    given_up = [trial for trial in search.trials() if "given_up" in trial.user_attrs]
    assert 1 <= len(given_up) <= NUM_AT_ONCE
    assert len(search.ran) <= len(search.outcomes()) + len(given_up)
    assert survivors(trial_processes(mark)) == []


def test_two_searches_share_one_study(search_for, mark: str):
    search = search_for("healthy")
    both = [finished(process) for process in [search.start(), search.start()]]
    first, second = (end.answer for end in both)
    assert first == second
    assert len(search.ran) == len(search.outcomes())
    assert set(search.verdicts()) == {Verdict.FITS, Verdict.OOM}
    assert survivors(trial_processes(mark)) == []


def test_a_disk_that_fills_up_ends_the_search_with_5_and_once_there_is_room_it_goes_on(
    search_for, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("DISK", str(tmp_path / "disk"))
    monkeypatch.setenv("DISK_SIZE", "4k")  # the first outcome does not find room, or the second
    search = search_for("healthy", max_batch="2", storage=str(tmp_path / "disk" / "study.journal"))
    on_disk = finished(search.start(within=_in_a_namespace(ON_A_FULL_DISK)))
    if on_disk.code == NO_DISK:
        pytest.skip("no disk can be mounted here")
    first, second = (
        Finished(
            *(int((tmp_path / f"{name}.code").read_text()), (tmp_path / f"{name}.out").read_text()),
            (tmp_path / f"{name}.err").read_text(),
        )
        for name in ("first", "second")
    )
    assert (first.code, first.document["kind"]) == (5, "storage")
    assert "No space left on device" in first.document["message"]
    assert second.answer == (2, None)  # the cap
    search.options["storage"] = str(tmp_path / "study.journal")
    assert len(search.ran) - len(search.outcomes()) <= NUM_AT_ONCE  # those whose outcome found no room
    assert survivors(trial_processes(mark)) == []


def test_a_read_only_disk_ends_the_search_with_5_before_a_trial_runs(
    search_for, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("DISK", str(tmp_path / "disk"))
    search = search_for("healthy", storage=str(tmp_path / "disk" / "study.journal"))
    end = finished(search.start(within=_in_a_namespace(ON_A_READ_ONLY_DISK)))
    if end.code == NO_DISK:
        pytest.skip("no disk can be mounted here")
    assert (end.code, end.document["kind"]) == (5, "storage")
    assert "Read-only file system" in end.document["message"]
    assert search.ran == []
    assert survivors(trial_processes(mark)) == []


def _in_a_namespace(script: str) -> tuple[str, ...]:
    return ("unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script, "bash")
