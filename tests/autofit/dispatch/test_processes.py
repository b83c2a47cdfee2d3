"""Processes are found by what they run and ended by their number."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autofit.dispatch import processes

WAITS = "import signal, subprocess, sys\n"
WAITS += "subprocess.Popen(['sleep', '3600']); print('up', flush=True); signal.pause()"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that names the test's folder, leads a group and has a child of its own."""
    command = [sys.executable, "-c", WAITS, str(tmp_path / "script.py"), "a.module"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def test_children_are_told_by_the_folder_of_what_they_run(child: subprocess.Popen[bytes], tmp_path: Path):
    assert processes.children_running(tmp_path) == [psutil.Process(child.pid)]
    assert processes.children_running(tmp_path / "elsewhere") == []


def test_children_of_one_folder_are_told_by_their_module(child: subprocess.Popen[bytes], tmp_path: Path):
    assert processes.children_running(tmp_path, "a.module") == [psutil.Process(child.pid)]
    assert processes.children_running(tmp_path, "another.module") == []


def test_a_group_is_killed_with_all_that_its_leader_started(child: subprocess.Popen[bytes], tmp_path: Path):
    below = processes.descendants(psutil.Process(child.pid))
    assert [process.name() for process in below] == ["sleep"]
    processes.kill_groups(processes.children_running(tmp_path))
    processes.see_them_end(below)
    assert child.wait() == -9
    # Where no init reaps orphans, what was killed stays as a zombie.
    assert {p.status() for p in below if p.is_running()} <= {psutil.STATUS_ZOMBIE}


def test_what_does_not_end_by_itself_is_killed(child: subprocess.Popen[bytes]):
    leader = psutil.Process(child.pid)
    processes.see_them_end([*processes.descendants(leader), leader], within_seconds=0.0)
    assert child.wait() == -9


def test_a_process_that_is_gone_has_no_descendants_and_nothing_to_kill(child: subprocess.Popen[bytes]):
    leader = psutil.Process(child.pid)
    processes.kill_groups([leader])
    child.wait()
    processes.kill_groups([leader])
    assert processes.descendants(leader) == []
