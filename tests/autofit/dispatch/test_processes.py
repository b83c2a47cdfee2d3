"""Processes are found by what they run and ended by their number."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from autofit.dispatch import processes

pytestmark = pytest.mark.process

WAITS = "import signal, subprocess, sys\n"
WAITS += "subprocess.Popen(['sleep', '3600']); print('up', flush=True); signal.pause()"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that names the test's folder and has a child of its own."""
    command = [sys.executable, "-c", WAITS, str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        below = psutil.Process(process.pid).children()
        yield process
        for each in (*below, process):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def test_children_are_told_by_the_folder_of_what_they_run(child: subprocess.Popen[bytes], tmp_path: Path):
    assert processes.children_running(tmp_path) == [psutil.Process(child.pid)]
    assert processes.children_running(tmp_path / "elsewhere") == []


def test_what_does_not_end_by_itself_is_killed(child: subprocess.Popen[bytes]):
    leader = psutil.Process(child.pid)
    below = processes.descendants(leader)
    assert [process.name() for process in below] == ["sleep"]
    processes.see_them_end([*below, leader], within_seconds=0.0)
    assert child.wait() == -9
    psutil.wait_procs(below)
    # Where no init reaps orphans, what was killed stays as a zombie.
    assert {p.status() for p in below if p.is_running()} <= {psutil.STATUS_ZOMBIE}


def test_a_process_that_is_gone_has_no_descendants(child: subprocess.Popen[bytes]):
    leader = psutil.Process(child.pid)
    child.kill()
    child.wait()
    assert processes.descendants(leader) == []


MAKES_FILES = "import pathlib, sys\n"
MAKES_FILES += "pathlib.Path(sys.argv[1]).mkdir()\n"
MAKES_FILES += "for number in range(2000): pathlib.Path(sys.argv[1], str(number)).touch()"


def test_a_folder_goes_though_a_process_that_is_about_to_end_still_makes_files_in_it(tmp_path: Path):
    folder = tmp_path / "session"
    command = [sys.executable, "-c", MAKES_FILES, str(folder)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not folder.exists():
            assert process.poll() is None
        processes.remove_folder(folder)
        assert not folder.exists()
        process.wait()
    assert not folder.exists()
